"""Train a small GPT to predict the next character, in a run that can be stopped, resumed and looked into.

    python demos/train_next_token.py                                  # the Python manual, under two minutes
    python demos/train_next_token.py --preset quick                   # a few seconds, to see it work
    python demos/train_next_token.py --preset shakespeare --text tinyshakespeare.txt
    python demos/train_next_token.py --resume runs/manual --max-iters 3000

Ctrl-C saves a checkpoint and says how to go on; a resumed run is bit for bit the run that was never stopped.
"""

import argparse
import hashlib
import json
import math
import re
import signal
import sys
import textwrap
import time
from collections import Counter
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path

import numpy as np
import plot_run
from sample import start_of_text
from tqdm import tqdm

import tinygrad_attn as ta
from tinygrad_attn.data import Batches, CharTokenizer, python_manual, read_text
from tinygrad_attn.nn import GPT, GPTConfig
from tinygrad_attn.optim import AdamW, accumulate, clip_grad_norm, warmup_cosine

FINAL_EVAL_ITERS = 200  # held-out batches behind the loss that is reported at the end
SAMPLE_TOKENS = 300
WATCHED_TOKENS = 24  # length of the held-out sentence whose attention is recorded at each evaluation


# ---------------------------------------------------------------------------------------------- settings


def setting(default, help, **limits):
    return field(default=default, metadata={"help": help, "limits": limits})


@dataclass(frozen=True)
class Settings:
    """All that decides a run: equal settings give equal runs, bit for bit, on one machine."""

    text: str | None = setting(None, "UTF-8 text to learn; without it the manual that this Python carries")
    block_size: int = setting(64, "characters the model sees at once", at_least=1)
    batch_size: int = setting(12, "sequences in a batch", at_least=1)
    n_layer: int = setting(4, "transformer blocks", at_least=1)
    n_head: int = setting(4, "attention heads in a block", at_least=1)
    n_embd: int = setting(128, "width of the model, a multiple of --n-head", at_least=1)
    dropout: float = setting(0.0, "share of activations that training drops", at_least=0, below=1)
    bias: bool = setting(False, "biases in linear layers and layer norms")
    max_iters: int = setting(1200, "updates of the weights", at_least=1)
    learning_rate: float = setting(2e-3, "the largest learning rate", above=0)
    min_lr: float = setting(1e-4, "the learning rate at the end of the cosine", at_least=0)
    warmup_iters: int = setting(50, "updates over which the learning rate rises", at_least=0)
    beta2: float = setting(0.99, "AdamW's memory of squared gradients", at_least=0, below=1)
    weight_decay: float = setting(0.1, "AdamW's decay of matrices; gains and biases have none", at_least=0)
    grad_clip: float = setting(1.0, "the largest norm of the gradient", above=0)
    grad_accumulation: int = setting(1, "batches whose gradients make one update", at_least=1)
    processes: int = setting(1, "processes that share each batch", at_least=1)
    eval_interval: int = setting(200, "updates between evaluations; each saves a checkpoint", at_least=1)
    eval_iters: int = setting(20, "held-out batches in an evaluation", at_least=1)
    seed: int = setting(1337, "seed of every random number", at_least=0)

    def check(self):
        """Refuse what cannot work, in the words of the command line."""
        wrong = {"at_least": lambda v, limit: v < limit, "above": lambda v, limit: v <= limit,
                 "below": lambda v, limit: v >= limit}  # fmt: skip
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{flag(f.name)} must be a finite number, got {value}")
            for kind, limit in f.metadata["limits"].items():
                if wrong[kind](value, limit):
                    raise ValueError(f"{flag(f.name)} must be {kind.replace('_', ' ')} {limit}, got {value}")
        if self.n_embd % self.n_head:
            raise ValueError(f"--n-head {self.n_head} heads do not divide the width --n-embd {self.n_embd}")
        if self.min_lr > self.learning_rate:
            raise ValueError(f"--min-lr {self.min_lr} is larger than --learning-rate {self.learning_rate}")
        if self.processes > self.batch_size:
            raise ValueError(f"--processes {self.processes} cannot share a batch of {self.batch_size} sequences")
        if self.processes > 1 and self.dropout:
            raise ValueError("--dropout draws in the order of a single process: leave out --processes or --dropout")
        if self.warmup_iters > self.max_iters:
            raise ValueError(f"--warmup-iters {self.warmup_iters} is more than --max-iters {self.max_iters}")


