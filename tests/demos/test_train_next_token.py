"""The training demo: a run can be stopped, resumed and looked into; what cannot work is refused at once."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import tinygrad_attn as ta
from tinygrad_attn.data import Batches, CharTokenizer
from tinygrad_attn.nn import GPT, GPTConfig

for extra in ("tqdm", "matplotlib", "safetensors"):
    pytest.importorskip(extra)

DEMOS = Path(__file__).parents[2] / "demos"
sys.path.insert(0, str(DEMOS))
import plot_run  # noqa: E402
import sample  # noqa: E402
import train_next_token as demo  # noqa: E402

VERSE = "the cat sat on the mat, the dog sat on the log.\n" * 40
TINY = "--block-size 8 --batch-size 4 --n-layer 1 --n-head 2 --n-embd 8 --warmup-iters 2 --eval-iters 2".split()
TINY += "--eval-interval 5 --max-iters 12 --dropout 0.2".split()


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "verse.txt"
    path.write_text(VERSE)
    return path


@pytest.fixture(autouse=True)
def _brief(monkeypatch):
    """Shorten what a run does besides training; the run of `finished` is a whole one."""
    monkeypatch.setattr(demo, "SAMPLE_TOKENS", 20)
    monkeypatch.setattr(demo, "FINAL_EVAL_ITERS", 3)
    for picture in ("plot_loss", "plot_attention"):
        monkeypatch.setattr(plot_run, picture, lambda *_: None)


def train(text, run, *flags):
    demo.main([*TINY, "--text", str(text), "--out", str(run), *flags])
    return run


def refused(capsys, *argv):
    """The one line that the command line answers to what it can't do; nothing was run."""
    with pytest.raises(SystemExit) as stop:
        demo.parse_args([str(arg) for arg in argv])
    assert stop.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


def losses(run):
    log = plot_run.read_log(run)
    return {line["step"]: (line.get("train_loss"), line.get("val_loss"), line.get("grad_norm")) for line in log}


# -------------------------------------------------------------------------------- a run


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    (folder / "verse.txt").write_text(VERSE)
    return train(folder / "verse.txt", folder / "run", "--grad-accumulation", "2")


def test_the_run_directory_holds_all_there_is_to_know(finished):
    config = json.loads((finished / "config.json").read_text())
    assert config["n_embd"] == 8 and config["dropout"] == 0.2 and config["grad_accumulation"] == 2
    log = plot_run.read_log(finished)
    assert [line["step"] for line in log] == list(range(1, 13))
    assert {line["step"] for line in log if "val_loss" in line} == {5, 10, 12}
    assert all({"train_loss", "lr", "grad_norm", "tokens_per_s"} <= set(line) for line in log)
    result = plot_run.read_result(finished)
    assert result["val_loss"] < result["before"] < result["uniform"] + 0.5
    samples = (finished / "samples.txt").read_text()
    assert "after 0 updates" in samples and "after 12 updates" in samples
    assert {p.suffix for p in (finished / "checkpoint").iterdir()} == {".json", ".safetensors"}
    for picture in ("loss.png", "attention.png"):
        assert (finished / picture).read_bytes().startswith(b"\x89PNG")


def test_the_schedule_is_the_one_asked_for(finished):
    rates = [line["lr"] for line in plot_run.read_log(finished)]
    assert rates[2] == max(rates) == 2e-3 and rates[0] == pytest.approx(2e-3 / 3)


def test_the_checkpoint_alone_is_enough_to_sample(finished, capsys):
    sample.main(["--checkpoint", str(finished), "--prompt", "the ", "--tokens", "20", "--seed", "3"])
    first = capsys.readouterr().out
    assert first.startswith("the ") and len(first) == len("the ") + 20 + 1
    sample.main(["--checkpoint", str(finished / "checkpoint"), "--prompt", "the ", "--tokens", "20", "--seed", "3"])
    assert capsys.readouterr().out == first


def test_the_model_is_left_in_gpt_2_s_layout_too(finished):
    model, _ = sample.load_model(finished)
    exported = GPT.from_pretrained(finished / "pretrained").eval()
    assert np.array_equal(exported([1, 2, 3])[0].data, model([1, 2, 3])[0].data)


def test_every_picture_of_the_run_is_drawn(finished, capsys):
    plot_run.main([str(finished)])
    for name in capsys.readouterr().out.split():
        head = Path(name).read_bytes()[:6]
        assert head.startswith(b"\x89PNG") if name.endswith("png") else head == b"GIF89a"


def test_equal_settings_give_equal_runs(text, tmp_path):
    a, b = (train(text, tmp_path / name) for name in "ab")
    assert losses(a) == losses(b)
    assert (a / "samples.txt").read_bytes() == (b / "samples.txt").read_bytes()
    assert losses(train(text, tmp_path / "c", "--seed", "1")) != losses(a)


