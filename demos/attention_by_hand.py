"""Self-attention by hand: three tokens of two numbers each, then five of 1,536, forward and backward.

One call of `ta.nn.SelfAttention` computes everything; the steps are read off the graph that it recorded.
Every number that is printed is checked.

    python demos/attention_by_hand.py
"""

import argparse
from collections.abc import Sequence
from textwrap import indent
from time import perf_counter

import numpy as np
from _common import columns

import tinygrad_attn as ta

TOKENS = ["她", "妈妈", "开心"]  # she, mother, happy

# Vectors of the three tokens, and weights that turn them into the queries, keys and values of the example.
X = np.array([[1, 0], [0, 1], [1, 1]], np.float32)
WEIGHTS = {
    "W_Q": np.array([[1, 0], [0, 1]], np.float32),  # a query is the vector itself
    "W_K": np.array([[0, 1], [1, 0]], np.float32),  # a key has its two numbers exchanged
    "W_V": np.array([[1, 0], [0, 1]], np.float32),  # a value is the vector itself
}


def main() -> None:
    three_tokens()
    causal_mask()
    full_size()
    print("\nEvery number above was checked.")


def three_tokens() -> None:
    attention = ta.nn.SelfAttention(2, scale=False)  # without the division by √d the numbers stay round
    attention.load_state_dict(WEIGHTS)
    steps = named_values(attention(ta.Tensor(X, name="X")))
    Q, K, V, scores, weights, output = (steps[n].numpy() for n in "Q K V scores weights output".split())

    say("她 she, 妈妈 mother, 开心 happy: three tokens, each a vector of two numbers")

    heading("1  Three roles")
    say("Q = X W_Q   what a token looks for\nK = X W_K   the label that others find it by")
    say("V = X W_V   what it hands over\n")
    roles = zip(X, Q, K, V, strict=True)
    table(["X", "Q", "K", "V"], TOKENS, [[vector(row) for row in rows] for rows in roles])
    check(Q, [[1, 0], [0, 1], [1, 1]])
    check(K, [[0, 1], [1, 0], [1, 1]])
    check(V, [[1, 0], [0, 1], [1, 1]])

    heading("2  Scores")
    say("scores = Q Kᵀ   how well each query (row) matches each key (column)\n")
    table(TOKENS, TOKENS, texts(scores, 0))
    print()
    for token, key, score in zip(TOKENS, K, scores[2], strict=True):
        products = " + ".join(f"{q:.0f}×{k:.0f}" for q, k in zip(Q[2], key, strict=True))
        say(f"开心 · {left(token, 4)} = {vector(Q[2])} · {vector(key)} = {products} = {score:.0f}")
    check(scores, [[0, 1, 1], [1, 0, 1], [1, 1, 2]])

    heading("3  Weights")
    say("weights = softmax of each row of scores: none is negative, and each row sums to 1\n")
    table([*TOKENS, "sum"], TOKENS, texts(np.c_[weights, weights.sum(axis=1)], 2))
    check(weights[2], [0.21, 0.21, 0.58], decimals=2)
    check(weights.sum(axis=1), [1, 1, 1], decimals=6)

    heading("4  Output")
    say("output = weights V   each token's new vector is a mix of the values\n")
    table(["before", "after"], TOKENS, [[vector(x), vector(o, 2)] for x, o in zip(X, output, strict=True)])
    mix = " + ".join(f"{w:.2f} × {vector(v)}" for w, v in zip(weights[2], V, strict=True))
    say(f"\n开心 = {mix} = {vector(output[2], 2)}")
    check(output[2], [0.79, 0.79], decimals=2)


def causal_mask() -> None:
    heading("5  Causal mask")
    say("a token sees itself and those before it, never a later one\n")
    blocked = ta.nn.causal_mask(5)
    tokens = [f"token {i}" for i in range(1, 6)]
    table(tokens, tokens, [["-" if cell else "sees" for cell in row] for row in blocked])
    check(~blocked, np.tril(np.ones((5, 5))))

    attention = ta.nn.SelfAttention(2, causal=True, scale=False)
    attention.load_state_dict(WEIGHTS)
    output, weights = attention(ta.Tensor(X), return_weights=True)
    say("\nthe three tokens again: scores of later tokens are set to -inf, which softmax turns into 0\n")
    rows = zip(texts(weights.numpy(), 2), output.numpy(), strict=True)
    table([*TOKENS, "output"], TOKENS, [[*row, vector(mixed, 2)] for row, mixed in rows])
    check(weights, [[1, 0, 0], [0.73, 0.27, 0], [0.21, 0.21, 0.58]], decimals=2)
    check(weights.numpy()[blocked[:3, :3]], [0, 0, 0])
    check(output, [[1, 0], [0.73, 0.27], [0.79, 0.79]], decimals=2)


