"""Operations that run along axes: sums, means, extrema, norms, cumulative sums."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_tuple

from ..autograd import Array, derived, primitive
from .elementwise import multiply, power
from .shape import concatenate, expand_dims, reshape

Axis = Any  # an int, a tuple of them or None


def spread(g: Array, x: Array, axis: Axis, keepdims: bool) -> Array:
    """What a reduction kept, with the axes back that it dropped, so that it broadcasts against ``x``."""
    return g if keepdims or axis is None else np.expand_dims(g, _positive(axis, x.ndim))


def _positive(axis: int | tuple[int, ...], ndim: int) -> tuple[int, ...]:
    return tuple(a % ndim for a in (axis if isinstance(axis, tuple) else (axis,)))


def _count(x: Array, axis: Axis) -> int:
    return math.prod(x.shape if axis is None else (x.shape[a] for a in _positive(axis, x.ndim)))


@primitive(numpy=np.sum)
def sum(x: Array, axis: Axis = None, keepdims: Any = False) -> Array:
    """The sum over ``axis`` (None: all, a tuple: several): every summand gets the whole gradient.

    >>> ta.Tensor([[1.0, 2.0], [3.0, 4.0]]).sum(axis=0)
    Tensor([4., 6.])
    """
    return np.add.reduce(x, axis=axis, keepdims=keepdims)


sum.gradients(x=lambda g, out, x, axis, keepdims: np.broadcast_to(spread(g, x, axis, keepdims), x.shape))


@primitive(numpy=np.mean)
def mean(x: Array, axis: Axis = None, keepdims: bool = False) -> Array:
    """The mean over ``axis``; an empty one is refused.

    >>> ta.Tensor([[1.0, 2.0], [3.0, 4.0]]).mean(axis=1)
    Tensor([1.5, 3.5])
    """
    if _count(x, axis) == 0:
        raise ValueError(f"mean: nothing to average in shape {x.shape} along axis {axis}")
    return np.mean(x, axis=axis, keepdims=keepdims)


mean.gradients(
    x=lambda g, out, x, axis, keepdims: np.broadcast_to(spread(g, x, axis, keepdims) / _count(x, axis), x.shape)
)


@primitive(numpy=np.var)
def var(x: Array, axis: Axis = None, keepdims: bool = False, ddof: int = 0) -> Array:
    """The variance over ``axis``: the mean squared distance from the mean (``ddof=1``: the sample variance).

    >>> ta.Tensor([[1.0, 2.0], [3.0, 5.0]]).var(axis=-1)
    Tensor([0.25, 1.  ])
    """
    if _count(x, axis) <= ddof:
        raise ValueError(f"var: too few numbers in shape {x.shape} along axis {axis} for ddof={ddof}")
    return np.var(x, axis=axis, keepdims=keepdims, ddof=ddof)


var.gradients(
    x=lambda g, out, x, axis, keepdims, ddof: (
        spread(g, x, axis, keepdims) * (x - x.mean(axis, keepdims=True)) * (2 / (_count(x, axis) - ddof))
    )
)


def _shared(g: Array, out: Array, x: Array, axis: Axis, keepdims: bool) -> Array:
    """The gradient of an extremum, split evenly among the elements that tie for it."""
    best = (x == spread(out, x, axis, keepdims)).astype(g.dtype)
    return spread(g, x, axis, keepdims) * (best / best.sum(axis, keepdims=True))


@primitive(numpy=(np.max, np.amax))
def max(x: Array, axis: Axis = None, keepdims: Any = False) -> Array:
    """The largest over ``axis``; a tie splits the gradient evenly.

    >>> ta.Tensor([2.0, 5.0, 5.0]).max()
    Tensor(5.)
    """
    return np.maximum.reduce(x, axis=axis, keepdims=keepdims)


@primitive(numpy=(np.min, np.amin))
def min(x: Array, axis: Axis = None, keepdims: Any = False) -> Array:
    """The smallest over ``axis``; a tie splits the gradient evenly.

    >>> ta.Tensor([2.0, 5.0, 2.0]).min()
    Tensor(2.)
    """
    return np.minimum.reduce(x, axis=axis, keepdims=keepdims)


max.gradients(x=_shared)
min.gradients(x=_shared)


@primitive()
def norm(x: Array, axis: Axis = None, keepdims: Any = False) -> Array:
    """The Euclidean length over ``axis``; its gradient at the zero vector is taken as 0.

    >>> ta.norm(ta.Tensor([3.0, 4.0]))
    Tensor(5.)
    """
    peak = np.maximum.reduce(np.abs(x), axis=axis, keepdims=True, initial=0)
    unit = np.where((peak == 0) | np.isinf(peak), 1, peak)  # so that squares neither overflow nor vanish
    length = np.sqrt(np.add.reduce((x / unit) ** 2, axis=axis, keepdims=True)) * unit
    return length if keepdims else length.squeeze(axis)


def _norm_rule(g: Array, out: Array, x: Array, axis: Axis, keepdims: bool) -> Array:
    length = spread(out, x, axis, keepdims)
    unit = np.where(length == 0, 0, x / np.where(length == 0, 1, length))
    return spread(g, x, axis, keepdims) * unit


norm.gradients(x=_norm_rule)


@primitive(numpy=np.cumsum)
def cumsum(x: Array, axis: int | None = None) -> Array:
    """The running sum along ``axis`` (None: of the flattened array).

    >>> ta.Tensor([1.0, 2.0, 3.0]).cumsum()
    Tensor([1., 3., 6.])
    """
    return np.cumsum(x, axis=axis)


cumsum.gradients(
    x=lambda g, out, x, axis: np.flip(np.cumsum(np.flip(g, axis or 0), axis or 0), axis or 0).reshape(x.shape)
)


@derived(numpy=np.prod)
def prod(x: Array, axis: Axis = None, keepdims: bool = False) -> Array:
    """The product over ``axis``, by halves: right to any order at zeros too, where ``out / x`` would fail.

    >>> ta.Tensor([2.0, 3.0, 4.0]).prod()
    Tensor(24.)
    """
    try:
        axes = normalize_axis_tuple(tuple(range(x.ndim)) if axis is None else axis, x.ndim)
    except ValueError as error:
        raise ValueError(f"prod: cannot take shape {x.shape}, axis={axis}: {error}") from error
    kept = [i for i in range(x.ndim) if i not in axes]
    factors = reshape(
        x.transpose((*axes, *kept)), (-1, *(x.shape[i] for i in kept)) if x.size else (0,) * (len(kept) + 1)
    )
    while len(factors) > 1:
        half = len(factors) // 2
        pairs = multiply(factors[:half], factors[half : 2 * half])
        factors = pairs if len(factors) % 2 == 0 else concatenate([pairs, factors[2 * half :]])
    product = factors[0] if len(factors) else power(factors.sum(0), 0)
    return expand_dims(product, tuple(sorted(axes))) if keepdims and axes else product