def test_processes_share_a_batch(text, tmp_path):
    together = losses(train(text, tmp_path / "two", "--dropout", "0", "--processes", "2"))
    alone = losses(train(text, tmp_path / "one", "--dropout", "0"))
    assert all(two[0] == pytest.approx(one[0], rel=1e-4) for two, one in zip(together.values(), alone.values()))


@pytest.mark.parametrize("wrong", [("--processes", "2"), ("--dropout", "0", "--processes", "500")])
def test_processes_refuse_what_they_cannot_share(text, tmp_path, wrong, capsys):
    with pytest.raises(SystemExit):
        train(text, tmp_path / "run", *wrong)
    assert "--processes" in capsys.readouterr().err


def test_the_default_output_directory_is_numbered(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for expected in ("manual", "manual-2", "manual-3"):
        run = demo.parse_args([*TINY, "--text", str(text)])
        assert run.directory == Path("runs") / expected
        run.start()


# -------------------------------------------------------------------------------- stop and resume


def start_process(text, run, *flags):
    command = [sys.executable, DEMOS / "train_next_token.py", *TINY, "--text", text, "--out", run, *flags]
    return subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_step(process, run, step):
    while not (run / "log.jsonl").exists() or len((run / "log.jsonl").read_text().splitlines()) <= step:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.02)


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
@pytest.mark.parametrize("how", ["ctrl-c", "kill"])
def test_a_stopped_run_that_is_resumed_is_the_run_that_never_stopped(text, tmp_path, how):
    length = ["--max-iters", "400", "--eval-interval", "50", "--n-layer", "3", "--n-embd", "32"]
    with start_process(text, tmp_path / "a", *length) as stopped:
        wait_for_step(stopped, tmp_path / "a", 60)
        stopped.send_signal(signal.SIGINT if how == "ctrl-c" else signal.SIGKILL)
        out, _ = stopped.communicate()
    if how == "ctrl-c":
        assert stopped.returncode == 0
        assert "and saved; go on with" in out and f"--resume {tmp_path / 'a'}" in out
    reached = ta.checkpoint.load(tmp_path / "a" / "checkpoint")["step"]
    assert 50 <= reached < 400
    assert how == "ctrl-c" or reached % 50 == 0
    demo.main(["--resume", str(tmp_path / "a")])
    unbroken = train(text, tmp_path / "b", *length)
    assert losses(tmp_path / "a") == losses(unbroken)
    a, b = (ta.checkpoint.load(run / "checkpoint") for run in (tmp_path / "a", unbroken))
    assert all(np.array_equal(a["model"]["parameters"][n], p) for n, p in b["model"]["parameters"].items())
    assert a["data"] == b["data"] and a["model"]["generators"] == b["model"]["generators"]


def test_a_finished_run_can_be_made_longer(text, tmp_path):
    run = train(text, tmp_path / "run")
    demo.main(["--resume", str(run), "--max-iters", "15"])
    assert [line["step"] for line in plot_run.read_log(run)] == list(range(1, 16))
    assert json.loads((run / "config.json").read_text())["max_iters"] == 15


def test_resume_takes_the_run_s_own_settings(finished, capsys):
    assert "leave out --n-embd, --preset" in refused(capsys, "--resume", finished, "--n-embd", 16, "--preset", "quick")
    assert "can be raised but not lowered below the run's 12" in refused(capsys, "--resume", finished, "--max-iters", 5)
    assert "there is no run here" in refused(capsys, "--resume", finished / "nowhere")


def test_D19_resuming_on_another_text_is_refused(text, tmp_path, capsys):
    run = train(text, tmp_path / "run")
    text.write_text(VERSE.replace("cat", "Cat"))
    assert "only here: 'C'" in refused(capsys, "--resume", run)
    text.write_text(VERSE.replace("cat", "dog").replace("mat", "cat mat"))
    assert "has changed since the run began" in refused(capsys, "--resume", run)


def test_a_damaged_checkpoint_is_never_a_fresh_start(text, tmp_path, capsys):
    run = train(text, tmp_path / "run")
    (arrays,) = (run / "checkpoint").glob("*.safetensors")
    arrays.write_bytes(arrays.read_bytes()[:-5])
    before = (run / "log.jsonl").read_bytes()
    assert "damaged" in refused(capsys, "--resume", run)
    assert (run / "log.jsonl").read_bytes() == before


# -------------------------------------------------------------------------------- what can go wrong


