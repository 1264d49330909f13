"""Reading elements by index; the gradient is added into zeros at the same index, repeats included."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..autograd import Array, Node, primitive


def _plain(index: Any) -> Any:
    """An index with arrays of its own in place of Tensors, lists and arrays that may still be written to."""
    if isinstance(index, tuple):
        return tuple(map(_plain, index))
    if isinstance(index, Node):
        index = index._data
    if isinstance(index, list):
        index = np.array(index, dtype=None if index else np.intp)
    if isinstance(index, np.ndarray):
        if index.dtype.kind not in "iub":
            raise TypeError(f"getitem: an index must be integers, booleans or slices, got {index.dtype}")
        return index.copy() if index.flags.writeable else index
    return index


def _is_basic(index: Any) -> bool:
    """Whether the index picks every element at most once, without arrays."""
    parts = index if isinstance(index, tuple) else (index,)
    return not any(isinstance(p, np.ndarray) for p in parts)


@primitive(method="__getitem__")
def getitem(x: Array, index: Any) -> Array:
    """``x[index]``: integers, slices, ``...``, None, integer arrays and boolean masks, as in NumPy.

    >>> ta.Tensor([1.0, 2.0, 3.0])[[0, 0, 2]]
    Tensor([1., 1., 3.])
    """
    return x[_plain(index)]


@primitive(method=None)
def scatter(g: Array, index: Any, shape: tuple[int, ...]) -> Array:
    """Zeros of ``shape`` with ``g`` added at ``index``: what `getitem` does, backwards.

    >>> ta.PRIMITIVES["scatter"](ta.Tensor([1.0, 2.0]), np.array([0, 0]), (3,))
    Tensor([3., 0., 0.])
    """
    total = np.zeros(shape, g.dtype)
    index = _plain(index)
    if _is_basic(index):
        total[index] = g
    else:
        np.add.at(total, index, g)
    return total


getitem.gradients(x=lambda g, out, x, index: scatter.of(g, index, x.shape))
scatter.gradients(g=lambda g, out, g_in, index, shape: g[index])


@primitive(numpy=np.take_along_axis)
def take_along_axis(x: Array, indices: Array, axis: int = -1) -> Array:
    """``x[..., indices[..., j], ...]`` along ``axis``: one list of positions for each row.

    >>> ta.take_along_axis(ta.Tensor([[1.0, 2.0], [3.0, 4.0]]), np.array([[1], [0]]), axis=1)
    Tensor([[2.],
            [3.]])
    """
    return np.take_along_axis(x, np.asarray(indices), axis)


@primitive(method=None)
def scatter_along_axis(g: Array, indices: Array, axis: int, shape: tuple[int, ...]) -> Array:
    """Zeros of ``shape`` with ``g`` added where `take_along_axis` reads."""
    total = np.zeros(shape, g.dtype)
    place: list[Any] = list(np.indices(shape, sparse=True))
    place[axis] = np.asarray(indices)
    np.add.at(total, tuple(place), g)
    return total


take_along_axis.gradients(x=lambda g, out, x, indices, axis: scatter_along_axis.of(g, indices, axis, x.shape))
scatter_along_axis.gradients(g=lambda g, out, g_in, indices, axis, shape: take_along_axis.of(g, indices, axis))


@primitive(method=None)
def embedding(weight: Array, ids: Array) -> Array:
    """The rows of ``weight`` that ``ids`` name.

    Shapes: ``weight`` (V, D) and integer ``ids`` (...) give (..., D).

    Raises:
        TypeError: the ids are not integers.
        IndexError: an id is not in ``0 .. V - 1``; a negative one does not count from the end.

    >>> ta.embedding(ta.Tensor([[1.0], [2.0]]), [1, 1, 0])
    Tensor([[2.],
            [2.],
            [1.]])
    """
    if weight.ndim != 2:
        raise ValueError(f"embedding: the weight has rows and columns, not shape {weight.shape}")
    return weight[_checked_ids(ids, len(weight))]


def _checked_ids(ids: Array, n: int) -> Array:
    ids = np.asarray(ids)
    if ids.dtype.kind not in "iu" and ids.size:
        raise TypeError(f"embedding: ids must be integers, got {ids.dtype}")
    if ids.size and (ids.min() < 0 or ids.max() >= n):
        bad = ids[(ids < 0) | (ids >= n)].flat[0]
        raise IndexError(f"embedding: id {bad} is outside the {n} rows 0 .. {n - 1}")
    return ids.astype(np.intp, copy=False)


@primitive(method=None)
def scatter_rows(g: Array, ids: Array, n: int) -> Array:
    """``n`` rows of zeros with each row of ``g`` added to the row that its id names.

    Shapes: ``g`` (..., D) and ``ids`` (...) give (n, D).
    """
    width = g.shape[-1]
    total = np.zeros((n, width), g.dtype)
    ids = np.asarray(ids, np.intp).ravel()
    if ids.size:
        order = np.argsort(ids, kind="stable")  # equal ids side by side, so that each run is one sum
        ids = ids[order]
        begins = np.ones(len(ids), bool)
        np.not_equal(ids[1:], ids[:-1], out=begins[1:])
        starts = np.flatnonzero(begins)
        total[ids[starts]] = np.add.reduceat(g.reshape(-1, width)[order], starts, axis=0)
    return total


embedding.gradients(weight=lambda g, out, weight, ids: scatter_rows.of(g, ids, weight.shape[0]))
scatter_rows.gradients(g=lambda g, out, g_in, ids, n: embedding.of(g, ids))
