"""Matrix products."""

from collections.abc import Sequence
from string import ascii_uppercase
from typing import Any

import numpy as np

from ..autograd import PRIMITIVES, Array, derived, primitive
from .shape import expand_dims, squeeze


@primitive(numpy=np.matmul, operators=["matmul"], promotes=True)
def matmul(a: Array, b: Array) -> Array:
    """The matrix product ``a @ b``, of stacks of matrices too, which broadcast.

    Shapes: (..., n, k) @ (..., k, m) -> (..., n, m); a 1-D operand is a row on the left, a column on the
            right. The wider float dtype, which integers follow.
    Rule:   da = g @ b.mT
            db = a.mT @ g
    Raises: ValueError for inner lengths that differ, and for a single number.

    >>> ta.Tensor([[1.0, 2.0]]) @ ta.Tensor([[3.0], [4.0]])
    Tensor([[11.]])
    """
    if b.ndim == 2 and a.ndim > 2:  # one large product is faster than many small ones
        return (rows(a) @ b).reshape(*a.shape[:-1], b.shape[-1])
    if b.ndim > 2 and b.strides[-1] > b.strides[-2] and 0 not in b.strides and b.shape[-2] * b.shape[-1] <= 4096:
        b = np.ascontiguousarray(b)  # BLAS is slow on small transposed matrices
    return np.matmul(a, b)


def rows(x: Array) -> Array:
    """A stack of matrices as one tall matrix."""
    return x if x.ndim == 2 else x.reshape(-1, x.shape[-1])


matmul.gradients(
    a=lambda g, out, a, b: matmul.of(g, b.mT),
    b=lambda g, out, a, b: rows(a).mT @ rows(g) if b.ndim == 2 else a.mT @ g,
)


def _vectors(a: Array, b: Array) -> Array:
    """A vector takes part as a matrix of one row or one column, and that axis is dropped again."""
    left, right = getattr(a, "shape", ()), getattr(b, "shape", ())
    if not left or not right:
        raise ValueError(f"matmul: cannot take shapes {left} and {right}; a single number multiplies with *")
    inner = right[-min(len(right), 2)]
    if left[-1] != inner:
        fit = f"the last axis of the first ({left[-1]}) must equal the last but one of the second ({inner})"
        raise ValueError(f"matmul: cannot take shapes {left} and {right}: {fit}; .mT transposes a matrix")
    if len(left) > 1 and len(right) > 1:
        return None
    product = matmul(expand_dims(a, 0) if len(left) == 1 else a, expand_dims(b, 1) if len(right) == 1 else b)
    return squeeze(product, (-2,) * (len(left) == 1) + (-1,) * (len(right) == 1))


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

    Shapes: (..., n) and (..., n), which broadcast, give (...); the wider dtype.
    Rule:   da = expand_dims(g, axis=-1) * b
            db = expand_dims(g, axis=-1) * a

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
    """The sum of products that ``subscripts`` describe, with every letter spelled out; see `einsum`.

    Shapes: a letter is one length; the wider dtype.
    Rule:   da = einsum(ik,jk->ij, g, b)
            db = einsum(ik,ij->jk, g, a)

    (for ``"ij,jk->ik"``: the letters of an operand and those of the result change places).
    """
    return np.einsum(subscripts, *operands, optimize=len(operands) > 2)


@_einsum.joint_gradients
def _einsum_rule(g: Array, out: Array, operands: Sequence[Array], subscripts: str) -> list[Array]:
    *terms, result = subscripts.replace("->", ",").split(",")
    gradients = []
    for i, (term, x) in enumerate(zip(terms, operands)):
        names, others = [result, *terms[:i], *terms[i + 1 :]], [g, *operands[:i], *operands[i + 1 :]]
        known = [dict(zip(name, other.shape)) for name, other in zip(names, others)]
        # an axis that is summed over without a partner: every place along it gets the same
        alone = {c: n for c, n in zip(term, x.shape) if all(lengths.get(c, -1) < n for lengths in known)}
        if alone:
            names.append("".join(alone))
            others.append(np.ones(tuple(alone.values()), x.dtype))
        gradients.append(np.einsum(f"{','.join(names)}->{term}", *others))
    return gradients


_einsum.name = "einsum"
_einsum.remedy = lambda operands, subscripts: f"The letters describe {subscripts.count(',') + 1} operands"
PRIMITIVES["einsum"] = PRIMITIVES.pop("_einsum")


@derived(numpy=np.einsum, method=None)
def einsum(subscripts: str, *operands: Array, optimize: Any = None) -> Array:
    """Einstein's sum: ``einsum("ij,jk->ik", a, b)`` is ``a @ b``.

    Letters name axes; those missing after ``->`` are summed, and ``...`` stands for leading axes.  NumPy's
    ``optimize`` is accepted and changes nothing.

    Shapes: as the letters say; axes of one letter have one length or 1.
    Rule:   the einsum in which the letters of the operand and those of the result change places.
    Raises: ValueError for letters that don't fit the shapes, and for a letter twice in one operand (a diagonal).

    >>> ta.einsum("ij,ij->i", ta.Tensor([[1.0, 2.0]]), ta.Tensor([[3.0, 4.0]]))
    Tensor([11.])
    """
    inputs, arrow, result = subscripts.replace(" ", "").partition("->")
    terms = inputs.split(",")
    spare = "".join(c for c in ascii_uppercase if c not in subscripts)  # the last of them name the axes of the dots
    dots = ""
    for i, (term, x) in enumerate(zip(terms, operands)):
        hidden = spare[len(spare) - np.ndim(x) + len(term.replace("...", "")) :]
        terms[i] = term.replace("...", hidden)
        if "..." in term:
            dots = max(dots, hidden, key=len)
        if len(set(terms[i])) < len(terms[i]):
            raise ValueError(f"einsum: {term!r} repeats a letter; take the diagonal first")
    letters = "".join(terms)
    once = sorted(c for c in set(letters) - set(dots) if letters.count(c) == 1)
    return _einsum(operands, f"{','.join(terms)}->{result.replace('...', dots) if arrow else dots + ''.join(once)}")
