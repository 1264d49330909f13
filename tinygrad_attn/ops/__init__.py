"""The primitives by family: in each file the forward of an operation and, beside it, its gradient rules."""

from .. import tensor as tensor  # operations attach themselves to Tensor
from . import elementwise as elementwise, index as index, linear as linear, nn as nn, reduce as reduce, shape as shape
