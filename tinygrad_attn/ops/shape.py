"""Operations that only move elements: the gradient is moved back the same way."""

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np

from ..autograd import Array, Node, derived, primitive


@primitive(numpy=np.reshape, packs=True)
def reshape(x: Array, shape: int | tuple[int, ...]) -> Array:
    """The same elements in another shape; one length may be -1.

    Shapes: any -> shape, of as many elements; the dtype is kept.
    Rule:   dx = reshape(g, x.shape)

    >>> ta.Tensor([[1.0, 2.0], [3.0, 4.0]]).reshape(4)
    Tensor([1., 2., 3., 4.])
    """
    return np.reshape(x, shape).view()


reshape.gradients(x=lambda g, out, x, shape: g.reshape(x.shape))


@primitive(numpy=np.transpose, packs=True)
def transpose(x: Array, axes: tuple[int, ...] | None = None) -> Array:
    """The axes in another order (None: reversed); the gradient's in the inverse one.

    Shapes: ``out.shape[i] = x.shape[axes[i]]``; the dtype is kept.
    Rule:   dx = transpose(g)

    >>> ta.Tensor([[1.0, 2.0]]).transpose()
    Tensor([[1.],
            [2.]])
    """
    return np.transpose(x, axes)


def _inverse(axes: tuple[int, ...] | None) -> tuple[int, ...] | None:
    return axes if axes is None else tuple(int(i) for i in np.argsort([a % len(axes) for a in axes]))


transpose.gradients(x=lambda g, out, x, axes: np.transpose(g, _inverse(axes)))
transpose.remedy = lambda x, axes: f"Name all {np.ndim(x)} axes in their new order, or use swapaxes for two"


@primitive(numpy=np.swapaxes)
def swapaxes(x: Array, axis1: int, axis2: int) -> Array:
    """Two axes exchanged; ``x.mT`` exchanges the last two.

    Shapes: (..., m, ..., n, ...) -> (..., n, ..., m, ...); the dtype is kept.
    Rule:   dx = swapaxes(g, axis1, axis2)

    >>> ta.Tensor([[1.0, 2.0]]).swapaxes(0, 1).shape
    (2, 1)
    """
    return np.swapaxes(x, axis1, axis2)


swapaxes.gradients(x=lambda g, out, x, axis1, axis2: np.swapaxes(g, axis1, axis2))

Node.result_type.mT = property(lambda x: swapaxes(x, -1, -2), doc="Each matrix of the stack transposed.")
Node.result_type.T = property(lambda x: transpose(x), doc="All axes in reverse order.")


@primitive(numpy=np.squeeze)
def squeeze(x: Array, axis: int | tuple[int, ...] | None = None) -> Array:
    """Axes of length 1 dropped (None: all of them).

    Shapes: (..., 1, ...) -> (..., ...); the dtype is kept.
    Rule:   dx = reshape(g, x.shape)
    Raises: ValueError for an axis of another length.

    >>> ta.Tensor([[1.0]]).squeeze()
    Tensor(1.)
    """
    return np.squeeze(x, axis).view()


squeeze.gradients(x=lambda g, out, x, axis: g.reshape(x.shape))


@primitive(numpy=np.expand_dims)
def expand_dims(x: Array, axis: int | tuple[int, ...]) -> Array:
    """New axes of length 1, at ``axis`` of the result.

    Shapes: (..., ...) -> (..., 1, ...); the dtype is kept.
    Rule:   dx = reshape(g, x.shape)

    >>> ta.Tensor([1.0, 2.0]).expand_dims(0).shape
    (1, 2)
    """
    return np.expand_dims(x, axis).view()


expand_dims.gradients(x=lambda g, out, x, axis: g.reshape(x.shape))


@primitive(numpy=np.broadcast_to, packs=True)
def broadcast_to(x: Array, shape: tuple[int, ...]) -> Array:
    """``x`` repeated to ``shape`` without copying; the engine sums the gradient over the repeats.

    Shapes: any that broadcasts to shape; the dtype is kept.
    Rule:   dx = g

    >>> ta.Tensor([1.0]).broadcast_to((2, 2)).sum()
    Tensor(4.)
    """
    return np.broadcast_to(x, shape)


broadcast_to.gradients(x=lambda g, out, x, shape: g)  # the engine un-broadcasts


