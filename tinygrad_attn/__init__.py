"""tinygrad_attn: reverse-mode autodiff on NumPy, small enough to read, built around the gradients of attention."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from . import ops as ops
from .autograd import (
    PRIMITIVES,
    Primitive,
    derived,
    detect_anomaly,
    enable_grad,
    grad,
    is_grad_enabled,
    no_grad,
    primitive,
)
from .ops.elementwise import (
    abs,
    add,
    clip,
    cos,
    divide,
    exp,
    gelu,
    log,
    masked_fill,
    maximum,
    minimum,
    multiply,
    negative,
    power,
    relu,
    sigmoid,
    silu,
    sin,
    sqrt,
    subtract,
    tanh,
    where,
)
from .ops.index import embedding, take_along_axis
from .ops.linear import einsum, matmul
from .ops.nn import cross_entropy, dropout, layer_norm, log_softmax, logsumexp, softmax
from .ops.reduce import cumsum, max, mean, min, norm, prod, sum, var
from .ops.shape import (
    broadcast_to,
    concatenate,
    expand_dims,
    flip,
    reshape,
    roll,
    split,
    squeeze,
    stack,
    swapaxes,
    transpose,
    tril,
    triu,
)
from .tensor import Tensor

__version__ = "0.1.0"

_LAZY = {
    "nn": "nn",
    "optim": "optim",
    "data": "data",
    "checkpoint": "checkpoint",
    "viz": "viz",
    "gradcheck": "gradcheck:gradcheck",
    "GradcheckError": "gradcheck:GradcheckError",
    "value_and_grad": "functional:value_and_grad",
    "jacobian": "functional:jacobian",
    "hessian": "functional:hessian",
    "hvp": "functional:hvp",
    "tune_allocator": "allocator:tune_allocator",
}


def __getattr__(name: str) -> Any:
    """Load the rooms above the core when they are first asked for: importing the package stays cheap."""
    if name not in _LAZY:
        raise AttributeError(f"module 'tinygrad_attn' has no attribute {name!r}")
    module, _, attribute = _LAZY[name].partition(":")
    loaded = import_module(f".{module}", __name__)
    value = getattr(loaded, attribute) if attribute else loaded
    globals()[name] = value
    return value
