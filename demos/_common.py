"""What the demos share: a training loop, and tables in which a Chinese character is two columns wide."""

import sys
from collections.abc import Callable, Iterator, Sequence
from io import TextIOWrapper
from unicodedata import east_asian_width

import numpy as np

import tinygrad_attn as ta

if isinstance(sys.stdout, TextIOWrapper):  # any text can be printed, whatever the locale
    sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")


def train(model: ta.nn.Module, loss: Callable[[], ta.Tensor], steps: int, lr: float) -> list[float]:
    """`steps` updates of AdamW on what `loss()` gives for a fresh batch; the losses, one per step."""
    optimizer = ta.optim.AdamW(model.parameters(), lr=lr)
    losses = []
    for _ in range(steps):
        value = loss()
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return losses


def batches(rng: np.random.Generator, size: int, *arrays: np.ndarray) -> Iterator[list[np.ndarray]]:
    """The same `size` random rows of every array, endlessly."""
    while True:
        rows = rng.integers(len(arrays[0]), size=size)
        yield [array[rows] for array in arrays]


def accuracy(logits: ta.Tensor | np.ndarray, answers: np.ndarray) -> float:
    """The share of rows whose largest logit is the answer's."""
    return float((np.asarray(logits).argmax(axis=-1) == answers).mean())


def columns(text: str) -> int:
    """How many columns of a terminal the text takes."""
    return sum(2 if east_asian_width(character) in "WF" else 1 for character in text)


def table(head: Sequence[str], *rows: Sequence[object], decimals: int = 2) -> None:
    """Print rows under their heads: the first column to the left, the others to the right."""
    texts = [
        [f"{x:.{decimals}f}" if isinstance(x, float | np.floating) else str(x) for x in row] for row in (head, *rows)
    ]
    widths = [max(map(columns, column)) for column in zip(*texts, strict=True)]
    for first, *others in texts:
        cells = [" " * (width - columns(text)) + text for text, width in zip(others, widths[1:], strict=True)]
        print("  ".join(["  " + first + " " * (widths[0] - columns(first)), *cells]).rstrip())
