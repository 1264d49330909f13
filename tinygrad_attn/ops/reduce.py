"""Operations that run along axes: sums, means, extrema, norms, cumulative sums."""

import math
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_tuple

from ..autograd import Array, derived, primitive
from .shape import concatenate, reshape, transpose

Axis = Any  # an int, a tuple of them or None


def spread(g: Array, axis: Axis, keepdims: bool) -> Array:
    """What a reduction kept, with the axes back that it dropped, so that it broadcasts against its operand."""
    return g if keepdims or axis is None else np.expand_dims(g, axis)


def _count(x: Array, axis: Axis) -> int:
    """How many numbers each result is made of."""
    return math.prod(x.shape[a] for a in (range(x.ndim) if axis is None else normalize_axis_tuple(axis, x.ndim)))


def total(x: Array, axis: Axis) -> Array:
    """The sum along ``axis``, which stays: of short rows by einsum, in a quarter of the time of NumPy's sum."""
    if axis not in (-1, x.ndim - 1) or x.ndim == 0 or x.shape[-1] > 1024 or x.dtype.kind != "f":
        return np.add.reduce(x, axis=axis, keepdims=True)
    return np.einsum("...i->...", x)[..., None]


@primitive(numpy=np.sum)
def sum(x: Array, axis: Axis = None, keepdims: Any = False) -> Array:
    """The sum over ``axis`` (None: all, a tuple: several): every summand gets the whole gradient.

    Shapes: any, without the axes summed, or with length 1 there (keepdims); a float dtype is kept.
    Rule:   dx = broadcast_to(g, x.shape)

    >>> ta.Tensor([[1.0, 2.0], [3.0, 4.0]]).sum(axis=0)
    Tensor([4., 6.])
    """
    return total(x, axis) if keepdims else np.add.reduce(x, axis=axis)


sum.gradients(x=lambda g, out, x, axis, keepdims: np.broadcast_to(spread(g, axis, keepdims), x.shape))


@primitive(numpy=np.mean)
def mean(x: Array, axis: Axis = None, keepdims: bool = False) -> Array:
    """The mean over ``axis`` (None: of all, a tuple: over several).

    Shapes: any, without the axes averaged, or with length 1 there (keepdims); a float dtype is kept.
    Rule:   dx = broadcast_to(g / n, x.shape)
    Raises: ValueError where there is nothing to average.

    >>> ta.Tensor([[1.0, 2.0], [3.0, 4.0]]).mean(axis=1)
    Tensor([1.5, 3.5])
    """
    if _count(x, axis) == 0:
        raise ValueError(f"mean: nothing to average in shape {x.shape} along axis {axis}")
    return np.mean(x, axis=axis, keepdims=keepdims)


mean.gradients(
    x=lambda g, out, x, axis, keepdims: np.broadcast_to(spread(g, axis, keepdims) / _count(x, axis), x.shape)
)


@primitive(numpy=np.var)
def var(x: Array, axis: Axis = None, keepdims: bool = False, ddof: int = 0) -> Array:
    """The variance over ``axis``: ``sum((x - mean(x)) ** 2) / (n - ddof)`` (``ddof=1``: the sample variance).

    Shapes: any, without the axes, or with length 1 there (keepdims); a float dtype is kept.
    Rule:   dx = g * (x - mean(x)) * (2 / n)
    Raises: ValueError for too few numbers.

    >>> ta.Tensor([[1.0, 2.0], [3.0, 5.0]]).var(axis=-1)
    Tensor([0.25, 1.  ])
    """
    if _count(x, axis) <= ddof:
        raise ValueError(f"var: too few numbers in shape {x.shape} along axis {axis} for ddof={ddof}")
    return np.var(x, axis=axis, keepdims=keepdims, ddof=ddof)


var.gradients(
    x=lambda g, out, x, axis, keepdims, ddof: (
        spread(g, axis, keepdims) * (x - x.mean(axis, keepdims=True)) * (2 / (_count(x, axis) - ddof))
    )
)


@primitive(numpy=(np.max, np.amax))
def max(x: Array, axis: Axis = None, keepdims: Any = False) -> Array:
    """The largest over ``axis``: it gets the gradient, and a tie splits it evenly.

    Shapes: any, without the axes, or with length 1 there (keepdims); the dtype is kept.
    Rule:   dx = g * ((x == out) / sum(x == out))

    >>> ta.Tensor([2.0, 5.0, 5.0]).max()
    Tensor(5.)
    """
    return np.maximum.reduce(x, axis=axis, keepdims=keepdims)


