"""Matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..autograd import PRIMITIVES, Array, Node, derived, primitive
from .shape import expand_dims, squeeze


@primitive(numpy=np.matmul, operators=["matmul"], promotes=True)
def matmul(a: Array, b: Array) -> Array:
    """The matrix product ``a @ b``, of stacks of matrices too, which broadcast.

    Shapes: ``(..., n, k) @ (..., k, m) -> (..., n, m)``; a 1-D operand is a row on the left, a column on
    the right.

    >>> ta.Tensor([[1.0, 2.0]]) @ ta.Tensor([[3.0], [4.0]])
    Tensor([[11.]])
    """
    if b.ndim == 2 and a.ndim > 2:  # one large product is faster than many small ones
        return (rows(a) @ b).reshape(*a.shape[:-1], b.shape[-1])
    return np.matmul(a, b)


def rows(x: Array) -> Array:
    """A stack of matrices as one tall matrix."""
    return x if x.ndim == 2 else x.reshape(-1, x.shape[-1])


def _left(g: Array, out: Array, a: Array, b: Array) -> Array:
    return matmul.of(g, b.mT)


def _right(g: Array, out: Array, a: Array, b: Array) -> Array:
    return rows(a).mT @ rows(g) if b.ndim == 2 else a.mT @ g


matmul.gradients(a=_left, b=_right)


def _vectors(a: Array, b: Array) -> Array:
    """A vector operand takes part as a matrix, and its axis is dropped again."""
    a, b = (x if isinstance(x, Node) else Node.result_type(x) for x in (a, b))
    if not a.ndim or not b.ndim:
        raise ValueError(f"matmul: cannot take shapes {a.shape} and {b.shape}; a single number multiplies with *")
    inner = b.shape[-min(b.ndim, 2)]
    if a.shape[-1] != inner:
        raise ValueError(
            f"matmul: cannot take shapes {a.shape} and {b.shape}: the last axis of the first ({a.shape[-1]}) must "
            f"equal the last but one of the second ({inner}); .mT transposes a matrix"
        )
    left, right = a.ndim == 1, b.ndim == 1
    if left or right:
        dropped = (-2,) * left + (-1,) * right
        return squeeze(matmul(expand_dims(a, 0) if left else a, expand_dims(b, 1) if right else b), dropped)
    return None


matmul.rewrite = _vectors


@derived(numpy=np.dot)
def dot(a: Array, b: Array) -> Array:
    """`matmul` under its older name, for vectors and matrices.

    >>> np.dot(np.array([1.0, 2.0]), ta.Tensor([3.0, 4.0]))
    Tensor(11., dtype=float64)
    """
    if np.ndim(b) > 2:
        raise ValueError(f"dot: shapes {np.shape(a)} and {np.shape(b)} are stacks of matrices; use matmul or einsum")
    return matmul(a, b)


@primitive(numpy=np.vecdot, method=None)
def vecdot(a: Array, b: Array) -> Array:
    """The sum of ``a * b`` over the last axis, without the product in memory.

    >>> np.vecdot(ta.Tensor([1.0, 2.0]), ta.Tensor([3.0, 4.0]))
    Tensor(11.)
    """
    return np.vecdot(a, b)


vecdot.gradients(
    a=lambda g, out, a, b: np.expand_dims(g, -1) * b,
    b=lambda g, out, a, b: np.expand_dims(g, -1) * a,
)


@primitive(method=None, variadic=True)
def _einsum(operands: Sequence[Array], subscripts: str) -> Array:
    return np.einsum(subscripts, *operands, optimize=len(operands) > 2)


_einsum.name = "einsum"
PRIMITIVES["einsum"] = PRIMITIVES.pop("_einsum")


@_einsum.joint_gradients
def _einsum_rule(g: Array, out: Array, operands: Sequence[Array], subscripts: str) -> list[Array]:
    """For each operand, the sum with its letters and those of the result exchanged."""
    inputs, result = subscripts.split("->")
    terms = inputs.split(",")
    gradients = []
    for i, (term, x) in enumerate(zip(terms, operands, strict=True)):
        others = [t for j, t in enumerate(terms) if j != i]
        reachable = "".join(c for c in term if c in result + "".join(others))
        rest = [o for j, o in enumerate(operands) if j != i]
        gradient = np.einsum(",".join([result, *others]) + "->" + reachable, g, *rest)
        for axis, letter in enumerate(term):  # a letter that only this operand has was summed alone
            if letter not in reachable:
                gradient = np.expand_dims(gradient, axis)
        gradients.append(np.broadcast_to(gradient, np.broadcast_shapes(gradient.shape, x.shape)))
    return gradients


def einsum(subscripts: str, *operands: Array) -> Array:
    """Einstein's sum: ``einsum("ij,jk->ik", a, b)`` is ``a @ b``.

    Letters name axes; those missing after ``->`` are summed.  A letter twice in one operand (a diagonal) is
    refused; ``...`` stands for leading axes.

    >>> ta.einsum("ij,ij->i", ta.Tensor([[1.0, 2.0]]), ta.Tensor([[3.0, 4.0]]))
    Tensor([11.])
    """
    tensors: list[Any] = [x if isinstance(x, Node) else Node.result_type(x) for x in operands]
    inputs, arrow, result = subscripts.replace(" ", "").partition("->")
    terms = inputs.split(",")
    shapes = " and ".join(str(x.shape) for x in tensors)
    if len(terms) != len(tensors):
        raise ValueError(f"einsum: {subscripts!r} names {len(terms)} operands, got {len(tensors)} of shapes {shapes}")
    spare = [c for c in "ZYXWVUTSRQPONMLKJIHGFEDCBA" if c not in subscripts]
    most = 0
    for i, (term, x) in enumerate(zip(terms, tensors, strict=True)):
        missing = x.ndim - len(term.replace("...", ""))
        if missing < 0 or (missing and "..." not in term):
            raise ValueError(f"einsum: {term!r} does not name the axes of shape {x.shape} in {subscripts!r}")
        most = max(most, missing)
        terms[i] = term.replace("...", "".join(spare[:missing][::-1]))
        if len(set(terms[i])) < len(terms[i]):
            raise ValueError(f"einsum: {term!r} repeats a letter; take the diagonal first")
    letters = "".join(terms)
    once = "".join(sorted(c for c in set(letters) if letters.count(c) == 1 and c not in spare))
    broadcast = "".join(spare[:most][::-1])
    result = result.replace("...", broadcast) if arrow else broadcast + once
    return _einsum(tuple(tensors), ",".join(terms) + "->" + result)


def _numpy_einsum(subscripts: str, *operands: Array, optimize: bool = False) -> Array:
    return einsum(subscripts, *operands)


from ..autograd import NUMPY  # noqa: E402

NUMPY[np.einsum] = _numpy_einsum
