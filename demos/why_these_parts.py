"""Why these parts? Self-attention with one part left out at a time, and what that costs, measured.

The mask, its place before the softmax, the division by √d, three matrices for three roles, several heads.
The last two are asked of a small world: the five elements 木 火 土 金 水 (wood, fire, earth, metal, water) in
random order, each with a number. Each feeds the next, water feeding wood, and overcomes the one after that.
So each stands in four relations to the other four, and has to say which numbers they hold.

    python demos/why_these_parts.py [--seed 1]
"""

import argparse

import numpy as np
from _common import table, train

import tinygrad_attn as ta


def main(seed: int = 0) -> None:
    for part in the_mask, masking_before_softmax, division_by_root_d, three_matrices, several_heads:
        part(np.random.default_rng(seed))
    print("\nTaken out, each part is missed.")


def the_mask(rng: np.random.Generator, T: int = 32) -> None:
    heading(
        "Why a mask?",
        "Without it a language model reads the answer off the next token instead of predicting it: the",
        "loss in training falls, but in writing, where nothing comes after yet, there is nothing to read off.",
    )
    text = ta.data.python_manual()
    tokenizer = ta.data.CharTokenizer.fit(text)
    ids = np.array(tokenizer.encode(text))
    start = tokenizer.encode("The function ")
    x, y = next(ta.data.Batches(ids[-20_000:], T, 256, rng))
    trained, writing, written = {}, {}, {}
    for name, causal in ("causal mask", True), ("no mask", False):
        config = ta.nn.GPTConfig(block_size=T, vocab_size=len(tokenizer), n_layer=1, n_head=4, n_embd=64)
        model = ta.nn.GPT(config, rng=rng)
        model.h[0].attn.causal = causal
        sample = ta.data.Batches(ids[:-20_000], T, 8, rng)
        losses = train(model, lambda model=model, sample=sample: model(*next(sample))[1], 450, lr=0.003)
        trained[name] = float(np.mean(losses[-20:]))
        with ta.no_grad():
            writing[name] = ta.cross_entropy(model(x)[0][:, -1], y[:, -1]).item()  # the last has nothing after it
        written[name] = tokenizer.decode(model.generate(start, 40, temperature=0.5, rng=rng)).replace("\n", " ")
    table(
        ["", "loss in training", "loss in writing", "writes after 'The function '"],
        *([name, trained[name], writing[name], repr(written[name][len(start) :])] for name in trained),
    )
    assert trained["no mask"] < 0.5 < 1.5 < trained["causal mask"], "the answer did not leak"
    assert writing["no mask"] > writing["causal mask"] + 0.4, "writing did not suffer"


def masking_before_softmax(rng: np.random.Generator, T: int = 5, d: int = 8) -> None:
    heading(
        "Why mask before the softmax?",
        "Setting weights to 0 afterwards is too late: the future has already taken its share of each row,",
        "and through that share it still acts on the past.",
    )
    future = ta.nn.causal_mask(T)
    q, k, v = rng.standard_normal((3, T, d))
    changed = k.copy()
    changed[-1] = rng.standard_normal(d)  # another last token

    def before(scores: ta.Tensor) -> ta.Tensor:
        return scores.masked_fill(future, -np.inf).softmax()

    def after(scores: ta.Tensor) -> ta.Tensor:
        return scores.softmax().masked_fill(future, 0.0)

    def after_and_rescaled(scores: ta.Tensor) -> ta.Tensor:
        weights = after(scores)
        return weights / weights.sum(axis=-1, keepdims=True)

    sums, moves = {}, {}
    for weigh in before, after, after_and_rescaled:
        name = weigh.__name__.replace("_", " ")
        outputs = []
        for keys in k, changed:
            weights = weigh(ta.Tensor(q) @ ta.Tensor(keys).mT / np.sqrt(d))  # (T, d) @ (d, T) -> (T, T)
            outputs.append((weights @ v).numpy())  # (T, T) @ (T, d) -> (T, d)
        sums[name] = weights.numpy().sum(axis=1)
        moves[name] = float(np.abs(outputs[0] - outputs[1])[:-1].max())
    table(
        ["mask", *(f"row {i + 1}" for i in range(T)), "past moved by the last token"],
        *([name, *sums[name], f"{moves[name]:.1e}"] for name in sums),
    )
    print("\n  row: its sum of weights. Rescaling repairs it, in one more step, as long as no sum underflows.")
    assert moves["before"] == 0.0 and np.allclose(sums["before"], 1)
    assert moves["after"] > 1e-3 and sums["after"][0] < 0.9
    assert moves["after and rescaled"] < 1e-12