def test_a_loss_of_nan_stops_names_the_step_and_keeps_the_last_good_checkpoint(text, tmp_path, monkeypatch):
    update = demo.Run.update

    def poisoned(run):
        if run.step == 7:
            run.model.ln_f.weight.data[0] = np.nan
        return update(run)

    monkeypatch.setattr(demo.Run, "update", poisoned)
    with pytest.raises(SystemExit, match=r"stopped at step 8: the loss is nan\. The last good checkpoint"):
        train(text, tmp_path / "run")
    saved = ta.checkpoint.load(tmp_path / "run" / "checkpoint")
    assert saved["step"] == 5 and all(np.isfinite(p).all() for p in saved["model"]["parameters"].values())


def test_a_learning_rate_that_explodes_stops_too(text, tmp_path):
    with pytest.raises(SystemExit, match=r"stopped at step \d+: "):
        train(text, tmp_path / "run", "--learning-rate", "1e30")


def test_a_full_disk_stops_and_says_so(text, tmp_path, monkeypatch):
    save = ta.checkpoint.save

    def full(directory, *parts, **more):
        if more["step"] > 5:
            raise OSError(28, "no room for a checkpoint of 1.0 MB; the last one is intact", str(directory))
        save(directory, *parts, **more)

    monkeypatch.setattr(ta.checkpoint, "save", full)
    with pytest.raises(SystemExit, match=r"stopped at step 10: .*no room for a checkpoint"):
        train(text, tmp_path / "run")
    assert ta.checkpoint.load(tmp_path / "run" / "checkpoint")["step"] == 5


def test_one_repeated_character_is_learned_perfectly(text, tmp_path):
    text.write_text("a" * 500)
    run = train(text, tmp_path / "run")
    assert json.loads((run / "result.json").read_text())["val_loss"] == 0.0


@pytest.mark.parametrize(
    "raw, message",
    [
        (b"", "the file is empty"),
        (b"abc\xffdef" * 100, "byte 0xff at position 3"),
        (b"short", "5 characters and its held-out tenth 1, too few for --block-size 8"),
    ],
)
def test_a_text_that_cannot_be_learned_is_refused(text, raw, message, tmp_path, capsys):
    text.write_bytes(raw)
    assert message in refused(capsys, *TINY, "--text", text, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "flags, message",
    [
        ("--n-head 3", "--n-head 3 heads do not divide the width --n-embd 8"),
        ("--block-size 4000", "too few for --block-size 4000"),
        ("--block-size 0", "--block-size must be at least 1, got 0"),
        ("--batch-size -1", "--batch-size must be at least 1"),
        ("--dropout 1", "--dropout must be below 1"),
        ("--learning-rate 0", "--learning-rate must be above 0"),
        ("--learning-rate nan", "--learning-rate must be a finite number"),
        ("--min-lr 1", "--min-lr 1.0 is larger than --learning-rate"),
        ("--warmup-iters 99", "--warmup-iters 99 is more than --max-iters 12"),
        ("--n-layer two", "invalid int value: 'two'"),
        ("--layers 3", "unrecognized arguments: --layers 3"),
        ("--preset huge", "invalid choice: 'huge'"),
        ("--text nowhere.txt", "No such file"),
    ],
)
def test_impossible_settings_are_refused_before_anything_runs(text, tmp_path, capsys, flags, message):
    argv = [*TINY, "--text", text, "--out", tmp_path / "run", *flags.split()]
    assert message in refused(capsys, *argv)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", demo.PRESETS)
def test_the_help_describes_each_preset_by_flags_that_make_it(name, text):
    _, *flags = demo.describe(name).replace("as manual, but", "").split()
    settings = demo.parse_args([*flags, "--text", str(text)]).settings
    assert demo.replace(settings, text=None) == demo.PRESETS[name]


def test_the_help_names_every_setting(capsys):
    with pytest.raises(SystemExit):
        demo.parse_args(["--help"])
    shown = capsys.readouterr().out
    assert all(
        f.metadata["help"].split()[0] in shown and demo.flag(f.name) in shown for f in demo.fields(demo.Settings)
    )


def test_a_directory_that_is_in_use_is_refused(finished, text, capsys):
    assert "is not empty; go on with it by --resume" in refused(capsys, *TINY, "--text", text, "--out", finished)


def test_the_plays_are_not_guessed(capsys):
    assert "--preset shakespeare needs --text FILE" in refused(capsys, "--preset", "shakespeare")


# -------------------------------------------------------------------------------- evaluation


@pytest.fixture
def model(rng):
    config = GPTConfig(block_size=4, vocab_size=5, n_layer=1, n_head=1, n_embd=4, dropout=0.5)
    return GPT(config, rng=rng)


def some_batches(n=3):
    batches = Batches(np.arange(50) % 5, 4, 2, np.random.default_rng(0))
    return [next(batches) for _ in range(n)]