PRESETS = {
    "manual": Settings(),
    "quick": Settings(block_size=32, batch_size=16, n_layer=2, n_head=2, n_embd=64, max_iters=400, eval_interval=100),
    # nanoGPT's recipe for a CPU
    "shakespeare": Settings(max_iters=2000, learning_rate=1e-3, warmup_iters=100, eval_interval=250),
    # smaller batches, and steps as large as they may be: lower in less time
    "shakespeare-tuned": Settings(
        max_iters=2100, batch_size=8, learning_rate=4e-3, min_lr=0.0, warmup_iters=150, eval_interval=350
    ),
}
EXPECTED = {
    "manual": 1.7,
    "quick": 2.3,
    "shakespeare": 1.915,
    "shakespeare-tuned": 1.88,
}  # held-out loss with the preset as it is


def flag(name):
    return "--" + name.replace("_", "-")


def parse_args(argv):
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog="presets:\n" + "\n".join(describe(name) for name in PRESETS),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--preset", choices=PRESETS, help="source of the settings not given (default: manual)")
    parser.add_argument("--out", type=Path, metavar="RUN", help="a new directory (default: runs/PRESET, numbered)")
    parser.add_argument("--resume", type=Path, metavar="RUN", help="go on with a run, by its own settings")
    group = parser.add_argument_group("settings (defaults: see presets)")
    for f in fields(Settings):
        if f.type is bool:
            group.add_argument(flag(f.name), action=argparse.BooleanOptionalAction, help=f.metadata["help"])
        else:
            kind = f.type if f.type in (int, float) else str
            metavar = {int: "N", float: "X", str: "FILE"}[kind]
            group.add_argument(flag(f.name), type=kind, metavar=metavar, help=f.metadata["help"])
    args = parser.parse_args(argv)
    given = {f.name: getattr(args, f.name) for f in fields(Settings) if getattr(args, f.name) is not None}
    try:
        if args.resume:
            settings, directory = settings_of(args.resume, args, given), args.resume
        else:
            preset = args.preset or "manual"
            settings = replace(PRESETS[preset], **given)
            if preset.startswith("shakespeare") and not settings.text:
                raise ValueError(f"--preset {preset} needs --text FILE, a copy of the plays")
            if settings.text:
                settings = replace(settings, text=str(Path(settings.text).resolve()))
            directory = args.out or unused(Path("runs") / preset)
            if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
                raise ValueError(f"--out {directory} is not empty; go on with it by --resume, or name a new one")
        settings.check()
        run = Run(directory, settings)
        if args.resume:
            run.resume()
    except (ValueError, OSError) as error:
        parser.error(str(error))
    return run