def division_by_root_d(rng: np.random.Generator, B: int = 64, T: int = 16) -> None:
    heading(
        "Why divide by √d?",
        "A dot product of d random numbers grows like √d. Undivided, the softmax of long vectors picks",
        "one token and is flat there: to most queries no gradient returns, so they can't learn to look elsewhere.",
    )
    rows, bits, lost = [], {}, {}
    for d in 4, 64, 1024:
        q, k, v = (ta.Tensor(rng.standard_normal((B, T, n)), requires_grad=True) for n in (d, d, 16))
        gradient = ta.Tensor(rng.standard_normal((B, T, 16)))
        for name, scale in ("divided", None), ("undivided", 1.0):
            output, weights = ta.nn.scaled_dot_product_attention(q, k, v, scale=scale, return_weights=True)
            dq = np.linalg.norm(ta.grad(output, q, gradient).numpy(), axis=-1)  # (B, T), one length per query
            w = weights.numpy()
            bits[name, d] = float(-(w * np.log2(np.maximum(w, 1e-300))).sum(axis=-1).mean())
            lost[name, d] = float((dq < 0.01).mean())
            rows.append([name, d, w.max(axis=-1).mean(), bits[name, d], np.median(dq), f"{lost[name, d]:.0%}"])
    head = ["", "d", "largest weight", "entropy in bits", "gradient of a query", "queries without"]
    table(head, *sorted(rows, key=lambda row: row[0]))
    print(f"\n  Entropy is at most log2 {T} = {np.log2(T):.0f}. Gradient: median length; without: below 0.01.")
    assert all(bits["divided", d] > 3 and lost["divided", d] == 0 for d in (4, 64, 1024))
    assert bits["undivided", 4] > bits["undivided", 64] > bits["undivided", 1024]
    assert bits["undivided", 1024] < 0.5 < lost["undivided", 1024] * 1.25


ELEMENTS, NUMBERS = "木火土金水", 6
RELATIONS = ["feeds", "overcomes", "overcome by", "fed by"]


def elements(n: int, rng: np.random.Generator) -> list[np.ndarray]:
    """(n, 5) elements, (n, 5) the number of each, (n, 5, 4) the numbers of those in the four relations."""
    element = rng.permuted(np.tile(np.arange(5), (n, 1)), axis=1)
    number = rng.integers(NUMBERS, size=(n, 5))
    place = np.argsort(element, axis=1)  # of each element
    related = [np.take_along_axis(place, (element + step) % 5, axis=1) for step in (1, 2, 3, 4)]
    answers = np.stack([np.take_along_axis(number, places, axis=1) for places in related], axis=-1)
    return [element, number, answers]


class World(ta.nn.Module):
    """Elements and numbers, one layer of attention, and what each element says."""

    def __init__(self, attention: ta.nn.Module, says: int, d: int, rng: np.random.Generator):
        self.element = ta.nn.Embedding(5, d, rng=rng)
        self.number = ta.nn.Embedding(NUMBERS, d, rng=rng)
        for embedding in (self.element, self.number):
            embedding.weight.data = embedding.weight.data * 0.3  # small scores: at first all is looked at
        self.attention = attention
        self.say = ta.nn.Linear(d, says * NUMBERS, rng=rng)

    def forward(self, element: np.ndarray, number: np.ndarray) -> ta.Tensor:
        """(B, 5), (B, 5) -> logits (B, 5, says, NUMBERS)"""
        x = self.element(element) + self.number(number)  # (B, 5, d)
        return self.say(self.attention(x)).reshape(*element.shape, -1, NUMBERS)


