"""Operations on each element by itself; operands broadcast, and the engine undoes that in the gradient."""

import numpy as np

from ..autograd import Array, constant, derived, primitive


@primitive(numpy=np.add, operators=["add"], promotes=True)
def add(a: Array, b: Array) -> Array:
    """``a + b``: the gradient goes to both as it is.

    Shapes: a and b broadcast; the wider float dtype, which numbers and integers follow.
    Rule:   da = g
            db = g

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

    Shapes: a and b broadcast; the wider float dtype, which numbers and integers follow.
    Rule:   da = g
            db = -g

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
    """``a * b``, element by element: each gets the gradient times the other.

    Shapes: a and b broadcast; the wider float dtype, which numbers and integers follow.
    Rule:   da = g * b
            db = g * a

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
    """``a / b``, element by element.

    Shapes: a and b broadcast; the wider float dtype, which numbers and integers follow.
    Rule:   da = g / b
            db = -g * out / b

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
    """``a ** b``, element by element; the derivatives of ``0 ** 0``, and of ``0 ** b`` by ``b``, are taken as 0.

    Shapes: a and b broadcast; the wider float dtype, which numbers and integers follow.
    Rule:   da = g * b * (a + (a == 0) * (b == 0))**(b - 1)
            db = g * out * log(a + (a == 0))

    A condition counts as 1 where it holds and 0 elsewhere: it keeps ``0 ** -1`` and ``log(0)`` away.

    >>> ta.Tensor([1.0, 2.0]) ** 3
    Tensor([1., 8.])
    """
    return a**b


def _base(a: Array, b: Array) -> Array:
    """``a``, but 1 where both are 0; there the factor ``b`` makes the derivative 0, and ``0 * 0 ** -1`` is NaN."""
    return a if isinstance(b, (int, float)) and b else a + (a == 0) * (b == 0)


power.gradients(
    a=lambda g, out, a, b: g * b * _base(a, b) ** (b - 1),
    b=lambda g, out, a, b: g * out * np.log(a + (a == 0)),
)


@primitive(numpy=np.negative, operators=["neg"])
def negative(x: Array) -> Array:
    """``-x``.

    Shapes: any, kept; so is the dtype.
    Rule:   dx = -g

    >>> -ta.Tensor([1.0, -2.0])
    Tensor([-1.,  2.])
    """
    return np.negative(x)


negative.gradients(x=lambda g, out, x: -g)


@primitive(numpy=np.exp)
def exp(x: Array) -> Array:
    """The exponential, its own derivative.

    Shapes: any, kept; so is a float dtype, integers become floats.
    Rule:   dx = g * out

    >>> ta.exp(ta.Tensor([0.0]))
    Tensor([1.])
    """
    return np.exp(x)


exp.gradients(x=lambda g, out, x: g * out)


@primitive(numpy=np.log)
def log(x: Array) -> Array:
    """The natural logarithm.

    Shapes: any, kept; so is a float dtype, integers become floats.
    Rule:   dx = g / x

    >>> ta.log(ta.Tensor([1.0]))
    Tensor([0.])
    """
    return np.log(x)


log.gradients(x=lambda g, out, x: g / x)


@primitive(numpy=np.sqrt)
def sqrt(x: Array) -> Array:
    """The square root; its derivative at 0 is infinite (`norm` is the safe way to a length).

    Shapes: any, kept; so is a float dtype, integers become floats.
    Rule:   dx = g / (2 * out)

    >>> ta.sqrt(ta.Tensor([4.0]))
    Tensor([2.])
    """
    return np.sqrt(x)


sqrt.gradients(x=lambda g, out, x: g / (2 * out))


@primitive(numpy=np.tanh)
def tanh(x: Array) -> Array:
    """The hyperbolic tangent.

    Shapes: any, kept; so is a float dtype, integers become floats.
    Rule:   dx = g * (1 - out * out)

    >>> ta.tanh(ta.Tensor([0.0]))
    Tensor([0.])
    """
    return np.tanh(x)


tanh.gradients(x=lambda g, out, x: g * (1 - out * out))


@primitive(numpy=np.sin)
def sin(x: Array) -> Array:
    """The sine, of radians.

    Shapes: any, kept; so is a float dtype, integers become floats.
    Rule:   dx = g * cos(x)

    >>> ta.sin(ta.Tensor([0.0]))
    Tensor([0.])
    """
    return np.sin(x)


sin.gradients(x=lambda g, out, x: g * np.cos(x))


@primitive(numpy=np.cos)
def cos(x: Array) -> Array:
    """The cosine, of radians.

    Shapes: any, kept; so is a float dtype, integers become floats.
    Rule:   dx = -g * sin(x)

    >>> ta.cos(ta.Tensor([0.0]))
    Tensor([1.])
    """
    return np.cos(x)


cos.gradients(x=lambda g, out, x: -g * np.sin(x))


@primitive(numpy=(np.abs, np.fabs), operators=["abs"])
def abs(x: Array) -> Array:
    """The absolute value; its derivative at 0 is taken as 0.

    Shapes: any, kept; so is the dtype.
    Rule:   dx = g * sign(x)

    >>> ta.abs(ta.Tensor([-2.0, 3.0]))
    Tensor([2., 3.])
    """
    return np.abs(x)


abs.gradients(x=lambda g, out, x: g * np.sign(x))


@primitive()
def relu(x: Array) -> Array:
    """``max(x, 0)``; its derivative at 0 is taken as 0.

    Shapes: any, kept; so is the dtype.
    Rule:   dx = where(x > 0, g, 0)

    >>> ta.relu(ta.Tensor([-2.0, 3.0]))
    Tensor([0., 3.])
    """
    return np.maximum(x, 0)


relu.gradients(x=lambda g, out, x: np.where(x > 0, g, 0))


@primitive()
def sigmoid(x: Array) -> Array:
    """``1 / (1 + exp(-x))``.

    Shapes: any, kept; so is a float dtype, integers become floats.
    Rule:   dx = g * out * (1 - out)

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
_CUBIC = 0.044715


