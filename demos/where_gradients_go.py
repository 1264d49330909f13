"""Where gradients go: the way of a loss back through a small model, before, while and after it learns to look.

The model of `who_is_she.py` again. Behind each layer of attention a gradient has four ways back: past the layer,
through the values (what a token gave), through the queries and through the keys (who looked at whom). Together
they are all of it. At first nearly everything goes past; learning where to look takes the way of the scores.

    python demos/where_gradients_go.py [--language en] [--seed 1]
"""

import argparse
from collections.abc import Iterator

import numpy as np
from _common import table
from who_is_she import Reader, Text, learn, read_and_asked

import tinygrad_attn as ta

Gradients = dict[str, np.ndarray]


def main(seed: int = 0, language: str = "zh") -> None:
    rng = np.random.default_rng(seed)
    read, asked = read_and_asked(6000, rng, language)
    model = Reader(read, 2, rng)
    stages, ways, done = {}, {}, 0
    for stage, steps in ("untrained", 0), ("learning", 50), ("trained", 350):
        learn(model, read, steps, rng)
        done += steps
        loss, gradient = gradients(model, asked)
        print(f"{stage:<10}{done:4} steps   loss {loss:.6f}")
        stages[stage] = gradient
        for i in range(2):
            ways[stage, i] = four_ways(model, i, gradient)

    print("\nThe ways back behind each layer, each length relative to that of their sum:\n")
    head = ["", "layer", "past it", "values", "queries", "keys", "scores : values"]
    scores = {key: length(Q + K) / length(V) for key, (_, V, Q, K) in ways.items()}
    rows = [
        [stage, i + 1, *(length(way) / length(sum(four)) for way in four), scores[stage, i]]
        for (stage, i), four in ways.items()
    ]
    table(head, *rows)
    print("\n  scores: through queries and keys together.")

    print("\nWhat it reaches, as shares of the lengths of all tokens' gradients, mean over sentences:\n")
    reached = {stage: tokens(gradient["x_0"], asked) for stage, gradient in stages.items()}
    table(["", *stages], *([part, *(reached[s][part] for s in stages)] for part in reached["trained"]))

    print("\nParameters, each length relative to that of the gradient of all:\n")
    shares = {stage: parameters(model, gradient) for stage, gradient in stages.items()}
    table(["", *stages], *([name, *(shares[s][name] for s in stages)] for name in shares["trained"]))
    print("\n  The keys' bias gets none: it adds one number to a whole row of scores, which softmax doesn't see.")

    for i in range(2):
        assert scores["untrained", i] < 0.2 < 0.5 < scores["learning", i], "scores were not what was learned"
    at_first, at_last = reached["untrained"], reached["trained"]
    found = at_last["the person meant"] + at_last["that person's profession"]
    missed = at_last["the other person"] + at_last["the other's profession"]
    assert at_first["the pronoun"] > 0.5 > at_last["the pronoun"]
    assert found > 0.5 > 2 * missed, "the gradient did not reach the person meant"
    key_biases = [share for name, share in shares["learning"].items() if name.endswith("bias, K")]
    assert len(key_biases) == 2 and max(key_biases) < 1e-5
    print("\nTo learn where to look, gradients came through the scores; having learned, they go to the person meant.")


def gradients(model: Reader, text: Text) -> tuple[float, Gradients]:
    """The loss on a text, and its gradient for every named tensor, parameters and intermediate ones."""
    loss = ta.cross_entropy(model(text.ids)[0], text.answers)
    named = dict(model.named_parameters())
    for tensor in recorded(loss):
        if tensor.name and tensor.scope:
            named[f"{tensor.scope.name}.{tensor.name}".strip(".")] = tensor
    return loss.item(), {name: g.numpy() for name, g in zip(named, ta.grad(loss, [*named.values()]), strict=True)}


def recorded(output: ta.Tensor) -> Iterator[ta.Tensor]:
    """Every tensor that the output was computed from, once: a tensor knows its operation's arguments."""
    seen, waiting = set(), [output]
    while waiting:
        tensor = waiting.pop()
        if id(tensor) not in seen:
            seen.add(id(tensor))
            yield tensor
            waiting += [a for a in tensor.args or () if isinstance(a, ta.Tensor) and a.requires_grad]


def four_ways(model: Reader, i: int, gradient: Gradients) -> list[np.ndarray]:
    """The gradient (B, T, C) of layer i's input past the layer, through values, through queries, through keys."""
    W_Q, W_K, W_V = np.split(model.layers[i].c_attn.weight.numpy(), 3, axis=1)  # (C, 3C) -> 3 of (C, C)
    dQ, dK, dV = (gradient[f"layers.{i}.{role}"].swapaxes(1, 2) for role in "QKV")  # (B, H, T, d) -> (B, T, H, d)
    past = gradient[f"x_{i + 1}"]
    ways = [past, *(d.reshape(past.shape) @ W.T for d, W in ((dV, W_V), (dQ, W_Q), (dK, W_K)))]
    whole = gradient[f"x_{i}"]
    np.testing.assert_allclose(sum(ways), whole, rtol=0, atol=1e-5 * np.abs(whole).max())
    return ways


def tokens(dx: np.ndarray, text: Text) -> dict[str, float]:
    """The share of each part of the sentences in the lengths of their tokens' gradients (B, T, C)."""
    lengths = np.linalg.norm(dx, axis=-1)  # (B, T)
    lengths /= lengths.sum(axis=1, keepdims=True)
    row = np.arange(len(lengths))
    parts = {name: float(lengths[row, at].mean()) for name, at in text.parts.items()}
    parts["the pronoun"] = float(lengths[:, -1].mean())
    return parts | {"all other words": 1 - sum(parts.values())}


def parameters(model: Reader, gradient: Gradients) -> dict[str, float]:
    """Each parameter's gradient in relation to that of all, that of Q, K and V apart."""
    pieces: Gradients = {}
    for name, _ in model.named_parameters():
        if "c_attn" in name:
            for role, piece in zip("QKV", np.split(gradient[name], 3, axis=-1), strict=True):
                pieces[f"{name}, {role}"] = piece
        else:
            pieces[name] = gradient[name]
    whole = np.sqrt(sum(length(piece) ** 2 for piece in pieces.values()))
    return {name: length(piece) / whole for name, piece in pieces.items()}


def length(array: np.ndarray) -> float:
    return float(np.linalg.norm(array))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--language", choices=["en", "zh"], default="zh")
    main(**vars(parser.parse_args()))
