"""Who is she? Reading 她 (she), attention finds the person that is meant; an average of the words can't.

    妈妈 是 医生 ， 小明 是 老师 。 两人 走进来 。 她 …     where does she go? 医院: the doctor is her.

The model answers from the vector of 她 alone, and is asked about people and professions that it never read
together. The words are the same whoever is the doctor, so all depends on which word belongs to which. Two
layers of attention find out: in the first a profession learns whose it is, in the second 她 looks for hers.

    python demos/who_is_she.py [--language en] [--seed 1] [--picture weights.png]
"""

import argparse
from dataclasses import dataclass
from typing import Self

import numpy as np
from _common import accuracy, batches, table, train

import tinygrad_attn as ta


@dataclass
class Text:
    """Sentences up to the pronoun, as ids into `words`, and what follows from them, as ids into `places`."""

    words: list[str]
    places: list[str]
    ids: np.ndarray  # (N, T), the pronoun last
    answers: np.ndarray  # (N,)
    parts: dict[str, np.ndarray]  # what stands where: (N,) positions each

    def rows(self, chosen: np.ndarray) -> Self:
        """Some of the sentences."""
        parts = {name: positions[chosen] for name, positions in self.parts.items()}
        return type(self)(self.words, self.places, self.ids[chosen], self.answers[chosen], parts)

    def sentence(self, row: int) -> list[str]:
        return [self.words[i] for i in self.ids[row]]


