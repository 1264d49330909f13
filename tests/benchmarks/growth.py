"""How time and memory grow: with the number of operations, with T, and with the number of parameters."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import workloads as wl

SUBJECTS = ["ours", "PyTorch eager"]
GPT = "64,12,4,4,{}"  # T, B, layers, heads of L; the width varies

# name: (what is counted, the job for a value, values, value -> count, power of the leading term)
AXES = {
    "operations": ("operations", "Chain:{}", [1_000, 10_000, 100_000, 1_000_000], int, 1),
    "T": ("tokens T", "Attention:{}", [64, 128, 256, 512, 1024, 2048, 4096], int, 2),
    "parameters": (
        "parameters",
        f"Train:{GPT}",
        [32, 64, 128, 256, 512],
        lambda width: wl.size(GPT.format(width)).n_params,
        1,
    ),
}

PER = {"operations": "operation", "T": "T²", "parameters": "parameter"}


def measure(measure_job, *, quick: bool, rounds: int, **options) -> dict:
    """{axis: {subject: {"counts", "seconds", "bytes"}}}; bytes are the peak beyond what the imports take."""
    growth: dict[str, dict] = {}
    for axis, (_, spec, values, count, _) in AXES.items():
        by_subject = growth[axis] = {s: {"counts": [], "seconds": [], "bytes": []} for s in SUBJECTS}
        for value in values[:2] if quick else values:
            print("growth", spec.format(value), flush=True)
            results = measure_job(spec.format(value), SUBJECTS, rounds=-(-rounds // 3), **options)
            for subject, r in results.items():
                print(f"  {subject:22}", f"{r['seconds'] * 1e3:9.2f} ms" if "seconds" in r else r, flush=True)
                if "seconds" in r:
                    curve = by_subject[subject]
                    curve["counts"].append(count(value))
                    curve["seconds"].append(r["seconds"])
                    curve["bytes"].append(r["peak"] - r["imported"])
    return growth


def constant(counts: list, amounts: list, power: int) -> float:
    """c of amount = a + c * count**power, over the upper half of the counts, relative errors alike."""
    n, y = (np.asarray(v[-max(2, (len(v) + 1) // 2) :], float) for v in (counts, amounts))
    basis = np.stack([np.ones_like(n), n**power], axis=1)
    return float(np.linalg.lstsq(basis / y[:, None], np.ones_like(y), rcond=None)[0][1])


def constants(growth: dict) -> dict[str, dict[str, tuple[float, float]]]:
    """{axis: {subject: (seconds, bytes) per operation, per T^2, or per parameter}}."""
    return {
        axis: {
            subject: tuple(constant(c["counts"], c[key], AXES[axis][-1]) for key in ("seconds", "bytes"))
            for subject, c in by_subject.items()
            if len(c["counts"]) > 1
        }
        for axis, by_subject in growth.items()
    }


def said(amount: float, key: str) -> str:
    """An amount in the unit it is read in: 9.2 µs, 125 ns, 1,690 bytes."""
    if key == "bytes":
        return f"{amount:,.0f} bytes" if amount >= 10 else f"{amount:.2g} bytes"
    return f"{amount * 1e6:.3g} µs" if amount >= 1e-6 else f"{amount * 1e9:.3g} ns"


def plot(growth: dict, path: Path) -> None:
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    fitted = constants(growth)
    figure, axes = plt.subplots(2, 3, figsize=(13, 8), layout="constrained")
    for column, (axis, by_subject) in enumerate(growth.items()):
        counted, _, _, _, power = AXES[axis]
        for row, (key, scale) in enumerate((("seconds", 1.0), ("bytes", 2**-20))):
            ax = axes[row, column]
            for subject, color in zip(SUBJECTS, ("#1b6ca8", "#c8553d"), strict=True):
                if subject not in fitted[axis]:
                    continue
                c = fitted[axis][subject][row]
                n, y = (np.asarray(by_subject[subject][k], float) for k in ("counts", key))
                label = f"{subject}: {said(c, key)} per {PER[axis]}"
                ax.loglog(n, y * scale, "o-", color=color, label=label)
                ax.loglog(n, c * n**power * scale, ":", color=color, alpha=0.7)  # the leading term alone
            amounts = [y * scale for curve in by_subject.values() for y in curve[key]]
            span = max(amounts) / min(amounts)
            ax.set_ylim(min(amounts) / 2, max(amounts) * span**0.35)  # room for the legend
            ax.set_title(("time" if key == "seconds" else "memory") + f" against {counted}", fontsize=11)
            ax.set_xlabel(counted)
            ax.set_ylabel("seconds, forward and backward" if key == "seconds" else "MB at the peak, beyond imports")
            ax.grid(True, which="major", alpha=0.3)
            ax.legend(fontsize=9, loc="upper left")
    figure.suptitle(
        "Left: a chain of tiny operations. Middle: attention alone, 4 heads of 64, causal. "
        "Right: a training step, T 64, B 12, 4 layers, width 32 to 512.\n"
        "Dotted: the leading term alone (linear, quadratic, linear), with the constant in the legend.",
        fontsize=10.5,
    )
    figure.savefig(path, dpi=110)
    plt.close(figure)
