"""Derivatives of functions of arrays: each is `grad`, asked in a certain way.

A function is differentiated at a point, without touching any `.grad`. What comes out can be differentiated
again if the point is a Tensor that requires gradients; otherwise it is a constant, and the graph is gone.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from .autograd import grad
from .modes import enable_grad, is_grad_enabled
from .ops.shape import stack
from .tensor import Tensor


def value_and_grad(f: Callable[..., Tensor], argnums: int | tuple[int, ...] = 0) -> Callable[..., tuple[Tensor, Any]]:
    """A function that returns the value of `f`, a scalar, and its gradient by the first argument.

    `argnums` names other positional arguments: a number gives one gradient, a tuple of numbers a tuple of
    gradients, each with the shape and dtype of its argument. All else is handed to `f` as it is.

    >>> value, gradient = ta.value_and_grad(lambda w: (w * w).sum())(np.array([1.0, 2.0]))
    >>> value.item(), gradient.tolist()
    (5.0, [2.0, 4.0])
    """

    def value_and_gradient(*args: Any, **kwargs: Any) -> tuple[Tensor, Any]:
        positions = (argnums,) if isinstance(argnums, int) else argnums
        if not all(-len(args) <= i < len(args) for i in positions):
            raise ValueError(f"value_and_grad: argnums={argnums} does not fit {len(args)} positional arguments")
        given, again = list(args), any(map(_tracked, args))
        for i in positions:
            given[i] = _point(args[i])
        with enable_grad():
            value = f(*given, **kwargs)
            if _result(value).size != 1:
                raise ValueError(
                    f"value_and_grad: f must return one number, not shape {value.shape}; reduce it with "
                    ".sum() or .mean(), or ask for the jacobian"
                )
            gradients = tuple(_gradients(value, [given[i] for i in positions], again))
        return value if again else value.detach(), gradients[0] if isinstance(argnums, int) else gradients

    return value_and_gradient


def jacobian(f: Callable[[Tensor], Tensor], x: Any) -> Tensor:
    """All derivatives of `f` at `x`: element [i, j] is the derivative of f(x)[i] with respect to x[j].

    Its shape is f(x).shape + x.shape. One backward pass per element of f(x).

    >>> ta.jacobian(lambda x: x * x, np.array([1.0, 2.0])).tolist()
    [[2.0, 0.0], [0.0, 4.0]]
    """
    point, again = _point(x), _tracked(x)
    with enable_grad():
        y = _result(f(point))
        seeds = ((np.arange(y.size) == i).reshape(y.shape) for i in range(y.size))
        rows = [_gradients(y, [point], again, grad_outputs=seed, retain_graph=True)[0] for seed in seeds]
        if not rows:
            return Tensor(np.zeros(y.shape + point.shape, point.dtype))
        table: Tensor = stack(rows).reshape((*y.shape, *point.shape))
        return table


def hessian(f: Callable[[Tensor], Tensor], x: Any) -> Tensor:
    """All second derivatives of the scalar `f` at `x`, of shape x.shape + x.shape.

    >>> ta.hessian(lambda x: x.sum() ** 2, np.array([1.0, 2.0])).tolist()
    [[2.0, 2.0], [2.0, 2.0]]
    """
    return jacobian(_slope(f), x)


def hvp(f: Callable[[Tensor], Tensor], x: Any, v: Any) -> Tensor:
    """The Hessian of the scalar `f` at `x` times `v`, both of x's shape, without ever making the Hessian.

    >>> ta.hvp(lambda x: (x**3).sum(), np.array([1.0, 2.0]), np.array([1.0, 10.0])).tolist()
    [6.0, 120.0]
    """
    if np.shape(v) != np.shape(x):
        raise ValueError(f"hvp: v has shape {np.shape(v)}, but x has shape {np.shape(x)}")
    product: Tensor = _slope(lambda point: (_slope(f)(point) * v).sum())(x)
    return product


def _slope(f: Callable[[Tensor], Tensor]) -> Callable[[Any], Any]:
    return lambda x: value_and_grad(f)(x)[1]


def _tracked(x: Any) -> bool:
    return isinstance(x, Tensor) and x.requires_grad and is_grad_enabled()


def _point(x: Any) -> Tensor:
    """Where to differentiate: a node of its own, so that no other use of `x` counts."""
    if _tracked(x):
        return x.reshape(x.shape)  # type: ignore[no-any-return]
    return Tensor(x, requires_grad=True, name=getattr(x, "name", None))


def _result(y: Any) -> Tensor:
    if not isinstance(y, Tensor):
        raise TypeError(f"the function to differentiate must return a Tensor, got {type(y).__name__}")
    return y


def _gradients(y: Tensor, points: list[Tensor], again: bool, **options: Any) -> list[Tensor]:
    """The gradients of `y`; where it does not depend on a point, zero."""
    none = [None] * len(points)
    found = grad(y, points, create_graph=again, allow_unused=True, **options) if y.requires_grad else none
    return [Tensor(np.zeros_like(p.data)) if g is None else g for g, p in zip(found, points)]
