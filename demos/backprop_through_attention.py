"""The backward pass of causal self-attention, step by step, on the three tokens of `attention_by_hand.py`.

Every gradient is printed three ways: as the engine computed it by running the backward pass, as one derives it by hand
(NumPy, the textbook's formulas), and as a finite difference. Then the pictures: forward graph, backward graph, the
ladder that shows both, and the page that plays them.

    python demos/backprop_through_attention.py [--out FOLDER]
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill

import numpy as np
from _common import columns

import tinygrad_attn as ta
from tinygrad_attn.viz.drawing import DotNotFound

TOKENS = ["她", "妈妈", "开心"]  # she, mother, happy
X = np.array([[1, 0], [0, 1], [1, 1]], np.float64)
WEIGHTS = {
    "W_Q": np.array([[1, 0], [0, 1]], np.float64),
    "W_K": np.array([[0, 1], [1, 0]], np.float64),
    "W_V": np.array([[1, 0], [0, 1]], np.float64),
}
BLOCKED = ta.nn.causal_mask(3)
D = 2  # the width of a query and of a key


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("backprop_through_attention"), metavar="FOLDER")
    out = parser.parse_args(arguments).out

    attention, loss = computed()
    backward = ta.viz.trace_backward(loss, names=attention)
    value = {node.name: node.tensor.numpy() for node in backward.forward.nodes}
    by_hand = derived_by_hand(value)

    print(f"Causal attention of 3 tokens, width {D}; loss = Σ output² = {loss.item():.4f}\n")
    print("The backward pass in the engine's order:\n")
    row("step", "formula")
    row("", "autograd", "by hand", "finite difference", "largest difference")
    worst = 0.0
    for i, step in enumerate(backward.steps, start=1):
        autograd = step.tensor.numpy()
        hand, finite = by_hand[step.name], finite_difference(step.name, autograd.shape)
        difference = max(np.abs(autograd - hand).max(), np.abs(autograd - finite).max())
        worst = max(worst, difference)
        row(f"{i:>2}", f"{step.name} = {step.formula}")
        row("", *map(lines, (autograd, hand, finite)), f"{difference:.0e}")
    print(f"\n   largest difference of all: {worst:.0e}")
    assert worst < 1e-8

    dscores = next(step.tensor.numpy() for step in backward.steps if step.name == "dscores")
    two_facts(dscores, value["weights"])
    write(out, attention, loss)


def computed() -> tuple[ta.nn.SelfAttention, ta.Tensor]:
    """The layer and the loss whose graph everything below reads."""
    attention = ta.nn.SelfAttention(D, causal=True)
    for name, weight in WEIGHTS.items():
        setattr(attention, name, ta.nn.Parameter(weight))
    output = attention(ta.Tensor(X, requires_grad=True, name="X"))
    return attention, (output**2).sum().named("loss")


# ---- the same gradients without the engine ----


def derived_by_hand(value: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The textbook's backward pass in NumPy, from the forward values."""
    Q, K, V, A, O = (value[name] for name in ("Q", "K", "V", "weights", "output"))  # noqa: E741
    d: dict[str, np.ndarray] = {"loss": np.ones(()), "power": np.ones_like(O)}  # loss = Σ output²
    d["output"] = 2 * O
    d["weights"] = d["output"] @ V.T  # output = weights V
    d["V"] = A.T @ d["output"]
    d["masked"] = A * (d["weights"] - (d["weights"] * A).sum(axis=1, keepdims=True))  # weights = softmax(masked)
    d["scores"] = np.where(BLOCKED, 0, d["masked"])  # masked = scores, or -inf where blocked
    d["matmul"] = d["scores"] / np.sqrt(D)  # scores = Q Kᵀ / √d
    d["Q"] = d["matmul"] @ K
    d["Kᵀ"] = Q.T @ d["matmul"]
    d["K"] = d["Kᵀ"].T
    d["X₁"], d["W_V"] = d["V"] @ WEIGHTS["W_V"].T, X.T @ d["V"]  # V = X W_V
    d["X₂"], d["W_K"] = d["K"] @ WEIGHTS["W_K"].T, X.T @ d["K"]  # K = X W_K
    d["X₃"], d["W_Q"] = d["Q"] @ WEIGHTS["W_Q"].T, X.T @ d["Q"]  # Q = X W_Q
    d["X"] = d["X₁"] + d["X₂"] + d["X₃"]  # X goes three ways
    return {f"d{name}": gradient for name, gradient in d.items()}


