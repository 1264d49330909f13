"""The primitives by family: each file holds the forward of an operation and, beside it, its gradient rules."""

from .. import tensor as _tensor  # operations attach themselves to Tensor
from . import elementwise, index, linear, nn, reduce, shape

__all__ = ["elementwise", "index", "linear", "nn", "reduce", "shape"]
