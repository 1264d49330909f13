"""The primitives by family: in each file the forward of an operation and, beside it, its gradient rules."""

from .. import tensor as tensor  # operations attach themselves to Tensor
from . import elementwise, index, linear, nn, reduce, shape

__all__ = ["elementwise", "index", "linear", "nn", "reduce", "shape"]
