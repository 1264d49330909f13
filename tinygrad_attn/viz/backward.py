"""The backward pass as plain data: one step per gradient contribution, per sum at a fan-out, per un-broadcast.

The engine itself runs it (`grad(..., create_graph=True)` with a seed that wants gradients, so that every operation
is recorded); here the recorded operations are grouped by the rule they came from and named after the value whose
gradient they are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from .trace import Trace

if TYPE_CHECKING:
    from ..tensor import Tensor
    from .formula import Symbol

Role = Literal["seed", "rule", "unbroadcast", "accumulate"]


@dataclass(frozen=True, slots=True)
class Step:
    """One line of the backward pass: a (contribution to a) gradient.

    seed         the incoming gradient of the loss
    rule         the rule of forward operation `of`, for its operand number `position`
    unbroadcast  the sum that brings a gradient back to the shape of its value
    accumulate   the sum of several contributions to one value (a fan-out)

    `target` is the forward node whose gradient this is; `reads` the forward nodes whose VALUES the rule reads (its
    formula's symbols, no others); `operands` the steps whose gradients it takes; `recorded` the nodes of
    `Backward.graph` that the engine recorded while it ran (none where a rule passes its gradient on unchanged).
    """

    id: int
    role: Role
    name: str
    target: int
    of: int | None
    position: int | None
    operands: tuple[int, ...]
    reads: tuple[int, ...]
    expression: Symbol = field(repr=False)
    recorded: tuple[int, ...] = field(repr=False)
    tensor: Tensor = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Backward:
    """Steps in the engine's own order; `gradients[node]` is the step that holds a forward node's whole gradient."""

    forward: Trace
    graph: Trace
    steps: tuple[Step, ...]
    gradients: dict[int, int]
