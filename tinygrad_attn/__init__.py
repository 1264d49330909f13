"""Reverse-mode autodiff on NumPy, small enough to read, built around the gradients of attention."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from . import ops as ops
from .anomaly import detect_anomaly as detect_anomaly
from .autograd import (
    PRIMITIVES as PRIMITIVES,
    Primitive as Primitive,
    derived as derived,
    grad as grad,
    primitive as primitive,
)
from .gradcheck import GradcheckError as GradcheckError, gradcheck as gradcheck
from .modes import enable_grad as enable_grad, is_grad_enabled as is_grad_enabled, no_grad as no_grad
from .ops.elementwise import (
    abs as abs,
    add as add,
    clip as clip,
    cos as cos,
    divide as divide,
    exp as exp,
    gelu as gelu,
    log as log,
    masked_fill as masked_fill,
    maximum as maximum,
    minimum as minimum,
    multiply as multiply,
    negative as negative,
    power as power,
    relu as relu,
    sigmoid as sigmoid,
    silu as silu,
    sin as sin,
    sqrt as sqrt,
    subtract as subtract,
    tanh as tanh,
    where as where,
)
from .ops.index import embedding as embedding, take_along_axis as take_along_axis
from .ops.linear import einsum as einsum, matmul as matmul
from .ops.nn import (
    cross_entropy as cross_entropy,
    dropout as dropout,
    layer_norm as layer_norm,
    log_softmax as log_softmax,
    logsumexp as logsumexp,
    softmax as softmax,
)
from .ops.reduce import (
    argmax as argmax,
    cumsum as cumsum,
    max as max,
    mean as mean,
    min as min,
    norm as norm,
    prod as prod,
    sum as sum,
    var as var,
)
from .ops.shape import (
    broadcast_to as broadcast_to,
    concatenate as concatenate,
    expand_dims as expand_dims,
    flip as flip,
    reshape as reshape,
    roll as roll,
    split as split,
    squeeze as squeeze,
    stack as stack,
    swapaxes as swapaxes,
    transpose as transpose,
    tril as tril,
    triu as triu,
)
from .tensor import Tensor as Tensor

__version__ = "0.1.0"

_ROOMS = {"nn", "optim", "parallel", "data", "checkpoint", "viz"}
_LAZY = dict.fromkeys(("value_and_grad", "jacobian", "hessian", "hvp"), "functional") | {"tune_allocator": "allocator"}


def __getattr__(name: str) -> Any:
    """Load the rooms above the core when they are first asked for: importing the package stays cheap."""
    if name in _ROOMS:
        return import_module(f".{name}", __name__)
    if name not in _LAZY:
        raise AttributeError(f"module 'tinygrad_attn' has no attribute {name!r}")
    globals()[name] = value = getattr(import_module(f".{_LAZY[name]}", __name__), name)
    return value


def _shown_in_a_notebook(tensor: Tensor) -> str:
    return str(import_module(".viz.notebook", __name__).tensor_html(tensor))


Tensor._repr_html_ = _shown_in_a_notebook  # type: ignore[attr-defined]  # the core knows of no pictures
