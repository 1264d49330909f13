"""Draws the pictures of the README: attention forward, backward and as a ladder, a block, and who looks at whom.

Nothing in the pictures is typed by hand: boxes, lines and formulas come from running the code that they show.

    python demos/render_graphs.py                  # writes to demos/pictures
    python demos/render_graphs.py --out FOLDER
"""

import argparse
import sys
from io import TextIOWrapper
from pathlib import Path

import numpy as np

import tinygrad_attn as ta

if isinstance(sys.stdout, TextIOWrapper):  # any text can be printed, whatever the locale
    sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")

TOKENS = ["她", "妈妈", "开心"]  # she, mother, happy
HERE = Path(__file__).parent


def attention() -> tuple[ta.Tensor, ta.Tensor]:
    """The loss and the attention weights of the three tokens in causal self-attention."""
    X = ta.Tensor([[1, 0], [0, 1], [1, 1]], dtype=np.float32, requires_grad=True, name="X")
    layer = ta.nn.SelfAttention(2, causal=True)
    weights = {"W_Q": [[1, 0], [0, 1]], "W_K": [[0, 1], [1, 0]], "W_V": [[1, 0], [0, 1]]}
    layer.load_state_dict({name: np.array(rows, np.float32) for name, rows in weights.items()})
    output, attended = layer(X, return_weights=True)
    return (output**2).sum().named("loss"), attended


def block() -> ta.Tensor:
    """The output of one transformer block with two heads."""
    x = ta.Tensor(np.ones((1, 3, 4), np.float32), requires_grad=True, name="x")
    return ta.nn.Block(4, 2, rng=np.random.default_rng(0))(x).named("output")


def drawings() -> dict[str, ta.viz.Drawing]:
    """Every picture of a graph, by the name of its file."""
    loss, _ = attention()
    return {
        "attention_forward": ta.viz.draw_graph(loss, show_values=True, precision=2),
        "attention_ladder": ta.viz.draw_backward(loss),
        "attention_backward": ta.viz.draw_backward(loss, style="graph"),
        "block_collapsed": ta.viz.draw_graph(block(), depth=1),
        "block_open": ta.viz.draw_graph(block()),
    }


def heads() -> np.ndarray:
    """The weights (2, 3, 3) of two untrained heads on the three tokens."""
    rng = np.random.default_rng(1)
    layer = ta.nn.MultiHeadAttention(8, 2, rng=rng)
    _, weights = layer(ta.Tensor(rng.standard_normal((1, 3, 8))), return_weights=True)
    return weights.numpy()[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=HERE / "pictures", help="folder to write to")
    out = parser.parse_args().out
    for name, drawing in drawings().items():
        ta.viz.save(drawing, out / f"{name}.dot")
        path = ta.viz.save(drawing, out / f"{name}.svg")
        print(f"{path}  {drawing.source.count('label=<<TABLE')} boxes, {drawing.source.count(' -> ')} lines")
    loss, weights = attention()
    for name, figure in {
        "attention_weights": ta.viz.attention_heatmap(weights, TOKENS),
        "two_heads": ta.viz.attention_heatmap(heads(), TOKENS, titles=["head 0", "head 1"]),
    }.items():
        print(ta.viz.save(figure, out / f"{name}.png"))

    print("\nThe backward pass, as the rules print it:")
    steps = ta.viz.trace_backward(loss).steps
    print("\n".join(f"  {step.name} = {step.formula}" for step in steps))
    assert {s.name: s.formula for s in steps}["dV"] == "weightsᵀ @ doutput"


if __name__ == "__main__":
    main()
