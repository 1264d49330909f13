"""Layers: parameters with a place to live. The mathematics is in the operations that they call."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..ops.elementwise import gelu
from ..ops.index import embedding
from ..ops.nn import dropout, layer_norm
from ..tensor import Tensor
from .module import Module, Parameter, Rng, generator


class Linear(Module):
    """x @ weight + bias, with weight (d_in, d_out) as in Q = X W_Q and bias (d_out,).

    Both start uniform between ±1/sqrt(d_in) (PyTorch's initialisation), drawn from `rng`, by default from
    `np.random.default_rng(0)`.

    >>> layer = ta.nn.Linear(3, 4, rng=np.random.default_rng(1))
    >>> layer(np.ones((2, 5, 3), np.float32)).shape
    (2, 5, 4)
    """

    def __init__(self, d_in: int, d_out: int, *, bias: bool = True, rng: Rng = None):
        positive("Linear", d_in=d_in, d_out=d_out)
        bound, rng = 1 / math.sqrt(d_in), generator(rng)
        self.weight = Parameter(rng.uniform(-bound, bound, (d_in, d_out)), dtype=np.float32)
        self.bias = Parameter(rng.uniform(-bound, bound, d_out), dtype=np.float32) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """(..., d_in) -> (..., d_out)"""
        y: Tensor = x @ self.weight
        return y if self.bias is None else y + self.bias

    def describe(self) -> str:
        d_in, d_out = self.weight.shape
        return f"{d_in}, {d_out}" + (", bias=False" if self.bias is None else "")


class Embedding(Module):
    """A table of `num` rows (num, d); an integer id looks up its row. The rows start standard normal.

    >>> table = ta.nn.Embedding(3, 2)
    >>> table([[0, 2], [2, 0]]).shape
    (2, 2, 2)
    >>> table([3])
    Traceback (most recent call last):
        ...
    IndexError: ...
    """

    def __init__(self, num: int, d: int, *, rng: Rng = None):
        positive("Embedding", num=num, d=d)
        self.weight = Parameter(generator(rng).standard_normal((num, d), np.float32))

    def forward(self, ids: ArrayLike) -> Tensor:
        """Integers of any shape (...) in 0..num-1 -> (..., d)"""
        rows: Tensor = embedding(self.weight, ids)
        return rows

    def describe(self) -> str:
        return "{}, {}".format(*self.weight.shape)


class LayerNorm(Module):
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last axis, of length d.

    The variance is the population's (divided by d). `weight` starts as ones, `bias` as zeros.

    >>> ta.nn.LayerNorm(4)(np.array([1.0, 2.0, 3.0, 4.0], np.float32)).numpy().round(3)
    array([-1.342, -0.447,  0.447,  1.342], dtype=float32)
    """

    def __init__(self, d: int, *, bias: bool = True, eps: float = 1e-5):
        positive("LayerNorm", d=d)
        self.weight = Parameter(np.ones(d, np.float32))
        self.bias = Parameter(np.zeros(d, np.float32)) if bias else None
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """(..., d) -> (..., d)"""
        y: Tensor = layer_norm(x, self.weight, self.bias, self.eps)
        return y

    def describe(self) -> str:
        return f"{self.weight.shape[0]}" + (", bias=False" if self.bias is None else "")


class Dropout(Module):
    """In training: sets each element to 0 with probability `p` and divides the others by 1 - p.

    It needs a generator to draw from, unless `p` is 0 or 1. In evaluation mode it does nothing and draws
    nothing.
    """

    def __init__(self, p: float, *, rng: Rng = None):
        if not 0 <= p <= 1:
            raise ValueError(f"Dropout: p is a probability, between 0 and 1, got {p}")
        self.p = p
        self.rng = None if rng is None else generator(rng)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = dropout(x, self.p, rng=self.rng, training=self.training)
        return y

    def describe(self) -> str:
        return f"{self.p}"


class MLP(Module):
    """The feed-forward half of a transformer block: widen, GELU (tanh form), narrow, each token by itself.

    `d_hidden` is 4 * d_model where nothing is said.
    """

    def __init__(
        self, d_model: int, d_hidden: int | None = None, *, dropout: float = 0.0, bias: bool = True, rng: Rng = None
    ):
        d_hidden, rng = 4 * d_model if d_hidden is None else d_hidden, generator(rng)
        self.c_fc = Linear(d_model, d_hidden, bias=bias, rng=rng)
        self.c_proj = Linear(d_hidden, d_model, bias=bias, rng=rng)
        self.dropout = Dropout(dropout, rng=rng)

    def forward(self, x: Tensor) -> Tensor:
        hidden = gelu(self.c_fc(x))  # (..., C) -> (..., 4C)
        y: Tensor = self.dropout(self.c_proj(hidden))  # (..., 4C) -> (..., C)
        return y


def positive(layer: str, **sizes: Any) -> None:
    """Refuse what is no size, by name."""
    for name, size in sizes.items():
        if not isinstance(size, int | np.integer) or isinstance(size, bool) or size < 1:
            raise ValueError(f"{layer}: {name} must be a positive integer, got {size!r}")