@np.errstate(over="ignore")  # an infinite cube gives the right gate, 0 or 1
def _gelu_gate(x: Array) -> Array:
    return 1 / (1 + np.exp(x * (-_GELU - _CUBIC * _GELU * (x * x))))


@primitive(saves=_gelu_gate)
def gelu(x: Array, gate: Array) -> Array:
    """GPT-2's GELU, the tanh form: ``x * (1 + tanh(sqrt(2/pi) (x + 0.044715 x**3))) / 2``.

    Written as ``x * sigmoid(2 u)``, which equals ``x * (1 + tanh(u)) / 2`` and does not cancel for negative x.
    Source: Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016.

    Shapes: any, kept; so is a float dtype, integers become floats.
    Rule:   dx = g * (u + (v + 0.1341 * (v * x * x))),
                 where u = 1 / (1 + exp(x * (-1.596 - 0.07135 * (x * x)))), v = 1.596 * (out * (1 - u))

    >>> ta.gelu(ta.Tensor([0.0, 1.0])).numpy().round(4)
    array([0.    , 0.8412], dtype=float32)
    """
    return x * gate


def _gelu_rule(g: Array, out: Array, x: Array, gate: Array) -> Array:
    tail = _GELU * (out * (1 - gate))  # 0 for large x, in time for the square
    return g * (gate + (tail + 3 * _CUBIC * (tail * x * x)))


gelu.gradients(x=_gelu_rule)


@primitive(numpy=np.maximum, promotes=True)
def maximum(a: Array, b: Array) -> Array:
    """The larger of the two, element by element: it gets the gradient, and a tie splits it evenly.

    Shapes: a and b broadcast; the wider float dtype, which numbers and integers follow.
    Rule:   da = where(a == b, g / 2, where(a == out, g, 0))
            db = where(a == b, g / 2, where(b == out, g, 0))

    >>> ta.maximum(ta.Tensor([1.0, 5.0]), 3.0)
    Tensor([3., 5.])
    """
    return np.maximum(a, b)


@primitive(numpy=np.minimum, promotes=True)
def minimum(a: Array, b: Array) -> Array:
    """The smaller of the two, element by element: it gets the gradient, and a tie splits it evenly.

    Shapes: a and b broadcast; the wider float dtype, which numbers and integers follow.
    Rule:   da = where(a == b, g / 2, where(a == out, g, 0))
            db = where(a == b, g / 2, where(b == out, g, 0))

    >>> ta.minimum(ta.Tensor([1.0, 5.0]), 3.0)
    Tensor([1., 3.])
    """
    return np.minimum(a, b)