def test_D13_evaluation_gives_the_mode_back_whichever_it_was(model):
    for mode in (True, False):
        demo.mean_loss(model.train(mode), some_batches())
        assert model.training is mode and model.h[0].attn.dropout.training is mode


def test_D13_evaluation_ignores_dropout_and_tracks_nothing(model):
    model([0, 1], [1, 2])[1].backward()
    before = {name: p.grad.data.copy() for name, p in model.named_parameters()}
    assert demo.mean_loss(model, some_batches()) == demo.mean_loss(model, some_batches())
    assert all(np.array_equal(before[name], p.grad.data) for name, p in model.named_parameters())


def test_D13_the_mode_comes_back_after_an_error_too(model):
    with pytest.raises(IndexError):
        demo.mean_loss(model, [(np.array([[99]]), np.array([[0]]))])
    assert model.training


# -------------------------------------------------------------------------------- sampling


def sampled(capsys, run, *argv):
    sample.main(["--checkpoint", str(run), "--tokens", "12", *argv])
    return capsys.readouterr().out


def test_D01_the_default_prompt_comes_from_the_vocabulary():
    assert sample.start_of_text(CharTokenizer("Hello\nworld!")) == "\n"
    assert sample.start_of_text(CharTokenizer("Helloworld!")) == "!"


def test_D01_an_unknown_character_is_named(finished, capsys):
    with pytest.raises(SystemExit):
        sampled(capsys, finished, "--prompt", "the quay")
    assert "outside the vocabulary: 'quy'" in capsys.readouterr().err


def test_D14_prompts_may_be_empty_or_longer_than_the_block(finished, capsys):
    assert len(sampled(capsys, finished)) == 13
    assert sampled(capsys, finished, "--prompt", VERSE[:48]).startswith(VERSE[:48])


def test_D18_line_ends_of_a_prompt_follow_the_rule_of_the_text(finished, capsys):
    assert sampled(capsys, finished, "--prompt", "log.\r\nthe") == sampled(capsys, finished, "--prompt", "log.\nthe")


def test_D04_temperature_zero_is_the_same_for_every_seed(finished, capsys):
    a, b = (sampled(capsys, finished, "--temperature", "0", "--seed", seed) for seed in "12")
    assert a == b


def test_what_cannot_be_sampled_is_refused(finished, tmp_path, capsys):
    for argv, message in [
        (["--top-k", "0"], "top_k must be at least 1"),
        (["--temperature", "-1"], "temperature must be 0 or more"),
        (["--tokens", "-3"], "max_new_tokens must be 0 or more"),
    ]:
        with pytest.raises(SystemExit):
            sampled(capsys, finished, *argv)
        assert message in capsys.readouterr().err
    with pytest.raises(SystemExit):
        sampled(capsys, tmp_path)
    assert "no checkpoint here" in capsys.readouterr().err


def test_characters_are_written_as_they_come(finished):
    command = [sys.executable, str(DEMOS / "sample.py"), "--checkpoint", str(finished), "--tokens", "100000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as writing:
        assert len(writing.stdout.read(50)) == 50  # long before the end
        writing.stdout.close()
        assert writing.wait(timeout=60) == 0  # a reader that has seen enough is no error
        assert writing.stderr.read() == b""


# -------------------------------------------------------------------------------- pictures


def test_a_log_that_was_cut_off_is_read_up_to_there(tmp_path):
    (tmp_path / "log.jsonl").write_text('{"step": 1}\n{"step": 2}\n{"st')
    assert [line["step"] for line in plot_run.read_log(tmp_path)] == [1, 2]
    (tmp_path / "log.jsonl").write_text('{"step": 1}\n{"st\n{"step": 3}\n')
    with pytest.raises(ValueError, match="line 2 is damaged"):
        plot_run.read_log(tmp_path)


def test_smoothing_keeps_constants_and_lengths():
    assert np.allclose(plot_run.smoothed([2.0] * 10, 4), 2.0)
    assert len(plot_run.smoothed([1.0, 2.0], 1)) == 2


def test_there_must_be_something_to_plot(tmp_path, capsys):
    with pytest.raises(SystemExit):
        plot_run.main([str(tmp_path)])
    assert "log.jsonl" in capsys.readouterr().err


def test_gradient_norms_of_layers_make_up_the_whole(model):
    model([0, 1], [1, 2])[1].backward()
    norms = demo.layer_norms(model)
    assert set(norms) == {"wte", "wpe", "h.0", "ln_f"}
    assert math.hypot(*norms.values()) == pytest.approx(ta.optim.clip_grad_norm(model.parameters(), 1e9), rel=1e-5)