def full_size(T: int = 5, d: int = 1536) -> None:
    """The same layer at full size, against the textbook's formulas in plain NumPy and float64."""
    rng = np.random.default_rng(0)
    attention = ta.nn.SelfAttention(d, causal=True, rng=rng)
    x = ta.Tensor(rng.standard_normal((T, d), np.float32), requires_grad=True, name="X")
    dO = rng.standard_normal((T, d), np.float32)

    began = perf_counter()
    output = attention(x)
    forward = perf_counter() - began
    steps = named_values(output)
    began = perf_counter()
    gradients = ta.grad(output, list(steps.values()), grad_outputs=ta.Tensor(dO))
    backward = perf_counter() - began
    value = {name: step.numpy() for name, step in steps.items()}
    value |= {f"d{name}": grad.numpy() for name, grad in zip(steps, gradients, strict=True)} | {"dO": dO}
    X, W_Q, W_K, W_V, Q, K, V, scores, masked, A, dV, dA, dmasked, dS, dQ, dK = (
        value[name].astype(np.float64)
        for name in "X W_Q W_K W_V Q K V scores masked weights dV dweights dmasked dscores dQ dK".split()
    )
    blocked = ta.nn.causal_mask(T)

    def step(name: str, text: str, expected: np.ndarray) -> None:
        got, operands = value[name], text.removesuffix(f" / √{d}").split()
        shapes = ""
        if len(operands) == 2:  # a product of matrices
            one, two = (value[o.rstrip("ᵀ")].shape[:: -1 if "ᵀ" in o else 1] for o in operands)
            shapes = f"{one!s:>12} @ {two!s:<12} ->"
        finite = np.isfinite(expected)
        error = np.abs(got[finite] - expected[finite]).max() / np.abs(expected[finite]).max()
        print(f"   {name:<8} = {text:<42} {shapes:<30} {got.shape!s:<12} {error:7.0e}")
        assert got.shape == expected.shape and error < 1e-5, (name, got.shape, error)
        check(got[~finite], expected[~finite])

    heading(f"6  Full size: {T} tokens of {d:,} numbers, three weights of {d} x {d}")
    say(f"{attention.num_parameters():,} parameters; now causal, and the scores divided by √{d}")
    say("last column: largest difference from the same formula in float64, relative to the largest value\n")
    say(f"forward, {forward * 1000:.0f} ms")
    step("Q", "X W_Q", X @ W_Q)
    step("K", "X W_K", X @ W_K)
    step("V", "X W_V", X @ W_V)
    step("scores", f"Q Kᵀ / √{d}", Q @ K.T / d**0.5)
    step("masked", "-inf where blocked, else scores", np.where(blocked, -np.inf, scores))
    step("weights", "softmax(masked)", np.exp(masked) / np.exp(masked).sum(axis=1, keepdims=True))
    step("output", "weights V", A @ V)
    say(f"\nbackward, {backward * 1000:.0f} ms, from dO {dO.shape}, which comes from the layers above")
    step("dV", "weightsᵀ dO", A.T @ dO)
    step("dweights", "dO Vᵀ", dO @ V.T)
    step("dmasked", "weights * (dweights - Σ dweights * weights)", A * (dA - (dA * A).sum(1, keepdims=True)))
    step("dscores", "0 where blocked, else dmasked", np.where(blocked, 0, dmasked))
    step("dQ", f"dscores K / √{d}", dS @ K / d**0.5)
    step("dK", f"dscoresᵀ Q / √{d}", dS.T @ Q / d**0.5)
    step("dW_Q", "Xᵀ dQ", X.T @ dQ)
    step("dW_K", "Xᵀ dK", X.T @ dK)
    step("dW_V", "Xᵀ dV", X.T @ dV)
    step("dX", "dQ W_Qᵀ + dK W_Kᵀ + dV W_Vᵀ", dQ @ W_Q.T + dK @ W_K.T + dV @ W_V.T)


def named_values(output: ta.Tensor) -> dict[str, ta.Tensor]:
    """The named tensors, constants aside, that the output was computed from: each knows its operands."""
    found: dict[str, ta.Tensor] = {}
    waiting = [output]
    while waiting:
        tensor = waiting.pop()
        if tensor.name and (tensor.op or tensor.requires_grad):
            found[tensor.name] = tensor
        waiting += [operand for operand in tensor.args or () if isinstance(operand, ta.Tensor)]
    return found


def check(got: ta.Tensor | np.ndarray, expected: object, decimals: int = 0) -> None:
    """Equal to what is printed: to within half a unit of the last decimal, or exactly for whole numbers."""
    tolerance = 0.5 * 10.0**-decimals if decimals else 0
    np.testing.assert_allclose(np.asarray(got), expected, rtol=0, atol=tolerance)


# ---- printing: a Chinese character is two columns wide ----


def left(text: str, width: int) -> str:
    return text + " " * (width - columns(text))


def centre(text: str, width: int) -> str:
    before = (width - columns(text)) // 2
    return left(" " * before + text, width)


def vector(row: np.ndarray, decimals: int = 0) -> str:
    return "[" + ", ".join(f"{x:.{decimals}f}" for x in row) + "]"


def texts(array: np.ndarray, decimals: int) -> list[list[str]]:
    return [[f"{x:.{decimals}f}" for x in row] for row in array]


def say(text: str) -> None:
    print(indent(text, "   "))


def heading(title: str) -> None:
    print(f"\n{title}\n")


def table(across: Sequence[str], down: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    width = 2 + max(columns(text) for line in [across, *cells] for text in line)
    for name, line in [("", across), *zip(down, cells, strict=True)]:
        say(f"{left(name, 8)} " + "".join(centre(text, width) for text in line).rstrip())


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    main()