class FewerMatrices(ta.nn.Module):
    """Self-attention whose roles share matrices: given None, X itself takes the role."""

    def __init__(self, W_QK: ta.nn.Linear | None, W_V: ta.nn.Linear | None):
        self.W_QK, self.W_V = W_QK, W_V

    def forward(self, x: ta.Tensor) -> ta.Tensor:
        """(B, T, d) -> (B, T, d)"""
        q = self.W_QK(x) if self.W_QK else x
        v = self.W_V(x) if self.W_V else x
        return ta.nn.scaled_dot_product_attention(q, q, v)


def learned(world: World, says: int, steps: int, rng: np.random.Generator) -> np.ndarray:
    """The share of right answers about each relation on examples it was not trained on, after training."""

    def loss() -> ta.Tensor:
        element, number, answers = elements(64, rng)
        return ta.cross_entropy(world(element, number), answers[..., :says])

    train(world, loss, steps, lr=0.01)
    element, number, answers = elements(1000, rng)
    with ta.no_grad():
        said = world(element, number).numpy().argmax(axis=-1)  # (B, 5, says)
    return (said == answers[..., :says]).mean(axis=(0, 1))


def three_matrices(rng: np.random.Generator, d: int = 32) -> None:
    heading(
        "Why three matrices?",
        "Each element names the number held by the one it feeds. If query and key are the same vector, then",
        "A looks at B as much as B at A; but feeding goes round in a circle, and no symmetric score does.",
    )

    def linear() -> ta.nn.Linear:
        return ta.nn.Linear(d, d, bias=False, rng=rng)

    attentions = {
        "Q = K = V = X": FewerMatrices(None, None),
        "Q = K = X W, V = X W_V": FewerMatrices(linear(), linear()),
        "Q, K, V each its own": ta.nn.SelfAttention(d, rng=rng),
    }
    right = {n: float(learned(World(a, 1, d, rng), 1, 600, rng)[0]) for n, a in attentions.items()}
    table(["", "right"], *([name, f"{share:.1%}"] for name, share in right.items()))
    print(f"\n  Guessing is right {1 / NUMBERS:.1%} of the time.")
    assert right["Q, K, V each its own"] > 0.98
    assert max(right["Q = K = V = X"], right["Q = K = X W, V = X W_V"]) < 0.7


def several_heads(rng: np.random.Generator, d: int = 32) -> None:
    heading(
        "Why several heads?",
        "Now each element names all four numbers. A head gives one average: looking at several tokens it",
        "can't say who holds what. Four heads can hold four relations apart, with as many parameters as one.",
    )
    right, parameters = {}, set()
    for heads in 1, 2, 4:
        world = World(ta.nn.MultiHeadAttention(d, heads, causal=False, rng=rng), 4, d, rng)
        right[heads] = learned(world, 4, 1000, rng)
        parameters.add(world.num_parameters())
    table(
        ["heads", *RELATIONS, "all"],
        *([heads, *(f"{x:.1%}" for x in share), f"{share.mean():.1%}"] for heads, share in right.items()),
    )
    print(f"\n  {parameters.pop():,} parameters each. Guessing is right {1 / NUMBERS:.1%} of the time.")
    assert not parameters
    assert right[4].min() > 0.95 and right[1].mean() < 0.6


def heading(title: str, *lines: str) -> None:
    print(f"\n{title}\n")
    for line in lines:
        print(f"  {line}")
    print()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    main(**vars(parser.parse_args()))
