"""Finite differences for every gradient of the backward pass, contributions included.

The recorded forward operations are run again in float64 from a nudged value onward. A contribution is the
derivative along ONE use of a value, so only what that operation sees is nudged; a whole gradient is the derivative
along all uses at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..trace import Node, Operand, Trace

Use = tuple[int, int]  # (operation, the position of the value among its arguments)
EPSILON = 1e-5
LARGEST = 256  # a gradient of more numbers is checked along one direction only
BUDGET = 20_000  # and so are all, once so many operations were run again


class FiniteDifferences:
    """The forward computation in float64, ready to be run again from any of its values."""

    def __init__(self, forward: Trace) -> None:
        self.nodes, (self.loss,) = forward.nodes, forward.outputs
        self.budget = BUDGET
        self.values: dict[int, Any] = {}
        for n in self.nodes:
            data = n.tensor.data
            exact = data.astype(np.float64) if n.op is None and data.dtype.kind == "f" else data
            self.values[n.id] = run(n, self.values, {}) if n.op else exact
        original = self.nodes[self.loss].tensor.item()
        self.is_faithful = bool(np.isclose(self.values[self.loss].item(), original, rtol=1e-3, atol=1e-6))

    def of(self, target: int, uses: frozenset[Use], gradient: np.ndarray) -> np.ndarray | tuple[float, float] | None:
        """Beside each number of the gradient its finite difference; of a large one, both slopes along one direction.

        None if the operations do not give the same loss again.
        """
        if not self.is_faithful:
            return None
        reached = {user for user, _ in uses}
        for n in self.nodes:
            if not reached.isdisjoint(n.operands):
                reached.add(n.id)
        downstream = sorted(reached)  # the operations that a change at these uses reaches, in the order they ran
        here = np.broadcast_to(self.values[target], gradient.shape)  # before un-broadcasting, each copy counts

        def loss(value: np.ndarray) -> float:
            """The loss when these uses see `value` in the place of their operand."""
            values = dict(self.values)
            for i in downstream:
                values[i] = run(self.nodes[i], values, {position: value for user, position in uses if user == i})
            return float(values[self.loss])

        def slope(direction: np.ndarray) -> float:
            moving = here[(direction != 0) & np.isfinite(here)]
            step = EPSILON * max(1.0, float(np.abs(moving).max(initial=0)))
            return (loss(here + step * direction) - loss(here - step * direction)) / (2 * step)

        cost = 2 * len(downstream) * gradient.size
        if gradient.size <= LARGEST and cost <= self.budget:
            self.budget -= cost
            each = np.eye(gradient.size).reshape(gradient.size, *gradient.shape)
            return np.reshape([slope(direction) for direction in each], gradient.shape)
        direction = np.random.default_rng(0).standard_normal(gradient.shape)
        direction /= np.linalg.norm(direction)
        return float((gradient * direction).sum()), slope(direction)


def run(node: Node, values: dict[int, Any], seen: dict[int, Any]) -> Any:
    """One operation's forward; at the positions in `seen` it sees those values instead."""

    def look(position: int, argument: Any) -> Any:
        if isinstance(argument, tuple):
            return tuple(look(i, a) for i, a in enumerate(argument))
        return seen.get(position, values[argument.id]) if isinstance(argument, Operand) else argument

    op = node.tensor.op
    assert op is not None
    arguments = [look(i, a) for i, a in enumerate(node.arguments)]
    return arguments[0] if op.name == "astype" else op.of(*arguments)  # the check keeps its own precision