@primitive(numpy=np.concatenate, method=None, variadic=True)
def concatenate(arrays: Sequence[Array], axis: int = 0) -> Array:
    """The arrays end to end along ``axis``; their gradient is split again.

    Shapes: (..., n, ...) and (..., m, ...) give (..., n + m, ...), otherwise equal; the wider dtype.
    Rule:   da = split(g, [n], axis=0)[0]
            db = split(g, [n], axis=0)[1]

    >>> ta.concatenate([ta.Tensor([1.0]), ta.Tensor([2.0, 3.0])])
    Tensor([1., 2., 3.])
    """
    if axis is None:
        raise TypeError("concatenate: needs an axis; reshape(-1) flattens")
    return np.concatenate(arrays, axis)


@concatenate.joint_gradients
def _split_again(g: Array, out: Array, arrays: Sequence[Array], axis: int) -> Array:
    return np.split(g, list(accumulate(a.shape[axis] for a in arrays))[:-1], axis)


@derived(numpy=np.stack, method=None)
def stack(arrays: Sequence[Array], axis: int = 0) -> Array:
    """Arrays of one shape along a new axis.

    >>> ta.stack([ta.Tensor(1.0), ta.Tensor(2.0)])
    Tensor([1., 2.])
    """
    if len(shapes := {np.shape(a) for a in arrays}) != 1:
        raise ValueError(f"stack: needs tensors of one shape, got {shapes}; concatenate joins different ones")
    return concatenate([expand_dims(a, axis) for a in arrays], axis)


@primitive(numpy=np.split, many=True)
def split(x: Array, sections: int | Sequence[int], axis: int = 0) -> Sequence[Array]:
    """A list of pieces along ``axis``: so many equal ones, or cut at these positions; gradients are joined.

    Shapes: (..., n, ...) -> a list of (..., m, ...) whose m sum to n; the dtype is kept.
    Rule:   dx = concatenate([g[0], g[1], g[2]], axis=0)
    Raises: ValueError for pieces that cannot be equal, and for cuts that do not ascend.

    >>> ta.Tensor([1.0, 2.0, 3.0, 4.0]).split(2)
    [Tensor([1., 2.]), Tensor([3., 4.])]
    """
    n, before = x.shape[axis], (slice(None),) * (axis % x.ndim)
    if (sections < 1 or n % sections) if isinstance(sections, int) else list(sections) != sorted(sections):
        raise ValueError(f"an axis of length {n} has no such pieces")
    cuts = [i * n // sections for i in range(1, sections)] if isinstance(sections, int) else sections
    return [x[(*before, slice(*piece))] for piece in pairwise([0, *cuts, n])]  # np.split takes three times as long


split.gradients(x=lambda gs, out, x, sections, axis: np.concatenate(gs, axis))
split.remedy = lambda x, sections, axis: "The pieces must be equal, or give ascending positions to cut at"


@primitive(numpy=np.tril)
def tril(x: Array, k: int = 0) -> Array:
    """The lower triangle of each matrix, up to diagonal ``k``; zeros above.

    Shapes: (..., n, m), kept; so is the dtype.
    Rule:   dx = tril(g)

    >>> ta.Tensor([[1.0, 2.0], [3.0, 4.0]]).tril()
    Tensor([[1., 0.],
            [3., 4.]])
    """
    return np.tril(x, k)


tril.gradients(x=lambda g, out, x, k: np.tril(g, k))


@primitive(numpy=np.triu)
def triu(x: Array, k: int = 0) -> Array:
    """The upper triangle of each matrix, from diagonal ``k``; zeros below.

    Shapes: (..., n, m), kept; so is the dtype.
    Rule:   dx = triu(g)

    >>> ta.Tensor([[1.0, 2.0], [3.0, 4.0]]).triu()
    Tensor([[1., 2.],
            [0., 4.]])
    """
    return np.triu(x, k)


triu.gradients(x=lambda g, out, x, k: np.triu(g, k))


@primitive(numpy=np.flip)
def flip(x: Array, axis: int | tuple[int, ...] | None = None) -> Array:
    """The order along ``axis`` reversed (None: along all).

    Shapes: any, kept; so is the dtype.
    Rule:   dx = flip(g)

    >>> ta.Tensor([1.0, 2.0]).flip()
    Tensor([2., 1.])
    """
    return np.flip(x, axis)


flip.gradients(x=lambda g, out, x, axis: np.flip(g, axis))


@primitive(numpy=np.roll)
def roll(x: Array, shift: int | tuple[int, ...], axis: int | tuple[int, ...] | None = None) -> Array:
    """The elements moved along ``axis`` by ``shift`` places, the last ones to the front.

    Shapes: any, kept; so is the dtype.
    Rule:   dx = roll(g, -shift)

    >>> ta.Tensor([1.0, 2.0, 3.0]).roll(1)
    Tensor([3., 1., 2.])
    """
    return np.roll(x, shift, axis)


roll.gradients(x=lambda g, out, x, shift, axis: np.roll(g, np.negative(shift), axis))
