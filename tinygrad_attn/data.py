"""Text becomes integer ids, and ids become batches of (what is read, what comes next).

The default corpus needs no download: every CPython carries its language reference in the standard library.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

Ids = NDArray[np.int64]

__all__ = ["Batches", "CharTokenizer", "Coreference", "coreference", "normalize_newlines", "python_manual", "read_text"]


class CharTokenizer:
    """One token per character; ids follow the sorted vocabulary, so they are the same in every run.

    >>> tok = CharTokenizer("hello")
    >>> tok.vocab, tok.encode("hole"), tok.decode([0, 1, 2])
    ('ehlo', [1, 3, 2, 0], 'ehl')
    """

    def __init__(self, text: str = "") -> None:
        self.vocab = "".join(sorted(set(text)))
        self._id_of = {char: i for i, char in enumerate(self.vocab)}

    @classmethod
    def fit(cls, text: str) -> Self:
        """The tokenizer whose vocabulary is the set of characters of `text`."""
        return cls(text)

    @property
    def vocab_size(self) -> int:
        return len(self.vocab)

    def __len__(self) -> int:
        return len(self.vocab)

    def __repr__(self) -> str:
        return f"CharTokenizer({self.vocab!r})"

    def encode(self, text: str) -> list[int]:
        """Ids of the characters of `text`; unknown characters are a ValueError that names them all."""
        try:
            return [self._id_of[char] for char in text]
        except KeyError as error:
            unknown = "".join(sorted(set(text) - set(self.vocab)))
            raise ValueError(
                f"encode: {len(unknown)} character(s) outside the vocabulary: {unknown!r} "
                f"(first at position {text.index(error.args[0])}), which holds {len(self)}: {self.vocab!r:.160}"
            ) from None

    def decode(self, ids: ArrayLike) -> str:
        """The text of integer `ids` (any 1-d sequence); an id outside [0, vocab_size) is an IndexError."""
        row = _row_of_ids("decode", ids)
        outside = row[(row < 0) | (row >= len(self))]
        if outside.size:
            raise IndexError(f"decode: id {outside[0]} is outside 0..{len(self) - 1} ({len(self)} characters)")
        return "".join(self.vocab[i] for i in row)


def normalize_newlines(text: str) -> str:
    r"""Every line end becomes ``"\n"``: the rule for training text, and therefore for prompts too.

    >>> normalize_newlines("a\r\nb\rc")
    'a\nb\nc'
    """
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_text(path: str | Path) -> str:
    """A UTF-8 text file whatever the locale: byte-order mark dropped, line ends normalized, never empty.

    Raises ValueError with the position of the first byte that is not UTF-8, and for an empty file.
    """
    raw = Path(path).read_bytes()
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        byte = f"byte 0x{raw[error.start]:02x} at position {error.start} (line {line})"
        raise ValueError(f"{path}: {byte} is not UTF-8; save the file as UTF-8") from None
    if not text:
        raise ValueError(f"{path}: the file is empty; there is nothing to learn from")
    return normalize_newlines(text)


def python_manual() -> str:
    """The Python language reference that this interpreter carries (`pydoc_data.topics`), as one text.

    The text, and so its set of symbols, belongs to the running Python version: about 465,000 characters
    and 103 symbols on 3.11.
    """
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics))


class Batches:
    """Endless random batches (x, y) of int64 ids, both (B, T); y is x shifted one to the left.

    Start positions are uniform and come from `rng` alone: its state *is* the position in the data.

    >>> x, y = next(Batches(np.arange(10), block_size=4, batch_size=2, rng=np.random.default_rng(0)))
    >>> x.shape, bool((y == x + 1).all())
    ((2, 4), True)
    """

    def __init__(self, ids: ArrayLike, block_size: int, batch_size: int, rng: np.random.Generator) -> None:
        self.ids = _row_of_ids("Batches", ids)
        if block_size < 1 or batch_size < 1:
            raise ValueError(f"Batches: block_size {block_size} and batch_size {batch_size} must be at least 1")
        if self.ids.size < block_size + 1:
            few = f"Batches: {self.ids.size} tokens are too few for block_size {block_size} and the token after a block"
            raise ValueError(f"{few}; use a longer text or a smaller block")
        if not isinstance(rng, np.random.Generator):
            raise TypeError(f"Batches: rng must be a numpy.random.Generator, got {type(rng).__name__}")
        self.block_size, self.batch_size, self.rng = block_size, batch_size, rng

    def __iter__(self) -> Iterator[tuple[Ids, Ids]]:
        return self

    def __next__(self) -> tuple[Ids, Ids]:
        starts = self.rng.integers(0, self.ids.size - self.block_size, size=self.batch_size)  # (B,)
        block = self.ids[starts[:, None] + np.arange(self.block_size + 1)]  # (B, T + 1)
        return block[:, :-1], block[:, 1:]


def _row_of_ids(where: str, ids: ArrayLike) -> Ids:
    array = np.asarray(ids)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):  # [] is a row of floats to NumPy
        got = f"shape {array.shape}, dtype {array.dtype}"
        raise TypeError(f"{where}: ids must be a 1-d sequence of integers, got {got}")
    return array.astype(np.int64)


class Coreference(NamedTuple):
    """One sentence whose last token follows from whom the pronoun means.

    `tokens[pronoun]` is the pronoun, `tokens[antecedent]` the person it means, `tokens[-1]` the consequence.
    """

    tokens: tuple[str, ...]
    pronoun: int
    antecedent: int


_WORDS = {
    "zh": {
        "pronoun": "她|他",
        "她": "妈妈|姐姐|奶奶|小红|小丽",
        "他": "爸爸|哥哥|爷爷|小明|小刚",
        "profession": "医生|老师|厨师|农民|演员",
        "place": "医院|学校|厨房|田里|剧院",
        "verb": "走进来|坐下|站起来|打电话",
        "feeling": "非常开心|有点累|很着急",
        "sentence": "{0} 是 {2} ， {1} 是 {3} 。 两人 {verb} 。 {who} {feeling} ， 去了 {place}",
    },
    "en": {
        "pronoun": "she|he",
        "she": "Mother|Anna|Grandma|Rose|Lily",
        "he": "Father|Tom|Grandpa|Peter|Jack",
        "profession": "doctor|teacher|cook|farmer|dancer",
        "place": "hospital|school|kitchen|field|theatre",
        "verb": "came in|sat down|stood up|looked around",
        "feeling": "happy|tired|late",
        "sentence": "{0} is a {2} and {1} is a {3} . both {verb} . {who} was very {feeling} and went to the {place}",
    },
}


def coreference(n: int, rng: np.random.Generator, language: str = "zh") -> list[Coreference]:
    """`n` generated sentences about a woman and a man with different professions, in "zh" or "en".

    Where 她/他 (she/he) goes at the end follows from the profession of the person meant. Which profession is
    whose shows in the order of the words alone: a model that sees a bag of words is right half the time.

    >>> example = coreference(1, np.random.default_rng(0), "en")[0]
    >>> " ".join(example.tokens)
    'Grandma is a doctor and Tom is a teacher . both came in . she was very late and went to the hospital'
    >>> example.tokens[example.pronoun], example.tokens[example.antecedent], example.tokens[-1]
    ('she', 'Grandma', 'hospital')
    """
    if language not in _WORDS:
        raise ValueError(f"coreference: language must be one of {sorted(_WORDS)}, got {language!r}")
    words = {kind: options.split("|") for kind, options in _WORDS[language].items()}
    place_of = dict(zip(words["profession"], words["place"]))

    def choose(kind: str, size: int = 1) -> list[str]:
        return [str(word) for word in rng.choice(words[kind], size=size, replace=False)]

    examples = []
    for _ in range(n):
        pronouns = choose("pronoun", 2)  # whoever is introduced first
        names = [choose(pronoun)[0] for pronoun in pronouns]
        professions = choose("profession", 2)
        meant = int(rng.integers(2))
        [verb], [feeling] = choose("verb"), choose("feeling")
        who, place = pronouns[meant], place_of[professions[meant]]
        sentence = words["sentence"][0].format(*names, *professions, verb=verb, who=who, feeling=feeling, place=place)
        tokens = tuple(sentence.split())
        examples.append(Coreference(tokens, tokens.index(who), tokens.index(names[meant])))
    return examples