def settings_of(directory, args, given):
    """The settings of an earlier run; only `max_iters` may grow."""
    others = [flag(name) for name in given if name != "max_iters"]
    others += [f"--{name}" for name in ("preset", "out") if getattr(args, name)]
    if others:
        raise ValueError(f"--resume takes the run's own settings; leave out {', '.join(others)}")
    path = directory / "config.json"
    try:
        settings = Settings(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise ValueError(f"--resume {directory}: there is no run here ({path.name} is missing)") from None
    except (TypeError, ValueError):
        raise ValueError(f"{path} is damaged, or not the config of a run") from None
    if given.get("max_iters", settings.max_iters) < settings.max_iters:
        raise ValueError(f"--max-iters can be raised but not lowered below the run's {settings.max_iters}")
    return replace(settings, **given)


def unused(directory):
    """`directory`, or the first of directory-2, directory-3, ... that does not exist yet."""
    n, candidate = 1, directory
    while candidate.exists():
        n += 1
        candidate = directory.with_name(f"{directory.name}-{n}")
    return candidate


def describe(preset):
    """The preset's settings, as flags; those of other presets only where they differ from the first."""
    base = Settings() if preset != "manual" else None
    values = {k: v for k, v in asdict(PRESETS[preset]).items() if base is None or v != getattr(base, k)}
    words = []
    for name, value in values.items():
        if isinstance(value, bool):
            words.append(flag(name) if value else flag("no_" + name))
        elif value is not None:
            words.append(f"{flag(name)} {value:g}" if isinstance(value, float) else f"{flag(name)} {value}")
    if base is not None:
        words.insert(0, "as manual, but")
    lines, line = [], f"  {preset:<18}"
    for word in words:
        if len(line) + len(word) > 98:
            lines, line = [*lines, line], " " * 20
        line += f" {word} "
    return "\n".join(line.rstrip() for line in [*lines, line])


# ---------------------------------------------------------------------------------------------- the run


class Run:
    """A training run and its directory: text, model, optimizer, and the step it has reached."""

    def __init__(self, directory, settings):
        s = self.settings = settings
        self.directory = directory
        self.text = read_text(s.text) if s.text else python_manual()
        self.tokenizer = CharTokenizer(self.text)
        ids = np.array(self.tokenizer.encode(self.text))
        cut = int(0.9 * len(ids))
        self.train_ids, self.val_ids = ids[:cut], ids[cut:]
        if len(self.val_ids) < s.block_size + 1:
            raise ValueError(
                f"the text has {len(ids)} characters and its held-out tenth {len(self.val_ids)}, too few for "
                f"--block-size {s.block_size}; use a longer text or a smaller block"
            )
        model_rng, data_rng = np.random.default_rng(s.seed).spawn(2)
        sizes = {k: getattr(s, k) for k in ("block_size", "n_layer", "n_head", "n_embd", "dropout", "bias")}
        self.model = GPT(GPTConfig(vocab_size=len(self.tokenizer), **sizes), rng=model_rng)
        self.optimizer = AdamW(
            self.model.parameters(), s.learning_rate, betas=(0.9, s.beta2), weight_decay=s.weight_decay
        )
        self.batches = Batches(self.train_ids, s.block_size, s.batch_size, data_rng)
        self.accumulate = partial(accumulate, self.loss)  # or that of workers, who share the batches
        self.step = 0

    # -- on disk --

    @property
    def checkpoint(self):
        return self.directory / "checkpoint"

    def start(self):
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / "attention").mkdir(exist_ok=True)
        self.write("config.json", json.dumps(asdict(self.settings), indent=2) + "\n")
        self.write("attention/tokens.json", json.dumps(list(self.tokenizer.decode(self.watched))))

    def save(self):
        ta.checkpoint.save(
            self.checkpoint,
            self.model,
            self.optimizer,
            tokenizer=self.tokenizer,
            data=self.batches.rng,
            step=self.step,
            config=asdict(self.model.config),
            text_sha256=self.text_sha256,
        )

    def resume(self):
        saved = ta.checkpoint.load(self.checkpoint)
        if saved["tokenizer"] == self.tokenizer.vocab and saved["text_sha256"] != self.text_sha256:
            raise ValueError(f"{self.settings.text or 'the manual'} has changed since the run began; it can't go on")
        ta.checkpoint.load(
            self.checkpoint,
            tokenizer=self.tokenizer,
            model=self.model,
            optimizer=self.optimizer,
            data=self.batches.rng,
        )
        self.step = saved["step"]
        kept = [line for line in plot_run.read_log(self.directory) if line["step"] <= self.step]
        self.write("log.jsonl", "".join(json.dumps(line) + "\n" for line in kept))

    def write(self, name, text):
        (self.directory / name).write_text(text, encoding="utf-8", newline="")

    @property
    def text_sha256(self):
        return hashlib.sha256(self.text.encode()).hexdigest()

    # -- looking at the model --

    @cached_property
    def watched(self):
        """Ids of the first held-out stretch of plain words, or of the beginning where there is none."""
        n = min(WATCHED_TOKENS, self.settings.block_size)
        words = re.compile(rf"\b[^\W\d_](?:[^\W\d_]| (?! )){{{n - 1}}}")
        found = words.search(self.text, len(self.train_ids))
        start = found.start() - len(self.train_ids) if found else 0
        return self.val_ids[start : start + n]

    def watch(self):
        """Record who attends to whom in the watched sentence: (n_layer, n_head, T, T)."""
        weights = self.model.attention_weights(self.watched)
        np.save(self.directory / "attention" / f"{self.step:06}.npy", weights.astype(np.float16))

    def sample(self):
        prompt = start_of_text(self.tokenizer)
        rng = np.random.default_rng([self.settings.seed, self.step])
        text = self.tokenizer.decode(self.model.generate(self.tokenizer.encode(prompt), SAMPLE_TOKENS, rng=rng))
        with (self.directory / "samples.txt").open("a", encoding="utf-8", newline="") as file:
            file.write(f"--- after {self.step} updates ---\n{text}\n")
        return text.strip("\n")

    def held_out_loss(self, n):
        """Mean loss of `n` held-out batches, the same ones each time."""
        s = self.settings
        batches = Batches(self.val_ids, s.block_size, s.batch_size, np.random.default_rng(s.seed))
        return mean_loss(self.model, islice(batches, n))

    # -- training --

    def loss(self, x, y):
        return self.model(x, y)[1]

    def update(self):
        """One update of the weights; returns what is logged about it."""
        s = self.settings
        lr = warmup_cosine(self.step, max_lr=s.learning_rate, min_lr=s.min_lr, warmup=s.warmup_iters, total=s.max_iters)
        window = list(islice(self.batches, s.grad_accumulation))
        parts = [part for batch in window for part in zip(*(np.array_split(a, s.processes) for a in batch))]
        self.optimizer.zero_grad()
        loss = self.accumulate(parts)
        if not math.isfinite(loss):
            raise FloatingPointError(f"the loss is {loss}")
        norms = layer_norms(self.model) if self.step % 10 == 0 else None
        norm = clip_grad_norm(self.model.parameters(), s.grad_clip)
        self.optimizer.lr = lr
        self.optimizer.step()
        self.step += 1
        return {"step": self.step, "train_loss": loss, "lr": lr, "grad_norm": norm} | (
            {"layer_grad_norms": norms} if norms else {}
        )


