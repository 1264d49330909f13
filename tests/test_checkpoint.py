"""Checkpoints: whatever happens while one is written, the last good one loads; a misfit is refused whole."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

import tinygrad_attn as ta
from tinygrad_attn.checkpoint import MANIFEST, CheckpointError, load, save
from tinygrad_attn.data import Batches, CharTokenizer
from tinygrad_attn.nn import GPT, GPTConfig
from tinygrad_attn.optim import SGD, AdamW, clip_grad_norm

pytest.importorskip("safetensors")


def small_gpt(seed=0, **sizes):
    config = {"block_size": 8, "vocab_size": 10, "n_layer": 2, "n_head": 2, "n_embd": 8, "dropout": 0.2}
    return GPT(GPTConfig(**config | sizes), rng=np.random.default_rng(seed))


def arrays_file(directory):
    (path,) = directory.glob("*.safetensors")
    return path


# ---------------------------------------------------------------------------------------------- round trip


def test_plain_data_comes_back_as_it_was(tmp_path):
    data = {
        "none": None,
        "numbers": [1, 2.5, True, 2**127, -0.0, 1e-300],
        "text": "她 'π' \n",
        "nested": {"a": [1], "b": [{}, []]},
        "arrays": [
            np.arange(6.0).reshape(2, 3).T,
            np.float32(0.1) * np.ones(3, np.float32),
            np.zeros((0, 2)),
        ],
        "scalar": np.array(2.5),
        "bool": np.array([True, False]),
        "ids": np.arange(3),
    }
    save(tmp_path, **data)
    back = load(tmp_path)
    for key in ("none", "numbers", "text", "nested"):
        assert back[key] == data[key]
    for key in ("scalar", "bool", "ids"):
        assert back[key].dtype == data[key].dtype and back[key].shape == data[key].shape
        assert np.array_equal(back[key], data[key])
    for a, b in zip(back["arrays"], data["arrays"]):
        assert a.dtype == b.dtype and np.array_equal(a, b)


def test_names_with_dots_are_not_mixed_up(tmp_path):
    save(tmp_path, x={"a.b": np.array(1), "a": {"b": np.array(2)}})
    back = load(tmp_path)["x"]
    assert (back["a.b"], back["a"]["b"]) == (1, 2)


def test_numpy_numbers_become_python_numbers_and_nan_survives(tmp_path):
    save(tmp_path, loss=np.float64(1.5), worst=float("nan"), big=float("inf"))
    back = load(tmp_path)
    assert back["loss"] == 1.5 and np.isnan(back["worst"]) and back["big"] == float("inf")


def test_half_a_surrogate_pair_survives(tmp_path):
    save(tmp_path, tokenizer=CharTokenizer("a\ud83d"))
    assert load(tmp_path, tokenizer=CharTokenizer("a\ud83d"))["tokenizer"] == "a\ud83d"


def test_the_directory_holds_one_safetensors_and_one_json_file_and_no_pickle(tmp_path):
    for step in range(3):
        save(tmp_path, step=step, w=np.full(3, float(step)))
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".json", ".safetensors"]
    assert load(tmp_path)["step"] == 2


def test_equal_states_are_equal_bytes(tmp_path):
    for name in "ab":
        save(tmp_path / name, small_gpt(), step=3)
    a, b = ({p.name: p.read_bytes() for p in (tmp_path / name).iterdir()} for name in "ab")
    assert a == b


@pytest.mark.parametrize("value", [object(), {1: 2}, {"array": "x", "b": 1j}, np.array([object()]), 1j, b"x"])
def test_what_cannot_be_stored_is_named_before_anything_is_written(tmp_path, value):
    with pytest.raises(TypeError, match=r"can't store extra"):
        save(tmp_path / "new", extra=value)
    assert not (tmp_path / "new").exists()


def test_D09_a_new_process_continues_the_moments_and_the_step_count(tmp_path):
    p = ta.Tensor(np.array(1.0), requires_grad=True)
    adamw = AdamW([p], lr=0.1, weight_decay=0.01)
    for gradient in (0.5, -0.2):
        p.grad = np.array(gradient)
        adamw.step()
    save(tmp_path, optimizer=adamw, p=p.data)
    code = f"""