for _extremum in (maximum, minimum):
    _extremum.gradients(
        a=lambda g, out, a, b: np.where(a == b, g / 2, np.where(a == out, g, 0)),
        b=lambda g, out, a, b: np.where(a == b, g / 2, np.where(b == out, g, 0)),
    )


@primitive(numpy=np.where, method=None, promotes=True)
def where(condition: Array, a: Array, b: Array) -> Array:
    """``a`` where the boolean ``condition`` holds, ``b`` elsewhere; the gradient goes where the value came from.

    Shapes: all three broadcast; the wider float dtype of a and b, which numbers and integers follow.
    Rule:   da = where(condition, g, 0)
            db = where(condition, 0, g)
    Raises: TypeError for a condition that is not boolean.

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

    Shapes: any x, kept; the mask broadcasts to it; the dtype of x.
    Rule:   dx = masked_fill(g, mask, 0)
    Raises: TypeError for a mask that is not boolean, ValueError for one that does not fit.

    >>> ta.masked_fill(ta.Tensor([1.0, 2.0]), [False, True])
    Tensor([  1., -inf])
    """
    mask = np.asarray(mask)
    if mask.dtype != np.bool_:
        raise TypeError(
            f"masked_fill: the mask must be boolean with True = blocked, got {mask.dtype}; "
            "a keep-mask of ones and zeros becomes `keep == 0`, an additive one `mask == -inf`"
        )
    out = np.array(x)
    np.copyto(out, value, where=mask)
    return out


masked_fill.remedy = lambda x, mask, value: f"The mask, of shape {np.shape(mask)}, must broadcast to that of x"
masked_fill.gradients(x=lambda g, out, x, mask, value: masked_fill.of(g, mask, 0))


@primitive(numpy=np.clip)
def clip(x: Array, min: Array = None, max: Array = None) -> Array:
    """``x`` kept within ``[min, max]`` (None: no bound); the gradient passes where nothing was cut off.

    Shapes: min and max broadcast with x; the dtype of x.
    Rule:   dx = where(x == out, g, 0)

    >>> ta.clip(ta.Tensor([-2.0, 0.5, 2.0]), -1, 1)
    Tensor([-1. ,  0.5,  1. ])
    """
    if min is None and max is None:  # old NumPys refuse what changes nothing
        return np.array(x)
    return np.clip(x, min, max, dtype=x.dtype if x.dtype.kind == "f" else None)


clip.gradients(x=lambda g, out, x, min, max: np.where(x == out, g, 0))


@primitive()
def astype(x: Array, dtype: type) -> Array:
    """``x`` in another dtype; its gradient is cast back, and integers have none.

    Shapes: any, kept.
    Rule:   dx = g

    >>> ta.Tensor([1.0]).astype(np.float64)
    Tensor([1.], dtype=float64)
    """
    return x.astype(dtype)


astype.gradients(x=lambda g, out, x, dtype: g)


astype.rewrite = lambda x, dtype: None if np.dtype(dtype).kind == "f" else constant(x._data.astype(dtype))


def _comparison(function: np.ufunc, operator: str, sign: str) -> None:
    def compare(a: Array, b: Array) -> Array:
        """Whether ``a {sign} b``, element by element.

        Shapes: a and b broadcast; booleans.
        Rule:   none, since a truth value has no gradient.

        >>> (ta.Tensor([1.0, 2.0, 3.0]) {sign} 2).tolist()
        {example}
        """
        return function(a, b)

    compare.__name__ = function.__name__
    compare.__doc__ = str(compare.__doc__).format(sign=sign, example=function([1, 2, 3], 2).tolist())
    primitive(numpy=function, operators=[operator], operands=(0, 1))(compare)


_comparison(np.equal, "eq", "==")
_comparison(np.not_equal, "ne", "!=")
_comparison(np.less, "lt", "<")
_comparison(np.less_equal, "le", "<=")
_comparison(np.greater, "gt", ">")
_comparison(np.greater_equal, "ge", ">=")