@primitive(numpy=(np.min, np.amin))
def min(x: Array, axis: Axis = None, keepdims: Any = False) -> Array:
    """The smallest over ``axis``: it gets the gradient, and a tie splits it evenly.

    Shapes: any, without the axes, or with length 1 there (keepdims); the dtype is kept.
    Rule:   dx = g * ((x == out) / sum(x == out))

    >>> ta.Tensor([2.0, 5.0, 2.0]).min()
    Tensor(2.)
    """
    return np.minimum.reduce(x, axis=axis, keepdims=keepdims)


@primitive(numpy=np.argmax)
def argmax(x: Array, axis: int | None = None, keepdims: bool = False) -> Array:
    """The position of the largest along ``axis`` (None: in the flattened array), the first of those that tie.

    Shapes: any, without the axis, or with length 1 there (keepdims); integers.
    Rule:   none, since a position has no gradient.

    >>> ta.Tensor([[1.0, 5.0], [3.0, 2.0]]).argmax(-1).tolist()
    [1, 0]
    """
    return np.argmax(x, axis, keepdims=keepdims)


def _extremum_rule(g: Array, out: Array, x: Array, axis: Axis, keepdims: bool) -> Array:
    best = (x == spread(out, axis, keepdims)).astype(g.dtype)
    return spread(g, axis, keepdims) * (best / best.sum(axis, keepdims=True))


max.gradients(x=_extremum_rule)
min.gradients(x=_extremum_rule)


@primitive()
def norm(x: Array, axis: Axis = None, keepdims: Any = False) -> Array:
    """The Euclidean length ``sqrt(sum(x ** 2))`` over ``axis``; its gradient at the zero vector is taken as 0.

    Shapes: any, without the axes, or with length 1 there (keepdims); a float dtype is kept.
    Rule:   dx = g * where(out == 0, 0, x / where(out == 0, 1, out))

    >>> ta.norm(ta.Tensor([3.0, 4.0]))
    Tensor(5.)
    """
    peak = np.maximum.reduce(np.abs(x), axis=axis, keepdims=True, initial=0)
    unit = np.where((peak == 0) | np.isinf(peak), 1, peak)  # so that squares neither overflow nor vanish
    length = np.sqrt(np.add.reduce((x / unit) ** 2, axis=axis, keepdims=True)) * unit
    return length if keepdims else length.squeeze(axis)


def _norm_rule(g: Array, out: Array, x: Array, axis: Axis, keepdims: bool) -> Array:
    length = spread(out, axis, keepdims)
    return spread(g, axis, keepdims) * np.where(length == 0, 0, x / np.where(length == 0, 1, length))


norm.gradients(x=_norm_rule)


@primitive(numpy=np.cumsum)
def cumsum(x: Array, axis: int | None = None) -> Array:
    """The running sum along ``axis`` (None: of the flattened array); the gradient is summed from the other end.

    Shapes: any, kept (None: flat); a float dtype is kept.
    Rule:   dx = reshape(flip(cumsum(flip(g))), x.shape)

    >>> ta.Tensor([1.0, 2.0, 3.0]).cumsum()
    Tensor([1., 3., 6.])
    """
    return np.cumsum(x, axis=axis)


cumsum.gradients(x=lambda g, out, x, axis: np.flip(np.cumsum(np.flip(g, axis), axis), axis).reshape(x.shape))


@derived(numpy=np.prod)
def prod(x: Array, axis: Axis = None, keepdims: bool = False) -> Array:
    """The product over ``axis``, by halves: right to any order at zeros too, where ``out / x`` would fail.

    Shapes: any, without the axes, or with length 1 there (keepdims); the dtype is kept.

    >>> ta.Tensor([2.0, 3.0, 4.0]).prod()
    Tensor(24.)
    """
    axes = normalize_axis_tuple(range(x.ndim) if axis is None else axis, x.ndim, f"prod: shape {x.shape}")
    kept = tuple(i for i in range(x.ndim) if i not in axes)
    factors = reshape(transpose(x, (*axes, *kept)), (_count(x, axes), *(x.shape[i] for i in kept)))
    while len(factors) > 1:
        half = len(factors) // 2
        pairs = factors[:half] * factors[half : 2 * half]
        factors = concatenate([pairs, factors[2 * half :]]) if len(factors) % 2 else pairs
    product = factors[0] if len(factors) else factors.sum(0) + 1  # the product of nothing is 1
    return reshape(product, tuple(1 if i in axes else n for i, n in enumerate(x.shape))) if keepdims else product