import numpy as np, tinygrad_attn as ta
saved = ta.checkpoint.load({str(tmp_path)!r})
p = ta.Tensor(saved["p"], requires_grad=True)
adamw = ta.optim.AdamW([p], lr=9.9, weight_decay=0.01)
ta.checkpoint.load({str(tmp_path)!r}, optimizer=adamw)
p.grad = np.array(0.1)
adamw.step()
print(repr(p.item()), adamw.lr, adamw.state_dict()["0.steps"][0])
"""
    value, lr, step = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert float(value) == pytest.approx(0.824737700415581, abs=1e-15)
    assert (lr, step) == ("0.1", "3")


class Training:
    """A short run with dropout, random batches, and evaluation and sampling after each step."""

    def __init__(self, seed=0):
        model_rng, data_rng, self.sampling = np.random.default_rng(seed).spawn(3)
        self.model = GPT(
            GPTConfig(block_size=8, vocab_size=10, n_layer=2, n_head=2, n_embd=8, dropout=0.3), rng=model_rng
        )
        self.optimizer = AdamW(self.model.parameters(), lr=1e-2)
        self.batches = Batches(np.arange(200) % 10, 8, 4, data_rng)
        self.losses, self.text = [], []

    def parts(self):
        return {
            "model": self.model,
            "optimizer": self.optimizer,
            "data": self.batches.rng,
            "sampling": self.sampling,
        }

    def run(self, steps):
        for x, y in islice(self.batches, steps):
            self.optimizer.zero_grad()
            _, loss = self.model(x, y)
            loss.backward()
            clip_grad_norm(self.model.parameters(), 1.0)
            self.optimizer.step()
            with ta.no_grad(), self.model.evaluating():
                self.losses.append((loss.item(), self.model(x, y)[1].item()))
            self.text.append(self.model.generate([0], 3, rng=self.sampling).tolist())
        return self


def test_a_resumed_run_is_bit_identical_with_dropout_evaluation_and_sampling(tmp_path):
    unbroken = Training().run(9)
    save(tmp_path, **Training().run(4).parts())
    resumed = Training(seed=99)
    load(tmp_path, **resumed.parts())
    resumed.run(5)
    assert resumed.losses == unbroken.losses[4:] and resumed.text == unbroken.text[4:]
    ours, theirs = unbroken.model.state_dict(), resumed.model.state_dict()
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)


# ---------------------------------------------------------------------------------------------- interruptions

WRITER = """
import sys, numpy as np
from tinygrad_attn.checkpoint import load, save
step = load(sys.argv[1])["step"]
while True:
    step += 1
    save(sys.argv[1], step=step, w=np.full(100_000, step), more={"v": np.full(10, step)})
    print(step, flush=True)
"""


def kill_while_saving(directory, times, rng):
    """Kill a process that saves without pause, load what is left: (step reported, step loaded) each time."""
    for _ in range(times):
        with subprocess.Popen([sys.executable, "-c", WRITER, directory], stdout=subprocess.PIPE) as process:
            first = int(process.stdout.readline())
            time.sleep(rng.uniform(0, 0.03))
            os.kill(process.pid, signal.SIGKILL)
            reported = max([first, *map(int, process.stdout.read().split()[:-1])])
        saved = load(directory)
        assert (saved["w"] == saved["step"]).all() and (saved["more"]["v"] == saved["step"]).all()
        yield reported, saved["step"]


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
@pytest.mark.parametrize("times", [10, pytest.param(200, marks=pytest.mark.slow)])
def test_D11_kill_at_any_moment_loses_nothing_that_was_saved(tmp_path, times, rng):
    save(tmp_path, step=0, w=np.zeros(1), more={"v": np.zeros(1)})
    steps = list(kill_while_saving(tmp_path, times, rng))
    assert len(steps) == times
    assert all(loaded >= reported for reported, loaded in steps)
    save(tmp_path, step=-1)
    assert len(list(tmp_path.iterdir())) == 2  # what the killed writers left behind is gone


@pytest.mark.parametrize(
    "owner, function, call",
    [
        *[(Path, "open", 1), (Path, "open", 2), (Path, "replace", 1), (Path, "replace", 2)],
        *[(os, "fsync", 1), (os, "fsync", 2), (os, "fsync", 3)],  # arrays, their directory, manifest
    ],
)
def test_D11_an_error_at_any_point_of_saving_keeps_the_last_checkpoint(tmp_path, monkeypatch, owner, function, call):
    save(tmp_path, step=1, w=np.ones(3))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    original, calls = getattr(owner, function), iter(range(1, 100))

    def fails_once(*args, **kwargs):
        if next(calls) == call:
            raise OSError(errno.EIO, "Input/output error")
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, function, fails_once)
    with pytest.raises(OSError, match="Input/output"):
        save(tmp_path, step=2, w=np.zeros(3))
    monkeypatch.undo()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert load(tmp_path)["step"] == 1


def test_a_full_disk_says_so_and_the_last_checkpoint_survives(tmp_path):
    """A real one: the process may not write files of more than 100 kB."""
    save(tmp_path, step=1, w=np.ones(3))
    code = f"""