def mean_loss(model, batches):
    """Mean loss without dropout and without a graph; the model's mode is as before afterwards."""
    with ta.no_grad(), model.evaluating():
        return float(np.mean([model(x, y)[1].item() for x, y in batches]))


def layer_norms(model):
    """Gradient norm of each layer, over its parameters: {"wte": ..., "h.0": ..., ...}."""
    squares = Counter()
    for name, p in model.named_parameters():
        if p.grad is not None:
            layer = ".".join(name.split(".")[: 2 if name.startswith("h.") else 1])
            squares[layer] += float(np.square(p.grad.data, dtype=np.float64).sum())
    return {layer: math.sqrt(square) for layer, square in squares.items()}


class StopRequest:
    """The first Ctrl-C (or SIGTERM) asks to stop after the current step; the second stops at once."""

    def __init__(self):
        self.asked = False
        self.before = {s: signal.signal(s, self.ask) for s in (signal.SIGINT, signal.SIGTERM)}

    def ask(self, *_):
        self.asked = True
        self.restore()

    def restore(self):
        for number, handler in self.before.items():
            signal.signal(number, handler)


def train(run):
    """From the run's step to its last; False if it was asked to stop before."""
    s, workers = run.settings, nullcontext()
    if s.processes > 1:
        workers = ta.parallel.Workers(run.loss, run.model.parameters(), s.processes)
        run.accumulate = workers.accumulate
    stop = StopRequest()
    tokens = s.batch_size * s.block_size * s.grad_accumulation
    bar = tqdm(total=s.max_iters, initial=run.step, unit="step", dynamic_ncols=True, disable=None)
    tqdm.write(f"{'step':>8} {'train loss':>11} {'held-out':>9} {'lr':>9} {'grad norm':>10} {'tokens/s':>9}")
    try:
        with workers, bar, (run.directory / "log.jsonl").open("a", encoding="utf-8") as log:
            while run.step < s.max_iters and not stop.asked:
                began = time.perf_counter()
                line = run.update()
                line["tokens_per_s"] = round(tokens / (time.perf_counter() - began))
                if run.step % s.eval_interval == 0 or run.step == s.max_iters:
                    line["val_loss"] = run.held_out_loss(s.eval_iters)
                    run.watch()
                    run.save()
                    tqdm.write(
                        f"{run.step:8} {line['train_loss']:11.4f} {line['val_loss']:9.4f} {line['lr']:9.2e} "
                        f"{line['grad_norm']:10.3f} {line['tokens_per_s']:9,}"
                    )
                log.write(json.dumps(line) + "\n")
                log.flush()
                bar.set_postfix_str(f"loss {line['train_loss']:.3f}, {line['tokens_per_s']:,} tokens/s", refresh=False)
                bar.update()
        if stop.asked:
            run.save()
    finally:
        stop.restore()
    return not stop.asked


