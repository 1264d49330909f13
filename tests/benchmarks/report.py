"""results.json -> README.md: tables one can read without knowing the code."""

from __future__ import annotations

from pathlib import Path

import growth
import workloads as wl
from worker import SUBJECTS

TITLES = {
    "Train:S": "S: training step",
    "Train:M": "M: training step",
    "Train:L": "L: training step",
    "Train:XL": "XL: training step",
    "Attention:128": "attention, T = 128",
    "Attention:512": "attention, T = 512",
    "Attention:2048": "attention, T = 2048",
    "Chain:10000": "chain of 10,000 tiny operations",
    "Generate:L:63": "generate 63 tokens at L",
    "Generate:L:500": "generate 500 tokens at L",
    "ByHand": "attention by hand, 5 x 1536",
}
LENGTHS = (128, 512, 2048)
REFERENCE = "PyTorch eager"
PROCESSES = "ours, two processes"
INTRODUCTION = """\
# Benchmarks

Each cell is the median time of one step, and in brackets its ratio to PyTorch eager: below 1 is faster.
All subjects start from the same float32 weights and batch, and agreed on losses and gradients to 1e-4.
Each has its own process and {threads} threads; they take turns (A B C A B C ...): drift hits all alike.
The floor is the step's bare matrix products, forward and backward, in NumPy with preallocated outputs.
Compare within a row, not with another machine. `python tests/benchmarks/run.py` measures and writes all this.
"""
SUBJECT_NOTES = """\
- **ours**: this project; the script calls `ta.tune_allocator()` once at its start, as a training script does.
  **ours, two processes**: each half of the batch in a process of its own (`ta.parallel.Workers`), with matrix
  products on one thread each; both on the same cores as everybody. **ours, default malloc**: no such call.
- **PyTorch eager**: nanoGPT's model with fused qkv and `F.scaled_dot_product_attention(is_causal=True)`;
  `AdamW` and `clip_grad_norm_` with their defaults, which on a CPU is the loop over tensors, neither foreach
  nor fused. **PyTorch compiled**: the same model under `torch.compile`. **PyTorch tuned**: eager, but with
  `AdamW(fused=True)` and the same malloc setting as ours: what an experienced user could ask for.
- **JAX jit**: one jitted step with donated buffers and `jax.nn.dot_product_attention`.
  **HIPS autograd**: plain NumPy calls, AdamW in NumPy.
- A training step is forward, backward, clip, AdamW. Attention: one sequence, 4 heads of 64, causal, forward
  and backward. Chain: alternately `y * 0.999` and `y + 0.001` on one float32 number, forward and backward;
  compilers are left out, they would fold it away.
- Generation starts from one token; PyTorch runs nanoGPT's loop, without a cache. 63 tokens fit into the block
  of 64; 500 slide past it, as in nanoGPT's `sample.py`.
"""


def time_text(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if seconds * scale >= 1 or unit == "µs":
            return f"{seconds * scale:.3g} {unit}"
    raise AssertionError


def megabytes(b: float) -> str:
    return f"{b / 2**20:,.0f} MB"


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(cells) + " |" for cells in ([*head], *rows)]
    lines.insert(1, "|---" + "|--:" * (len(head) - 1) + "|")
    return "\n".join(lines) + "\n"


def get(results: dict, spec: str, subject: str, key: str = "seconds") -> float | None:
    return results.get(spec, {}).get(subject, {}).get(key)


def ratio(results: dict, spec: str, to: str = REFERENCE, key: str = "seconds", of: str = "ours") -> float | None:
    ours, other = (get(results, spec, subject, key) for subject in (of, to))
    return None if ours is None or other is None else ours / other


def cells(results: dict, spec: str, key: str, text) -> list[str]:
    reference = get(results, spec, REFERENCE, key)

    def cell(subject: str) -> str:
        amount = get(results, spec, subject, key)
        if amount is None:
            return "failed" if "failed" in results[spec].get(subject, {}) else "—"
        behind = f" ({amount / reference:.2f})" if reference else ""
        return f"**{text(amount)}{behind}**" if subject == "ours" else text(amount) + behind

    return [cell(subject) for subject in SUBJECTS]


def targets(results: dict) -> list[tuple[str, float | None, float]]:
    """(what, measured, at most)."""
    phases = {s: get(results, f"Train:{s}", "ours", "phases") for s in wl.SIZES}
    return [
        ("S, time / PyTorch eager", ratio(results, "Train:S"), 0.5),
        ("M, time / PyTorch eager", ratio(results, "Train:M"), 0.9),
        ("L, time / PyTorch eager", ratio(results, "Train:L"), 1.0),
        ("XL, time / PyTorch eager", ratio(results, "Train:XL"), 1.1),
        ("L, time / floor", ratio(results, "Train:L", to="floor"), 1.7),
        *(
            (f"{s}, in two processes, time / PyTorch eager", ratio(results, f"Train:{s}", of=PROCESSES), limit)
            for s, limit in (("S", 0.5), ("M", 0.9), ("L", 1.0), ("XL", 1.1))
        ),
        ("L, in two processes, time / floor", ratio(results, "Train:L", of=PROCESSES, to="floor"), 1.7),
        *((f"{s}, time / JAX jit", ratio(results, f"Train:{s}", to="JAX jit"), 1.0) for s in ("S", "M", "L")),
        *((f"attention, T = {T}, time / PyTorch eager", ratio(results, f"Attention:{T}"), 1.0) for T in LENGTHS),
        ("tiny operation, time / PyTorch eager", ratio(results, "Chain:10000"), 0.5),
        *((f"generate {n}, time / PyTorch eager", ratio(results, f"Generate:L:{n}"), 0.5) for n in (63, 500)),
        ("L, peak memory / PyTorch eager", ratio(results, "Train:L", key="peak"), 1.0),
        ("XL, peak memory / PyTorch eager", ratio(results, "Train:XL", key="peak"), 1.0),
        *((f"{s}, backward / forward", p and p["backward"] / p["forward"], 2.5) for s, p in phases.items()),
    ]