def read_and_asked(n: int, rng: np.random.Generator, language: str) -> tuple[Text, Text]:
    """Text to learn from, and text about two people and two professions that it never names together."""
    examples = ta.data.coreference(n, rng, language)
    sentences = [example.tokens[: example.pronoun + 1] for example in examples]
    words = sorted({word for sentence in sentences for word in sentence})
    places = sorted({example.tokens[-1] for example in examples})
    ids = np.array([[words.index(word) for word in sentence] for sentence in sentences])
    answers = np.array([places.index(example.tokens[-1]) for example in examples])

    gap = {"zh": 2, "en": 3}[language]  # from person to profession: 妈妈 是 医生, Anna is a doctor
    meant = np.array([example.antecedent for example in examples])
    other = np.where(meant == 0, meant.max(), 0)
    parts = {
        "the person meant": meant,
        "that person's profession": meant + gap,
        "the other person": other,
        "the other's profession": other + gap,
    }
    text = Text(words, places, ids, answers, parts)

    four = np.sort(np.take_along_axis(ids, np.stack(list(parts.values()), axis=1), axis=1))  # (N, 4)
    kinds, kind = np.unique(four, axis=0, return_inverse=True)
    kept_back = rng.permutation(len(kinds))[: len(kinds) // 5]
    asked = np.isin(kind, kept_back)
    return text.rows(np.flatnonzero(~asked)), text.rows(np.flatnonzero(asked))


class Reader(ta.nn.Module):
    """Words and their positions, layers of causal attention, and a place read off the last word's vector."""

    def __init__(self, text: Text, layers: int, rng: np.random.Generator, d: int = 32, heads: int = 2):
        self.word = ta.nn.Embedding(len(text.words), d, rng=rng)
        self.position = ta.nn.Embedding(text.ids.shape[1], d, rng=rng)
        for embedding in (self.word, self.position):
            embedding.weight.data = embedding.weight.data * 0.3  # small scores: at first all is looked at
        self.layers = [ta.nn.MultiHeadAttention(d, heads, causal=True, rng=rng) for _ in range(layers)]
        self.place = ta.nn.Linear(d, len(text.places), rng=rng)

    def forward(self, ids: np.ndarray) -> tuple[ta.Tensor, list[ta.Tensor]]:
        """ids (B, T) -> logits of the places (B, P), and each layer's weights (B, H, T, T)."""
        x = (self.word(ids) + self.position.weight).named("x_0")  # (B, T, C) + (T, C)
        looked = []
        for i, attention in enumerate(self.layers, start=1):
            seen, weights = attention(x, return_weights=True)  # (B, T, C) -> (B, T, C), (B, H, T, T)
            x = (x + seen).named(f"x_{i}")
            looked.append(weights)
        return self.place(x[:, -1]), looked  # (B, C) -> (B, P)


class Average(ta.nn.Module):
    """The same words and positions, averaged: no word knows which others belong to it."""

    def __init__(self, text: Text, rng: np.random.Generator, d: int = 32):
        self.word = ta.nn.Embedding(len(text.words), d, rng=rng)
        self.position = ta.nn.Embedding(text.ids.shape[1], d, rng=rng)
        self.think = ta.nn.MLP(d, rng=rng)
        self.place = ta.nn.Linear(d, len(text.places), rng=rng)

    def forward(self, ids: np.ndarray) -> tuple[ta.Tensor, list[ta.Tensor]]:
        """ids (B, T) -> logits of the places (B, P), and no weights."""
        x = (self.word(ids) + self.position.weight).mean(axis=1)  # (B, T, C) -> (B, C)
        return self.place(x + self.think(x)), []


def learn(model: ta.nn.Module, text: Text, steps: int, rng: np.random.Generator) -> ta.nn.Module:
    sample = batches(rng, 64, text.ids, text.answers)

    def loss() -> ta.Tensor:
        ids, answers = next(sample)
        return ta.cross_entropy(model(ids)[0], answers)

    train(model, loss, steps, lr=0.01)
    return model


def main(seed: int = 0, language: str = "zh", steps: int = 400, picture: str | None = None) -> None:
    rng = np.random.default_rng(seed)
    read, asked = read_and_asked(6000, rng, language)
    print(f"{len(read.ids)} sentences to read, {len(asked.ids)} to be asked about, {len(read.words)} words\n")
    for label, text in ("read ", read), ("asked", asked):
        print(f"  {label}  {' '.join(text.sentence(0))} …  {text.places[text.answers[0]]}")
    print()

    models = {
        "average of the embeddings": Average(read, rng),
        "one layer of attention": Reader(read, 1, rng),
        "two layers of attention": Reader(read, 2, rng),
    }
    right = {}
    for name, model in models.items():
        learn(model, read, steps, rng)
        with ta.no_grad():
            logits, looked = model(asked.ids)
        right[name] = accuracy(logits, asked.answers)
    table(
        ["", "parameters", "right"],
        *([name, f"{model.num_parameters():,}", f"{right[name]:.1%}"] for name, model in models.items()),
    )
    print("\nEach sentence names two professions: knowing no more than which, one is right half the time.\n")

    weights = looked[-1].numpy()[:, :, -1]  # (N, H, T): from the last word, the pronoun
    row = np.arange(len(weights))
    mean = {name: weights[row, :, at].mean(axis=0) for name, at in asked.parts.items()}  # (H,) each
    mean["all other words"] = 1 - sum(mean.values())
    print("Where the pronoun looks in the second layer, mean over the sentences asked about:\n")
    heads = [f"head {h}" for h in range(weights.shape[1])]
    table(["", *heads, "mean"], *([name, *w, w.mean()] for name, w in mean.items()))
    if picture:
        titles = [f"layer 2, {head}" for head in heads]
        ta.viz.attention_heatmap(looked[-1][0], asked.sentence(0), titles=titles).savefig(picture)
        print(f"\nWho looks at whom: {picture}")

    person, profession, other, others_profession, _ = (w.mean() for w in mean.values())
    assert right["two layers of attention"] >= 0.98
    assert right["average of the embeddings"] <= 0.6
    assert person + profession > 0.6 > 3 * (other + others_profession), "it didn't look at the person meant"
    print("\nThe pronoun looks at the person it means, and only so can the question be answered.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--language", choices=["en", "zh"], default="zh")
    parser.add_argument("--picture", metavar="FILE", help="save who looks at whom, for example as weights.png")
    main(**vars(parser.parse_args()))
