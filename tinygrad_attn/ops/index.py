"""Reading elements by index; the gradient is added into zeros at the same index, repeats included."""

from typing import Any

import numpy as np

from ..autograd import Array, Node, apply, primitive


@primitive(method="__getitem__")
def getitem(x: Array, index: Any) -> Array:
    """``x[index]``: integers, slices, ``...``, None, integer arrays and boolean masks, as in NumPy.

    Shapes: as in NumPy; the dtype of x.
    Rule:   dx = scatter(g, index, x.shape)
    Raises: IndexError for an index out of range, TypeError for one of floats.

    >>> ta.Tensor([1.0, 2.0, 3.0])[[0, 0, 2]]
    Tensor([1., 1., 3.])
    """
    return x[index]


def _own(index: Any) -> Any:
    """An index with arrays of its own in place of Tensors, lists and arrays, which could change until the backward."""
    if isinstance(index, tuple):
        return tuple(map(_own, index))
    if isinstance(index, (Node, list, np.ndarray)):
        index = np.array(index, dtype=np.intp if isinstance(index, list) and not index else None)
        if index.dtype.kind not in "iub":
            raise TypeError(f"getitem: an index must be integers, booleans or slices, got {index.dtype}")
    return index


getitem.rewrite = lambda x, index: apply(getitem, (x, _own(index)))


@primitive(method=None)
def scatter(g: Array, index: Any, shape: tuple[int, ...]) -> Array:
    """Zeros of ``shape`` with ``g`` added at ``index``: what `getitem` does, backwards.

    Shapes: ``zeros(shape)[index].shape -> shape``; the dtype of g.
    Rule:   dg = g[index]

    >>> ta.PRIMITIVES["scatter"](ta.Tensor([1.0, 2.0]), np.array([0, 0]), (3,))
    Tensor([3., 0., 0.])
    """
    total = np.zeros(shape, g.dtype)
    if isinstance(index, np.ndarray) and index.dtype.kind in "iu" and index.size:
        rows = np.asarray(index, np.intp).ravel() % len(total)
        order = rows.argsort(kind="stable")  # equal rows side by side, so that each run is one sum
        rows = rows[order]
        starts = np.append(True, rows[1:] != rows[:-1]).nonzero()[0]
        total[rows[starts]] = np.add.reduceat(g.reshape(len(rows), *shape[1:])[order], starts, axis=0)
    elif any(isinstance(part, (np.ndarray, list)) for part in (index if isinstance(index, tuple) else (index,))):
        np.add.at(total, index, g)
    else:  # slices and numbers name an element at most once
        total[index] = g
    return total


getitem.gradients(x=lambda g, out, x, index: scatter.of(g, index, x.shape))
scatter.gradients(g=lambda g, out, g_in, index, shape: g[index])


@primitive(numpy=np.take_along_axis)
def take_along_axis(x: Array, indices: Array, axis: int = -1) -> Array:
    """``x[..., indices[..., j], ...]`` along ``axis``: a list of positions of its own for each row.

    Shapes: x (..., n, ...) and integer indices (..., m, ...) give (..., m, ...); the dtype of x.
    Rule:   dx = scatter_along_axis(g, indices, x.shape, axis=-1)
    Raises: IndexError for an index out of range.

    >>> ta.take_along_axis(ta.Tensor([[1.0, 2.0], [3.0, 4.0]]), np.array([[1], [0]]), axis=1)
    Tensor([[2.],
            [3.]])
    """
    return np.take_along_axis(x, np.asarray(indices), axis)


@primitive(method=None)
def scatter_along_axis(g: Array, indices: Array, axis: int, shape: tuple[int, ...]) -> Array:
    """Zeros of ``shape`` with ``g`` added where `take_along_axis` reads.

    Shapes: that of indices -> shape; the dtype of g.
    Rule:   dg = take_along_axis(g, indices, axis=axis)

    >>> ta.PRIMITIVES["scatter_along_axis"](ta.Tensor([[1.0, 2.0]]), np.array([[2, 2]]), 1, (1, 3))
    Tensor([[0., 0., 3.]])
    """
    place: list[Any] = list(np.indices(shape, sparse=True))
    place[axis] = np.asarray(indices)
    return scatter.forward(g, tuple(place), shape)


take_along_axis.gradients(x=lambda g, out, x, indices, axis: scatter_along_axis.of(g, indices, axis, x.shape))
scatter_along_axis.gradients(g=lambda g, out, g_in, indices, axis, shape: take_along_axis.of(g, indices, axis))


@primitive(method=None)
def embedding(weight: Array, ids: Array) -> Array:
    """The rows of ``weight`` that ``ids`` name.

    Shapes: weight (V, D) and integer ids (...) give (..., D); the dtype of weight.
    Rule:   dweight = scatter(g, ids, weight.shape)
    Raises: TypeError for ids that are not integers, IndexError for one outside ``0 .. V - 1``: a negative one
            does not count from the end.

    >>> ta.embedding(ta.Tensor([[1.0], [2.0]]), [1, 1, 0])
    Tensor([[2.],
            [2.],
            [1.]])
    """
    if weight.ndim != 2:
        raise ValueError(f"embedding: the weight has rows and columns, not shape {weight.shape}")
    ids, n = np.asarray(ids), len(weight)
    if ids.dtype.kind not in "iu" and ids.size:
        raise TypeError(f"embedding: ids must be integers, got {ids.dtype}")
    outside = ids[(ids < 0) | (ids >= n)]
    if outside.size:
        raise IndexError(f"embedding: id {outside[0]} is outside the {n} rows 0 .. {n - 1}")
    return weight[ids.astype(np.intp, copy=False)]


embedding.gradients(weight=lambda g, out, weight, ids: scatter.of(g, ids, weight.shape))
