"""Operations on each element by itself; operands broadcast, and the engine undoes that in the gradient."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..autograd import Array, Node, constant, derived, primitive


@primitive(numpy=np.add, operators=["add"], promotes=True)
def add(a: Array, b: Array) -> Array:
    """``a + b``: the gradient goes to both as it is.

    >>> ta.add(ta.Tensor([1.0, 2.0]), 1.0)
    Tensor([2., 3.])
    """
    return np.add(a, b)


add.gradients(
    a=lambda g, out, a, b: g,
    b=lambda g, out, a, b: g,
)


@primitive(numpy=np.subtract, operators=["sub"], promotes=True)
def subtract(a: Array, b: Array) -> Array:
    """``a - b``.

    >>> 3 - ta.Tensor([1.0, 2.0])
    Tensor([2., 1.])
    """
    return np.subtract(a, b)


subtract.gradients(
    a=lambda g, out, a, b: g,
    b=lambda g, out, a, b: -g,
)


@primitive(numpy=np.multiply, operators=["mul"], promotes=True)
def multiply(a: Array, b: Array) -> Array:
    """``a * b``: each gets the gradient times the other.

    >>> ta.Tensor([1.0, 2.0]) * 3
    Tensor([3., 6.])
    """
    return np.multiply(a, b)


multiply.gradients(
    a=lambda g, out, a, b: g * b,
    b=lambda g, out, a, b: g * a,
)


@derived(numpy=np.square)
def square(x: Array) -> Array:
    """``x * x``.

    >>> np.square(ta.Tensor([1.0, 3.0]))
    Tensor([1., 9.])
    """
    return multiply(x, x)


@primitive(numpy=np.divide, operators=["truediv"], promotes=True)
def divide(a: Array, b: Array) -> Array:
    """``a / b``.

    >>> ta.Tensor([1.0, 2.0]) / 4
    Tensor([0.25, 0.5 ])
    """
    return np.divide(a, b)


divide.gradients(
    a=lambda g, out, a, b: g / b,
    b=lambda g, out, a, b: -g * out / b,
)


@primitive(numpy=np.power, operators=["pow"], promotes=True)
def power(a: Array, b: Array) -> Array:
    """``a ** b``; the derivative of ``0 ** b`` with respect to ``b`` is taken as 0.

    >>> ta.Tensor([1.0, 2.0]) ** 3
    Tensor([1., 8.])
    """
    return a**b


def _one_less(b: Array) -> Array:
    """``b - 1``, but 1 where ``b`` is 0: the factor ``b`` is 0 there, and ``0 * 0 ** -1`` would be NaN."""
    if isinstance(b, (int, float)):
        return b - 1 if b else 1
    return np.where(b == 0, 1, b - 1)


def _nonzero(a: Array) -> Array:
    """``a`` with 1 in place of 0, where the logarithm is then 0."""
    return np.where(a == 0, 1, a)


power.gradients(
    a=lambda g, out, a, b: g * b * a ** _one_less(b),
    b=lambda g, out, a, b: g * out * np.log(_nonzero(a)),
)


@primitive(numpy=np.negative, operators=["neg"])
def negative(x: Array) -> Array:
    """``-x``.

    >>> -ta.Tensor([1.0, -2.0])
    Tensor([-1.,  2.])
    """
    return np.negative(x)


negative.gradients(x=lambda g, out, x: -g)


@primitive(numpy=np.exp)
def exp(x: Array) -> Array:
    """The exponential, its own derivative.

    >>> ta.exp(ta.Tensor([0.0]))
    Tensor([1.])
    """
    return np.exp(x)


exp.gradients(x=lambda g, out, x: g * out)


@primitive(numpy=np.log)
def log(x: Array) -> Array:
    """The natural logarithm.

    >>> ta.log(ta.Tensor([1.0]))
    Tensor([0.])
    """
    return np.log(x)


log.gradients(x=lambda g, out, x: g / x)


@primitive(numpy=np.sqrt)
def sqrt(x: Array) -> Array:
    """The square root; its derivative at 0 is infinite (`norm` is the safe way to a length).

    >>> ta.sqrt(ta.Tensor([4.0]))
    Tensor([2.])
    """
    return np.sqrt(x)


sqrt.gradients(x=lambda g, out, x: g / (2 * out))


@primitive(numpy=np.tanh)
def tanh(x: Array) -> Array:
    """The hyperbolic tangent.

    >>> ta.tanh(ta.Tensor([0.0]))
    Tensor([0.])
    """
    return np.tanh(x)


tanh.gradients(x=lambda g, out, x: g * (1 - out * out))


@primitive(numpy=np.sin)
def sin(x: Array) -> Array:
    """The sine, of radians.

    >>> ta.sin(ta.Tensor([0.0]))
    Tensor([0.])
    """
    return np.sin(x)


@primitive(numpy=np.cos)
def cos(x: Array) -> Array:
    """The cosine, of radians.

    >>> ta.cos(ta.Tensor([0.0]))
    Tensor([1.])
    """
    return np.cos(x)


sin.gradients(x=lambda g, out, x: g * np.cos(x))
cos.gradients(x=lambda g, out, x: -g * np.sin(x))


@primitive(numpy=(np.abs, np.fabs), operators=["abs"])
def abs(x: Array) -> Array:
    """The absolute value; its derivative at 0 is taken as 0.

    >>> ta.abs(ta.Tensor([-2.0, 3.0]))
    Tensor([2., 3.])
    """
    return np.abs(x)


abs.gradients(x=lambda g, out, x: g * np.sign(x))


@primitive()
def relu(x: Array) -> Array:
    """``max(x, 0)``; its derivative at 0 is taken as 0.

    >>> ta.relu(ta.Tensor([-2.0, 3.0]))
    Tensor([0., 3.])
    """
    return np.maximum(x, 0)


relu.gradients(x=lambda g, out, x: np.where(x > 0, g, 0))


@primitive()
def sigmoid(x: Array) -> Array:
    """``1 / (1 + exp(-x))``.

    >>> ta.sigmoid(ta.Tensor([0.0, -1000.0]))
    Tensor([0.5, 0. ])
    """
    with np.errstate(over="ignore"):  # exp(1000) is infinite, and 1 / infinity is the right 0
        return 1 / (1 + np.exp(-x))


sigmoid.gradients(x=lambda g, out, x: g * out * (1 - out))


@derived()
def silu(x: Array) -> Array:
    """``x * sigmoid(x)``.

    >>> ta.silu(ta.Tensor([0.0]))
    Tensor([0.])
    """
    return multiply(x, sigmoid(x))


_GELU = 1.5957691216057308  # 2 sqrt(2 / pi)
_GELU_CUBIC = 0.044715


def _gelu_gate(x: Array) -> Array:
    with np.errstate(over="ignore"):  # an infinite cube gives the right gate, 0 or 1
        return sigmoid.of(x * (_GELU + _GELU * _GELU_CUBIC * (x * x)))


@primitive(saves=_gelu_gate)
def gelu(x: Array, saved: Array) -> Array:
    """GPT-2's GELU, the tanh form: ``x * (1 + tanh(sqrt(2/pi) (x + 0.044715 x**3))) / 2``.

    Written with ``(1 + tanh(u)) / 2 = sigmoid(2 u)``, which does not cancel for negative ``x``.
    Source: Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016.

    >>> ta.gelu(ta.Tensor([0.0, 1.0])).numpy().round(4)
    array([0.    , 0.8412], dtype=float32)
    """
    return x * saved


def _gelu_rule(g: Array, out: Array, x: Array, gate: Array) -> Array:
    # beyond |x| = 30 the gate is exactly 0 or 1: the cap only keeps infinity out of 0 * infinity
    slope = _GELU + 3 * _GELU * _GELU_CUBIC * np.minimum(x * x, 900)
    return g * (gate + x * (gate * (1 - gate)) * slope)


gelu.gradients(x=np.errstate(over="ignore")(_gelu_rule))


@primitive(numpy=np.maximum, promotes=True)
def maximum(a: Array, b: Array) -> Array:
    """The larger of the two, elementwise; a tie splits the gradient evenly.

    >>> ta.maximum(ta.Tensor([1.0, 5.0]), 3.0)
    Tensor([3., 5.])
    """
    return np.maximum(a, b)


@primitive(numpy=np.minimum, promotes=True)
def minimum(a: Array, b: Array) -> Array:
    """The smaller of the two, elementwise; a tie splits the gradient evenly.

    >>> ta.minimum(ta.Tensor([1.0, 5.0]), 3.0)
    Tensor([1., 3.])
    """
    return np.minimum(a, b)


def _winner(g: Array, wins: Array, ties: Array) -> Array:
    return np.where(wins, g, np.where(ties, g / 2, 0))


maximum.gradients(
    a=lambda g, out, a, b: _winner(g, a > b, a == b),
    b=lambda g, out, a, b: _winner(g, b > a, a == b),
)
minimum.gradients(
    a=lambda g, out, a, b: _winner(g, a < b, a == b),
    b=lambda g, out, a, b: _winner(g, b < a, a == b),
)


@primitive(numpy=np.where, method=None, promotes=True)
def where(condition: Array, a: Array, b: Array) -> Array:
    """``a`` where the boolean ``condition`` holds, ``b`` elsewhere.

    >>> ta.where([True, False], ta.Tensor([1.0, 2.0]), 0.0)
    Tensor([1., 0.])
    """
    if np.asarray(condition).dtype != np.bool_:
        raise TypeError(f"where: the condition must be boolean, got {np.asarray(condition).dtype}; compare first")
    return np.where(condition, a, b)


where.gradients(
    a=lambda g, out, condition, a, b: np.where(condition, g, 0),
    b=lambda g, out, condition, a, b: np.where(condition, 0, g),
)


@primitive()
def masked_fill(x: Array, mask: Array, value: float = -np.inf) -> Array:
    """``value`` where the boolean ``mask`` is True (= blocked), ``x`` elsewhere; it blocks the gradient too.

    Args:
        x: any shape.
        mask: boolean, of a shape that broadcasts to that of ``x``.
        value: a number.

    >>> ta.masked_fill(ta.Tensor([1.0, 2.0]), [False, True])
    Tensor([  1., -inf])
    """
    mask = np.asarray(mask)
    if mask.dtype != np.bool_:
        raise TypeError(
            f"masked_fill: the mask must be boolean with True = blocked, got {mask.dtype}; "
            "a keep-mask of ones and zeros becomes `keep == 0`, an additive one `mask == -inf`"
        )
    if np.broadcast_shapes(np.shape(x), mask.shape) != np.shape(x):
        raise ValueError(f"masked_fill: a mask of shape {mask.shape} does not broadcast to the shape {np.shape(x)}")
    out = np.array(x)
    np.copyto(out, value, where=mask)
    return out


masked_fill.gradients(x=lambda g, out, x, mask, value: masked_fill.of(g, mask, 0))


@primitive(numpy=np.clip)
def clip(x: Array, min: Array = None, max: Array = None) -> Array:
    """``x`` kept within ``[min, max]``; the gradient passes where nothing was cut off.

    >>> ta.clip(ta.Tensor([-2.0, 0.5, 2.0]), -1, 1)
    Tensor([-1. ,  0.5,  1. ])
    """
    return np.clip(x, min, max)


clip.gradients(x=lambda g, out, x, min, max: np.where(x == out, g, 0))


@primitive()
def astype(x: Array, dtype: type) -> Array:
    """``x`` in another dtype; its gradient is cast back.

    >>> ta.Tensor([1.0]).astype(np.float64)
    Tensor([1.], dtype=float64)
    """
    return x.astype(dtype)


astype.gradients(x=lambda g, out, x, dtype: g)


def _to_integers(x: Node, dtype: Any) -> Any:
    return None if np.dtype(dtype).kind == "f" else constant(x._data.astype(dtype))  # they have no gradient


astype.rewrite = _to_integers


def _comparison(function: np.ufunc, operator: str) -> None:
    """A comparison gives booleans, which have no gradient."""

    def compare(a: Array, b: Array) -> Array:
        return function(a, b)

    compare.__name__ = function.__name__
    compare.__doc__ = f"Elementwise ``np.{function.__name__}``, as booleans without a gradient."
    primitive(numpy=function, operators=[operator])(compare).operands = (0, 1)


for _function, _symbol in [
    (np.equal, "eq"),
    (np.not_equal, "ne"),
    (np.less, "lt"),
    (np.less_equal, "le"),
    (np.greater, "gt"),
    (np.greater_equal, "ge"),
]:
    _comparison(_function, _symbol)