import resource, signal, numpy as np, tinygrad_attn as ta
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
ta.checkpoint.save({str(tmp_path)!r}, step=2, w=np.zeros(100_000))
"""
    if os.name != "posix":
        pytest.skip("needs resource limits")
    failed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "File too large; this checkpoint of 0.8 MB was not saved, the last one is intact" in failed.stderr
    assert load(tmp_path)["step"] == 1
    assert len(list(tmp_path.iterdir())) == 2


# ---------------------------------------------------------------------------------------------- damage


@pytest.fixture
def saved(tmp_path):
    save(tmp_path, small_gpt(), step=7, vocab="abc")
    return tmp_path


@pytest.mark.parametrize("file", ["arrays", "manifest"])
@pytest.mark.parametrize("keep", [0, 10, 0.5, -5])
def test_D11_a_cut_file_is_an_error(saved, file, keep):
    path = arrays_file(saved) if file == "arrays" else saved / MANIFEST
    raw = path.read_bytes()
    path.write_bytes(raw[: int(len(raw) * keep) if isinstance(keep, float) else keep])
    with pytest.raises(CheckpointError, match="damaged"):
        load(saved)


@pytest.mark.parametrize("file", ["arrays", "manifest"])
def test_a_changed_byte_is_an_error(saved, file):
    if file == "arrays":
        path = arrays_file(saved)
        raw = bytearray(path.read_bytes())
        raw[-3] ^= 1
        path.write_bytes(raw)
    else:
        path = saved / MANIFEST
        path.write_text(path.read_text().replace('"step": 7', '"step": 9'))
    with pytest.raises(CheckpointError, match="checksum"):
        load(saved)


def test_a_changed_byte_anywhere_in_the_manifest_is_an_error(tmp_path):
    save(tmp_path, step=7, text="她", w=np.ones(2))
    path = tmp_path / MANIFEST
    raw = path.read_bytes()
    for place in range(len(raw)):
        if chr(raw[place]).isspace():  # means nothing to JSON
            continue
        path.write_bytes(raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :])
        with pytest.raises(CheckpointError):
            load(tmp_path)


def test_D11_another_version_a_foreign_file_and_a_missing_one_are_told_apart(saved, tmp_path):
    manifest = json.loads((saved / MANIFEST).read_text())
    for format in ("tinygrad_attn checkpoint 99", "other"):
        (saved / MANIFEST).write_text(json.dumps(manifest | {"format": format}))
        with pytest.raises(CheckpointError, match=f"format '{format}' and not 'tinygrad_attn checkpoint 2'"):
            load(saved)
    (saved / MANIFEST).write_text(json.dumps(manifest))
    arrays_file(saved).unlink()
    with pytest.raises(CheckpointError, match="is missing"):
        load(saved)
    for nowhere in (tmp_path / "nowhere", saved / MANIFEST):
        with pytest.raises(FileNotFoundError, match="no checkpoint here, a directory that holds"):
            load(nowhere)


# ---------------------------------------------------------------------------------------------- misfits


def state_of(model, optimizer, rng):
    moments = [m.tobytes() for group in optimizer.groups for m in group.moments.values()]
    return {n: p.tobytes() for n, p in model.state_dict().items()}, moments, rng.bit_generator.state


@pytest.mark.parametrize(
    "sizes, message",
    [
        ({"n_layer": 1}, r"unexpected: h\.1"),
        ({"n_layer": 3}, r"missing: h\.2"),
        ({"n_embd": 16}, r"wte\.weight: shape \(10, 8\) in the state, \(10, 16\)"),
        ({"vocab_size": 11}, r"wte\.weight: shape \(10, 8\) in the state, \(11, 8\)"),
    ],
)
def test_D19_another_model_is_refused_with_what_differs(saved, sizes, message):
    model = small_gpt(seed=1, **sizes)
    before = model.state_dict()
    with pytest.raises(CheckpointError, match=f"(?s)model does not fit, nothing was loaded.*{message}"):
        load(saved, model)
    assert all(np.array_equal(before[name], p) for name, p in model.state_dict().items())


def test_D19_another_vocabulary_is_refused_with_the_difference(tmp_path):
    save(tmp_path, tokenizer=CharTokenizer("abcde"))
    assert load(tmp_path, tokenizer=CharTokenizer("edcba"))["tokenizer"] == "abcde"
    with pytest.raises(
        CheckpointError,
        match="saved vocabulary has 5 characters, this one 7; only there: '', only here: 'fg'",
    ):
        load(tmp_path, tokenizer=CharTokenizer("abcdefg"))
    with pytest.raises(CheckpointError, match="5 characters, this one 5; only there: 'e', only here: 'x'"):
        load(tmp_path, tokenizer=CharTokenizer("abcdx"))


def test_nothing_is_half_loaded(tmp_path):
    run = Training().run(2)
    save(tmp_path, **run.parts())
    other = Training(seed=5).run(1)
    misfit = SGD(other.model.parameters(), lr=0.1, momentum=0.9)
    parts = {"model": other.model, "data": other.batches.rng, "optimizer": misfit}
    before = state_of(other.model, misfit, other.batches.rng)
    with pytest.raises(
        CheckpointError,
        match=r"optimizer does not fit, nothing was loaded\n.*exp_avg.* this needs .*momentum",
    ):
        load(tmp_path, **parts)
    assert state_of(other.model, misfit, other.batches.rng) == before


def test_asking_for_what_was_not_saved_is_an_error(saved):
    with pytest.raises(CheckpointError, match="holds no 'data', only model, step, vocab"):
        load(saved, data=np.random.default_rng(0))
    with pytest.raises(TypeError, match="can't restore step in place"):
        load(saved, step=0)


def test_without_safetensors_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    with pytest.raises(ImportError, match=r"tinygrad-attn\[demos\]"):
        save(tmp_path, step=1)
