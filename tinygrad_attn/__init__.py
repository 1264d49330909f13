"""Reverse-mode autodiff on NumPy, small enough to read, built around the gradients of attention."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from . import ops as ops
from .autograd import PRIMITIVES as PRIMITIVES
from .autograd import Primitive as Primitive
from .autograd import derived as derived
from .autograd import detect_anomaly as detect_anomaly
from .autograd import enable_grad as enable_grad
from .autograd import grad as grad
from .autograd import is_grad_enabled as is_grad_enabled
from .autograd import no_grad as no_grad
from .autograd import primitive as primitive
from .ops.elementwise import abs as abs
from .ops.elementwise import add as add
from .ops.elementwise import clip as clip
from .ops.elementwise import cos as cos
from .ops.elementwise import divide as divide
from .ops.elementwise import exp as exp
from .ops.elementwise import gelu as gelu
from .ops.elementwise import log as log
from .ops.elementwise import masked_fill as masked_fill
from .ops.elementwise import maximum as maximum
from .ops.elementwise import minimum as minimum
from .ops.elementwise import multiply as multiply
from .ops.elementwise import negative as negative
from .ops.elementwise import power as power
from .ops.elementwise import relu as relu
from .ops.elementwise import sigmoid as sigmoid
from .ops.elementwise import silu as silu
from .ops.elementwise import sin as sin
from .ops.elementwise import sqrt as sqrt
from .ops.elementwise import subtract as subtract
from .ops.elementwise import tanh as tanh
from .ops.elementwise import where as where
from .ops.index import embedding as embedding
from .ops.index import take_along_axis as take_along_axis
from .ops.linear import einsum as einsum
from .ops.linear import matmul as matmul
from .ops.nn import cross_entropy as cross_entropy
from .ops.nn import dropout as dropout
from .ops.nn import layer_norm as layer_norm
from .ops.nn import log_softmax as log_softmax
from .ops.nn import logsumexp as logsumexp
from .ops.nn import softmax as softmax
from .ops.reduce import cumsum as cumsum
from .ops.reduce import max as max
from .ops.reduce import mean as mean
from .ops.reduce import min as min
from .ops.reduce import norm as norm
from .ops.reduce import prod as prod
from .ops.reduce import sum as sum
from .ops.reduce import var as var
from .ops.shape import broadcast_to as broadcast_to
from .ops.shape import concatenate as concatenate
from .ops.shape import expand_dims as expand_dims
from .ops.shape import flip as flip
from .ops.shape import reshape as reshape
from .ops.shape import roll as roll
from .ops.shape import split as split
from .ops.shape import squeeze as squeeze
from .ops.shape import stack as stack
from .ops.shape import swapaxes as swapaxes
from .ops.shape import transpose as transpose
from .ops.shape import tril as tril
from .ops.shape import triu as triu
from .tensor import Tensor as Tensor

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
