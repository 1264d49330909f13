"""Finite differences for every gradient of the backward pass, contributions included.

The recorded forward operations are run again in float64 from a nudged value onward. A contribution is the
derivative along ONE use of a value, so only what that operation sees is nudged; a whole gradient is the derivative
along all uses at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ..trace import Node, Operand, Trace

Use = tuple[int, int]  # (operation, the position of the value among its arguments)
EPSILON = 1e-5


class Replay:
    """The forward computation in float64, ready to be run again from any of its values."""

    def __init__(self, forward: Trace) -> None:
        self.nodes = forward.nodes
        (self.loss,) = forward.outputs
        self.users: list[list[int]] = [[] for _ in self.nodes]
        for edge in forward.edges:
            self.users[edge.source].append(edge.target)
        self.values: dict[int, Any] = {}
        for node in self.nodes:
            self.values[node.id] = _run(node, self.values, {}) if node.op else _exact(node.tensor.data)
        original = self.nodes[self.loss].tensor.item()
        self.is_faithful = bool(np.isclose(self.values[self.loss].item(), original, rtol=1e-3, atol=1e-6))

    def downstream(self, uses: Iterable[Use]) -> list[int]:
        """The operations that a change at these uses reaches, in the order in which they ran."""
        reached = {user for user, _ in uses}
        stack = list(reached)
        while stack:
            new = [user for user in self.users[stack.pop()] if user not in reached]
            reached.update(new)
            stack.extend(new)
        return sorted(reached)

    def each(self, target: int, uses: frozenset[Use], shape: tuple[int, ...]) -> np.ndarray:
        """Central differences of the loss in each number of the value that these uses see."""
        order = self.downstream(uses)
        slopes = np.empty(shape)
        for index in np.ndindex(shape):
            nudge = np.zeros(shape)
            nudge[index] = 1.0
            slopes[index] = self._slope(target, uses, nudge, order)
        return slopes

    def along(self, target: int, uses: frozenset[Use], gradient: np.ndarray) -> tuple[float, float]:
        """The slope along one random direction: from the gradient, and as a central difference."""
        direction = np.random.default_rng(0).standard_normal(gradient.shape)
        direction /= np.linalg.norm(direction) or 1.0
        return float((gradient * direction).sum()), self._slope(target, uses, direction, self.downstream(uses))

    def _slope(self, target: int, uses: frozenset[Use], direction: np.ndarray, order: list[int]) -> float:
        value = np.broadcast_to(self.values[target], direction.shape)  # before un-broadcasting, each copy counts
        step = EPSILON * max(
            1.0, float(np.abs(value[direction != 0]).max(initial=0, where=np.isfinite(value[direction != 0])))
        )
        rise = self._loss_at(uses, value + step * direction, order) - self._loss_at(
            uses, value - step * direction, order
        )
        return rise / (2 * step)

    def _loss_at(self, uses: frozenset[Use], value: np.ndarray, order: list[int]) -> float:
        """The loss when these uses see `value` in the place of their operand."""
        values = dict(self.values)
        for i in order:
            values[i] = _run(self.nodes[i], values, {position: value for user, position in uses if user == i})
        result: float = values[self.loss].item()
        return result


def _run(node: Node, values: dict[int, Any], seen: dict[int, Any]) -> Any:
    """One operation's forward; at the positions in `seen` it sees those values instead."""

    def look(position: int, argument: Any) -> Any:
        if isinstance(argument, Operand):
            return seen[position] if position in seen else values[argument.id]
        if isinstance(argument, tuple) and any(isinstance(a, Operand) for a in argument):
            return tuple(look(i, a) for i, a in enumerate(argument))
        return argument

    op = node.tensor.op
    assert op is not None
    arguments = [look(i, a) for i, a in enumerate(node.arguments)]
    if op.name == "astype":  # the check keeps its own precision
        return arguments[0]
    if op.saves is not None:
        arguments.append(op.saves(*arguments))
    return op.forward(*arguments)


def _exact(data: Any) -> Any:
    return data.astype(np.float64) if data.dtype.kind == "f" else data
