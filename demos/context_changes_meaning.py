"""One word, two meanings: an embedding can't tell them apart, self-attention can.

银行 (bank) is where money is kept or, taken word for word, the edge of a river. Its embedding is one row of a
table, the same in every sentence. A head of self-attention adds to it what it takes from the words around it;
trained to tell the two meanings apart, it learns to look at the one word that decides.

    python demos/context_changes_meaning.py [--language en] [--seed 1] [--pictures FOLDER]
"""

import argparse
from itertools import product
from pathlib import Path

import numpy as np
from _common import accuracy, batches, table, train

import tinygrad_attn as ta

BANK = {"zh": "银行", "en": "bank"}
SHOWN = {  # one sentence of each meaning
    "zh": ("今天 妈妈 去 银行 取钱", "今天 妈妈 路过 河岸 银行"),
    "en": ("mother went to the bank to withdraw today", "mother walked right past the river bank today"),
}
TEMPLATES = {  # with the words that make it a bank of money, and those that make it one of a river
    "zh": {
        "{when} {who} 去 银行 {cue}": ("取钱 存钱 贷款 换汇 开户", "钓鱼 游泳 划船 捉虾 采莲"),
        "{when} {who} 路过 {cue} 银行": ("储蓄 商业 中央 投资 外资", "河岸 芦苇 垂柳 青草 湿滑"),
    },
    "en": {
        "{who} went to the bank to {cue} {when}": (
            "withdraw deposit borrow invest pay",
            "fish swim row wade paddle",
        ),
        "{who} walked right past the {cue} bank {when}": (
            "savings national central investment commercial",
            "river grassy muddy sandy mossy",
        ),
    },
}
OTHERS = {
    "zh": ("今天 昨天 早上 下午 周末", "我 妈妈 爸爸 小明 小红 奶奶"),
    "en": ("today yesterday again early late", "I mother father Tom Anna grandma"),
}


def every_sentence(language: str) -> list[tuple[list[str], list[str]]]:
    """All pairs of sentences, one of each meaning, that differ in the deciding word alone."""
    whens, whos = (words.split() for words in OTHERS[language])
    pairs = []
    for template, (money, river) in TEMPLATES[language].items():
        for when, who, cues in product(whens, whos, zip(money.split(), river.split(), strict=True)):
            a, b = (template.format(when=when, who=who, cue=cue).split() for cue in cues)
            pairs.append((a, b))
    return pairs


class Reader(ta.nn.Module):
    """Embedding, one head of self-attention, and a decision between two meanings."""

    def __init__(self, vocabulary: int, d: int, rng: np.random.Generator):
        self.embedding = ta.nn.Embedding(vocabulary, d, rng=rng)
        self.embedding.weight.data = self.embedding.weight.data / 10  # small scores: at first all is looked at alike
        self.attention = ta.nn.SelfAttention(d, rng=rng)
        self.decide = ta.nn.Linear(d, 2, rng=rng)

    def forward(self, ids: np.ndarray) -> tuple[ta.Tensor, ta.Tensor, ta.Tensor]:
        """ids (B, T) -> vectors before and after attention (B, T, d), and who looks at whom (B, T, T)."""
        before = self.embedding(ids)  # (B, T) -> (B, T, d)
        seen, weights = self.attention(before, return_weights=True)  # (B, T, d) -> (B, T, d), (B, T, T)
        return before, before + seen, weights