def nudged_loss(name: str, nudge: np.ndarray) -> float:
    """The loss, computed in NumPy alone, when `nudge` is added to one value; X₁, X₂, X₃ are X as V, K, Q see it."""

    def see(here: str, value: np.ndarray) -> np.ndarray:
        return value + nudge if here == name else value

    x = see("X", X)
    Q = see("Q", see("X₃", x) @ see("W_Q", WEIGHTS["W_Q"]))
    K = see("K", see("X₂", x) @ see("W_K", WEIGHTS["W_K"]))
    V = see("V", see("X₁", x) @ see("W_V", WEIGHTS["W_V"]))
    scores = see("scores", see("matmul", Q @ see("Kᵀ", K.T)) / np.sqrt(D))
    masked = see("masked", np.where(BLOCKED, -np.inf, scores))
    exponentials = np.exp(masked - masked.max(axis=1, keepdims=True))
    weights = see("weights", exponentials / exponentials.sum(axis=1, keepdims=True))
    output = see("output", weights @ V)
    return float(see("loss", see("power", output**2).sum()))


def finite_difference(step: str, shape: tuple[int, ...], eps: float = 1e-6) -> np.ndarray:
    """(loss(value + eps) - loss(value - eps)) / 2 eps, number by number."""
    slopes = np.zeros(shape)
    for index in np.ndindex(shape):
        nudge = np.zeros(shape)
        nudge[index] = eps
        slopes[index] = (nudged_loss(step[1:], nudge) - nudged_loss(step[1:], -nudge)) / (2 * eps)
    return slopes


# ---- what the page lets one see ----


def two_facts(dscores: np.ndarray, weights: np.ndarray) -> None:
    above = np.abs(dscores[BLOCKED]).max()
    sums = np.abs(dscores.sum(axis=1)).max()
    print("\nTwo facts about dscores:\n")
    row(["", *TOKENS], ["dscores", *lines(dscores)], ["weights", *lines(weights)])
    say(
        f"1. It is zero above the diagonal: the largest |dscores| there is {above:.1f}. The mask had replaced those"
        " scores by -inf, a constant, so the loss does not depend on them."
    )
    say(
        f"2. Its rows sum to zero: the largest |row sum| is {sums:.0e}. Softmax does not change when a whole row of"
        " scores moves up or down together, so moving it costs nothing: what one score gains the others lose."
    )
    assert above == 0
    assert sums < 1e-15


def write(out: Path, attention: ta.nn.Module, loss: ta.Tensor) -> None:
    pictures = {
        "forward.svg": ta.viz.draw_graph(loss, names=attention),
        "backward.svg": ta.viz.draw_backward(loss, style="graph", names=attention),
        "ladder.svg": ta.viz.draw_backward(loss, style="ladder", names=attention),
    }
    print("\nWritten:\n")
    for name, picture in pictures.items():
        try:
            print(f"   {ta.viz.save(picture, out / name)}")
        except DotNotFound as missing:
            print(f"   no {name}: {str(missing).splitlines()[0]}")
            print(f"   {ta.viz.save(picture, (out / name).with_suffix('.dot'))}")
    page = out / "page.html"
    title = "Causal self-attention, 3 tokens"
    ta.viz.explain(loss, page, names=attention, tokens=TOKENS, title=title)
    print(f"   {page}   open it in a browser and step with the arrow keys; ? lists the others")


# ---- printing ----


def lines(array: np.ndarray) -> list[str]:
    """One line of text per row of numbers."""
    return ["  ".join(f"{round(x, 4) + 0:7.4f}" for x in line) for line in np.atleast_2d(array)]


def row(*cells: str | list[str]) -> None:
    """Cells side by side, each of one or several lines; the first is narrow."""
    texts = [[cell] if isinstance(cell, str) else cell for cell in cells]
    for i in range(max(map(len, texts))):
        line = [text[i] if i < len(text) else "" for text in texts]
        print("   " + "".join(t + " " * ((28 if n else 7) - columns(t)) for n, t in enumerate(line)).rstrip())


def say(text: str) -> None:
    print("\n" + fill(text, 100, initial_indent="   ", subsequent_indent="      "))


if __name__ == "__main__":
    main()