def write(results: dict, folder: Path) -> None:
    m = results["machine"]
    specs = [spec for spec in TITLES if spec in results]

    def by_subject(key: str, text) -> str:
        return table(["", *SUBJECTS], [[TITLES[s], *cells(results, s, key, text)] for s in specs])

    parts = [INTRODUCTION.format(threads=m["threads"])]
    versions = ", ".join(f"{package} {version}" for package, version in m["versions"].items())
    parts.append(
        f"Measured {m['date']} at commit {m['commit']}: {m['cpu']} ({m['vectors']}), {m['cores']} cores, "
        f"{m['threads']} threads for every subject; {m['system']}; Python {m['python']}, NumPy {m['numpy']}, "
        f"{versions}.\n"
    )
    parts += ["## Time\n", by_subject("seconds", time_text), SUBJECT_NOTES]
    reasons = {s: r["skipped"] for spec in specs for s, r in results[spec].items() if "skipped" in r}
    parts += [f"Skipped: {s}, {why}.\n" for s, why in reasons.items() if why.endswith("not installed")]
    parts.append("| size | T | B | layers | heads | width | vocabulary | parameters |\n|---|" + "--:|" * 7)
    for name, s in wl.SIZES.items():
        sizes = (s.T, s.B, s.n_layer, s.n_head, s.n_embd, s.vocab)
        parts[-1] += f"\n| {name} | {' | '.join(map(str, sizes))} | {s.n_params:,} |"
    parts[-1] += "\n"

    rows = []
    for what, measured, limit in targets(results):
        verdict = "not measured" if measured is None else "met" if measured <= limit else "**missed**"
        rows.append([what, f"{limit:.2f}", "—" if measured is None else f"{measured:.2f}", verdict])
    parts += ["## Targets\n", table(["ratio", "at most", "measured", ""], rows)]

    rows = []
    for spec in (s for s in specs if s.startswith("Generate")):
        tokens = int(spec.rpartition(":")[2])
        times = [get(results, spec, subject) for subject in ("ours", REFERENCE)]
        rows.append([TITLES[spec], *(f"{tokens / t:,.0f}" if t else "—" for t in times)])
    if rows:
        parts += ["## Generation, tokens per second\n", table(["", "ours", REFERENCE], rows)]
    if chain := {s: r["seconds"] for s, r in results.get("Chain:10000", {}).items() if "seconds" in r}:
        costs = "; ".join(f"{s} {t / 10_000 * 1e6:.2f} µs" for s, t in chain.items())
        parts.append(f"Cost per tiny operation, forward and backward: {costs}.\n")

    rows = []
    for spec in (s for s in specs if s.startswith("Train")):
        for subject in ("ours", "ours, default malloc", REFERENCE):
            if phases := get(results, spec, subject, "phases"):
                ratio_text = f"{phases['backward'] / phases['forward']:.2f}"
                faults = f"{get(results, spec, subject, 'page_faults'):,.0f}"
                rows.append([f"{spec[6:]}, {subject}", *map(time_text, phases.values()), ratio_text, faults])
    head = ["", "forward", "backward", "clip", "AdamW", "backward / forward", "page faults"]
    parts += ["## Where a training step goes\n", table(head, rows)]

    parts.append("## Peak resident memory\n")
    parts.append("Of a fresh process per cell, interpreter and imports included (and compilation, for compilers).\n")
    parts.append(by_subject("peak", megabytes))
    parts.append("The same beyond what the imports take: weights, optimizer state, activations, gradients.\n")
    for r in (r for spec in specs for r in results[spec].values() if "peak" in r):
        r["beyond"] = max(r["peak"] - r["imported"], 1)
    parts.append(by_subject("beyond", megabytes))

    if "growth" in results:
        growth.plot(results["growth"], folder / "growth.png")
        parts.append("## Growth\n\n![time and memory against operations, T and parameters](growth.png)\n")
        parts.append("The constant of the leading term, fitted over the upper half of the points:\n")
        rows = []
        for axis, by_name in growth.constants(results["growth"]).items():
            for subject, (seconds, amount) in by_name.items():
                reached = results["growth"][axis][subject]["counts"][-1]
                what = f"per {growth.PER[axis]} (up to {reached:,}), {subject}"
                rows.append([what, growth.said(seconds, "seconds"), growth.said(amount, "bytes")])
        parts.append(table(["", "time", "memory"], rows))
    if (findings := folder / "findings.md").exists():  # written by hand: what explains a missed target
        parts.append(findings.read_text())
    (folder / "README.md").write_text("\n".join(parts))