def main(seed: int = 0, language: str = "zh", steps: int = 400, pictures: str | None = None) -> None:
    rng = np.random.default_rng(seed)
    pairs = every_sentence(language)
    vocabulary = sorted({word for pair in pairs for sentence in pair for word in sentence})
    ids = np.array([[[vocabulary.index(word) for word in s] for s in pair] for pair in pairs])  # (N, 2, T)
    T, bank = ids.shape[-1], vocabulary.index(BANK[language])

    # Pairs are held out whole, so that each meaning is half of them; the two to be shown are among them.
    shown = np.array([[vocabulary.index(word) for word in s.split()] for s in SHOWN[language]])
    order = rng.permutation(len(pairs))
    order = sorted(order, key=lambda i: not (ids[i][:, None] == shown).all(-1).any())
    held_out, seen = (ids[rows].reshape(-1, T) for rows in (order[: len(pairs) // 4], order[len(pairs) // 4 :]))
    meaning, seen_meaning = np.arange(len(held_out)) % 2, np.arange(len(seen)) % 2

    def at_bank(vectors: ta.Tensor, ids: np.ndarray) -> ta.Tensor:
        """(B, T, ...) -> (B, ...): what belongs to the word bank of each sentence."""
        return vectors[np.arange(len(ids)), (ids == bank).argmax(axis=1)]

    model = Reader(len(vocabulary), 32, rng)
    print(f"{len(seen)} sentences to learn from, {len(held_out)} held out, {len(vocabulary)} words,")
    print(f"{model.num_parameters():,} parameters, {steps} steps\n")

    # The same kind of classifier, given the embedding alone.
    blind = ta.nn.Linear(32, 2, rng=rng)
    sample = batches(rng, 64, seen, seen_meaning)

    def blind_loss() -> ta.Tensor:
        ids, answers = next(sample)
        return ta.cross_entropy(blind(at_bank(model(ids)[0], ids).detach()), answers)

    def loss() -> ta.Tensor:
        ids, answers = next(sample)
        return ta.cross_entropy(model.decide(at_bank(model(ids)[1], ids)), answers)

    def measure() -> tuple[float, np.ndarray, float, float]:
        """Accuracy and weights on held-out sentences; cosines of the two shown before and after attention."""
        with ta.no_grad():
            _, after, weights = model(held_out)
            right = accuracy(model.decide(at_bank(after, held_out)), meaning)
            cosines = [cosine(*at_bank(vectors, shown).numpy()) for vectors in model(shown)[:2]]
        return right, at_bank(weights, held_out).numpy(), *cosines

    train(blind, blind_loss, steps, lr=0.01)
    with ta.no_grad():
        guess = accuracy(blind(at_bank(model(held_out)[0], held_out)), meaning)
    untrained, weights_before, same, cosine_before = measure()
    train(model, loss, steps, lr=0.01)
    trained, weights_after, same_still, cosine_after = measure()
    decides = (held_out.reshape(-1, 2, T) != held_out.reshape(-1, 2, T)[:, ::-1]).reshape(-1, T)  # one per sentence

    print(f"{BANK[language]} in two sentences never trained on:")
    for sentence in SHOWN[language]:
        print(f"  {sentence}")
    print()
    table(
        ["", "before training", "after"],
        ["cosine of the two embeddings", same, same_still],
        ["cosine of the two vectors after attention", cosine_before, cosine_after],
        decimals=3,
    )
    print("\nMeaning told from the vector, all held-out sentences:\n")
    table(
        ["", "right"],
        ["from the embedding, classifier trained", f"{guess:.1%}"],
        ["after attention, nothing trained", f"{untrained:.1%}"],
        ["after attention, all trained", f"{trained:.1%}"],
    )
    print(f"\nWhere {BANK[language]} looks, mean over held-out sentences:\n")
    table(
        ["", "before training", "after"],
        ["the deciding word", weights_before[decides].mean(), weights_after[decides].mean()],
        [f"each of the other {T - 1}", weights_before[~decides].mean(), weights_after[~decides].mean()],
        decimals=3,
    )
    with ta.no_grad():
        weights = model(shown)[2].numpy()  # (2, T, T)
    for i, sentence in enumerate(SHOWN[language]):
        words = sentence.split()
        print()
        table(["", *words], [BANK[language], *weights[i, words.index(BANK[language])]])
        if pictures:
            path = Path(pictures) / f"{BANK[language]}_{i + 1}.png"
            ta.viz.attention_heatmap(weights[i], words).savefig(path)
            print(f"  all tokens: {path}")

    assert same == same_still == 1.0, "an embedding depended on its sentence"
    assert guess == 0.5, "something other than the word told the meaning"
    assert trained >= 0.98 and cosine_after < 0.5 < cosine_before
    assert weights_after[decides].mean() > 0.5 > 3 * weights_after[~decides].mean()
    print("\nOne embedding, two meanings: the context told them apart.")


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float((a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--language", choices=sorted(BANK), default="zh")
    parser.add_argument("--pictures", metavar="FOLDER", help="save who looks at whom there, as pictures")
    main(**vars(parser.parse_args()))