def main(argv=None):
    began = time.perf_counter()
    run = parse_args(argv)
    ta.tune_allocator()
    s, V = run.settings, len(run.tokenizer)
    uniform, unigram = math.log(V), entropy(run.text)
    print(f"text   {s.text or 'the manual of this Python'}: {len(run.text):,} characters, {V} different ones")
    sizes = f"{s.n_layer} layers, {s.n_head} heads, {s.n_embd} wide, block {s.block_size}"
    print(f"model  {sizes}: {run.model.num_parameters():,} parameters")
    print(f"run    {run.directory}" + (f", going on at step {run.step:,}" if run.step else ""))
    try:
        if run.step == 0:
            run.start()
            before = {"before": run.held_out_loss(s.eval_iters), "uniform": uniform, "unigram": unigram}
            run.write("result.json", json.dumps(before) + "\n")
            run.write("log.jsonl", "")
            run.watch()
            run.save()
            print(f"\nbefore training it writes:\n{textwrap.indent(run.sample(), '    ')}\n")
        else:
            run.write("config.json", json.dumps(asdict(s), indent=2) + "\n")
        with np.errstate(over="ignore", invalid="ignore"):  # what comes of it is checked, once a step
            finished = train(run)
    except FloatingPointError as error:
        sys.exit(
            f"stopped at step {run.step + 1}: {error}. The last good checkpoint is kept in {run.checkpoint}; "
            "try a smaller --learning-rate or --grad-clip"
        )
    except OSError as error:
        sys.exit(f"stopped at step {run.step}: {error}")
    except KeyboardInterrupt:
        sys.exit(f"\nstopped at once; --resume {run.directory} goes on from its last checkpoint")
    if not finished:
        print(f"\nstopped at step {run.step:,} and saved; go on with")
        print(f"    python {sys.argv[0]} --resume {run.directory}")
        return
    print(f"\nafter training it writes:\n{textwrap.indent(run.sample(), '    ')}\n")
    loss = run.held_out_loss(FINAL_EVAL_ITERS)
    expected = next((EXPECTED[name] for name, preset in PRESETS.items() if replace(s, text=None) == preset), None)
    print(f"held-out loss after {run.step:,} steps, nats per character (mean of {FINAL_EVAL_ITERS} batches)")
    print(f"    {loss:.3f}   this model" + (f" (expected: {expected} or less)" if expected else ""))
    print(f"    {unigram:.3f}   knowing how frequent each character is (unigram entropy)")
    print(f"    {uniform:.3f}   knowing nothing: ln V = ln {V}")
    result = plot_run.read_result(run.directory) | {"step": run.step, "val_loss": loss}
    run.write("result.json", json.dumps(result) + "\n")
    run.model.save_pretrained(run.directory / "pretrained", run.tokenizer)
    plot_run.plot_loss(run.directory)
    plot_run.plot_attention(run.directory)
    print(f"\n{time.perf_counter() - began:.0f} s in all. In {run.directory}:")
    print("    loss.png, attention.png, samples.txt, log.jsonl, checkpoint/")
    print("    pretrained/ loads in transformers: GPT2LMHeadModel.from_pretrained(...)")
    print("more pictures, and more text:")
    print(f"    python demos/plot_run.py {run.directory}")
    print(f"    python demos/sample.py --checkpoint {run.directory}")


def entropy(text):
    """Nats per character that remain if one knows how frequent each is."""
    shares = np.array(list(Counter(text).values())) / len(text)
    return float((shares * np.log(1 / shares)).sum())


if __name__ == "__main__":
    main()
