"""The backward pass as plain data: one step per gradient contribution, fan-out sum and un-broadcast.

The engine itself runs it: `grad(..., create_graph=True)` from a seed that wants gradients, so that every
operation is recorded. Here the recorded operations are put under the step they belong to, and each step is
named after the value whose gradient it is and carries the formula that its rule prints.
"""

from __future__ import annotations

import functools
import operator
from collections import Counter
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from ..autograd import grad, unbroadcast
from ..nn import Module
from ..tensor import Tensor
from .formula import NO_FORMULA, SUBSCRIPT, NamedArray, Symbol, rule_formulas
from .trace import Node, Operand, Trace, as_tensors, trace

Role = Literal["seed", "rule", "unbroadcast", "accumulate"]


@dataclass(frozen=True, slots=True)
class Step:
    """One line of the backward pass: a (contribution to a) gradient.

    seed         the incoming gradient of the loss
    rule         the rule of forward operation `of`, for its argument number `position`
    unbroadcast  the sum that brings a gradient back to the shape of its value
    accumulate   the sum of several contributions to one value (a fan-out)

    `target` is the forward node whose gradient this is; `operands` the steps whose gradients it takes;
    `reads` the forward nodes whose VALUES the rule reads (the names in its formula, no others). `recorded`
    are the nodes of `Backward.graph` that the engine recorded for it: none where a rule passes its gradient
    on unchanged, one per `+=` for an accumulate. `tensor` holds the result.
    """

    id: int
    role: Role
    name: str
    target: int
    expression: Symbol = field(repr=False)
    tensor: Tensor = field(repr=False, compare=False)
    reads: tuple[int, ...]
    of: int | None = None
    position: int | None = None
    operands: tuple[int, ...] = ()
    recorded: tuple[int, ...] = ()

    @property
    def formula(self) -> str:
        """The rule with its operands by name, in mathematical notation."""
        return self.expression.text("math")


@dataclass(frozen=True, slots=True)
class Backward:
    """Steps in the engine's own order; `gradients` maps a forward node to the step with its whole gradient.

    `graph` is everything that was recorded, the forward values that the rules read included.
    """

    forward: Trace
    graph: Trace
    steps: tuple[Step, ...]
    gradients: dict[int, int]


def trace_backward(loss: Any, wrt: Any = None, *, gradient: Any = None, names: Any = None) -> Backward:
    """Run the backward pass of `loss` as a recorded graph and return it as plain data.

    `wrt` are the values whose gradients are wanted: a tensor, a list, a dict (its keys become names) or a
    module (its parameters); by default every leaf. `gradient` is the seed for a loss that is not a single
    number. No `.grad` is touched and no graph is freed. A loss that depends on nothing with gradients gives a
    pass of no steps.

    >>> import tinygrad_attn as ta
    >>> x = ta.Tensor([1.0, 2.0], requires_grad=True, name="x")
    >>> for step in trace_backward((x * x).sum().named("loss")).steps:
    ...     print(step.name, "=", step.formula, step.tensor.numpy())
    dloss = 1 1.0
    dmultiply = broadcast(dloss) [1. 1.]
    dx₁ = dmultiply ⊙ x [1. 2.]
    dx₂ = dmultiply ⊙ x [1. 2.]
    dx = dx₁ + dx₂ [2. 4.]
    """
    roots, given = as_tensors(loss)
    if len(roots) != 1:
        raise TypeError(f"a backward pass starts from one loss, got {len(roots)} tensors; add them up first")
    (root,) = roots
    if isinstance(wrt, Module):
        wrt = dict(wrt.named_parameters())
    if names is None and isinstance(wrt, Mapping):
        names = wrt
    forward = trace({given.get(root) or root.name or "loss": root}, names=names)
    path = _path(forward, None if wrt is None else as_tensors(wrt)[0])
    if not path:  # nothing that is wanted leads to the loss
        return Backward(forward, Trace((), (), ()), (), {})
    if gradient is None and root.data.size == 1:
        gradient = np.ones_like(root.data)
    if gradient is None:
        raise ValueError(
            f"the loss has shape {root.shape}: reduce it to one number (.sum(), .mean()), or pass"
            " gradient= of that shape"
        )
    seed = Tensor(np.asarray(gradient, root.data.dtype), requires_grad=True)
    values = [n for n in path if n.dtype != "tuple"]
    found = grad(root, [n.tensor for n in values], seed, create_graph=True, retain_graph=True, allow_unused=True)
    total = {n.id: t for n, t in zip(values, found, strict=True) if t is not None}
    return _Reader(forward, path, total).read()


class _Reader:
    """Finds the steps in what the engine recorded."""

    def __init__(self, forward: Trace, path: list[Node], total: dict[int, Tensor]) -> None:
        self.forward, self.path, self.total = forward, path, total
        self.on_path = {n.id for n in path}
        self.number = {n.tensor: n.id for n in trace(list(total.values())).nodes}
        self.ran: dict[tuple[Tensor, int], list[Tensor]] = {}  # what a rule recorded for an argument (-1: for all)
        last = max(n.tensor.index for n in forward.nodes)  # what is older may come from an earlier backward pass
        for t in self.number:
            if t.index > last and t.origin is not None and t.origin.role == "rule":
                self.ran.setdefault((t.origin.of, t.origin.position), []).append(t)  # type: ignore[arg-type]
        self.steps: list[Step] = []
        self.gradients: dict[int, int] = {}

    def read(self) -> Backward:
        loss = self.forward.nodes[self.forward.outputs[0]]
        seed = self.total[loss.id]
        one = "1" if seed.data.size == 1 and seed.data.flat[0] == 1 else "seed"
        self.gradients[loss.id] = self.add("seed", f"d{loss.name}", loss, Symbol.named(one, seed.data), seed)
        uses = Counter(source for node in self.path for _, source in self.contributions(node))
        arrived = {source: _arrived(self.total[source], count) for source, count in uses.items()}
        steps_to: dict[int, list[int]] = {source: [] for source in uses}
        for node in reversed(self.path):
            contributions = list(self.contributions(node))
            rules = self.rules(node) if contributions else {}
            for position, source in contributions:
                target, mine, (parts, sums) = self.forward.nodes[source], steps_to[source], arrived[source]
                name = f"d{target.name}" + str(len(mine) + 1).translate(SUBSCRIPT) * bool(sums)
                mine.append(self.rule(node, position, target, rules[position], name, parts[len(mine)]))
                if len(mine) == len(parts):
                    self.gradients[source] = self.accumulate(target, mine, sums) if sums else mine[0]
        wholes = [self.steps[i] for i in reversed(self.gradients.values())]  # these win where one value has two names
        names = [(step.name, step.tensor) for step in (*self.steps, *wholes)]
        graph = trace(list(self.total.values()), names=names)
        return Backward(self.forward, graph, tuple(self.steps), self.gradients)

    def contributions(self, node: Node) -> Iterator[tuple[int, int]]:
        """(argument position, forward node) of each gradient that the rules of `node` give, in order."""
        arguments = node.arguments[0] if node.tensor.op and node.tensor.op.variadic else node.arguments
        for position, argument in enumerate(arguments):
            if isinstance(argument, Operand) and argument.id in self.on_path and node.op != "part":
                yield position, argument.id

    def rules(self, node: Node) -> dict[int, Any]:
        """What the rules of `node` print: incoming gradients, its result and its arguments by name."""
        op, args = node.tensor.op, symbols(self.forward, node)
        assert op is not None
        incoming = [
            Symbol.named(self.steps[self.gradients[n.id]].name if n.id in self.gradients else "0", n.tensor.data)
            for n in self.results(node)
        ]
        g, out = (incoming, None) if op.many else (incoming[0], Symbol.named(node.name, node.tensor.data, node.id))
        try:
            return rule_formulas(op, g, out, args)
        except NO_FORMULA:  # it asks for numbers
            parts = tuple(part for part in (*incoming, out, *args) if part is not None)
            sources = self.contributions(node)
            return {i: Symbol(f"rule of {op.name}", parts, self.forward.nodes[n].tensor.data) for i, n in sources}

    def results(self, node: Node) -> list[Node]:
        """The values whose gradients the rules of `node` take: its own, or those of its parts."""
        if node.dtype != "tuple":
            return [node]
        parts = (n for n in self.forward.nodes if n.op == "part" and n.operands == (node.id,))
        return sorted(parts, key=lambda n: n.arguments[1])

    def rule(self, node: Node, position: int, target: Node, expression: Any, name: str, result: Tensor) -> int:
        """Add the step of one rule, and that of the un-broadcast after it, if the engine made one."""
        fitted: list[Tensor] = []
        while (o := result.origin) is not None and o.of is target.tensor and o.role in ("unbroadcast", "cast"):
            fitted.insert(0, result)
            (result, *_) = result.args or ()
        ran = [t for p in (-1, position) for t in self.ran.get((node.tensor, p), ())]
        taken = tuple(self.gradients[n.id] for n in self.results(node) if n.id in self.gradients)
        more: dict[str, Any] = {"of": node.id, "position": position, "operands": taken}
        if not any(t.origin is not None and t.origin.role == "unbroadcast" for t in fitted):
            return self.add("rule", name, target, expression, [result, *fitted][-1], [*ran, *fitted], **more)
        step = self.add("rule", f"{name}*", target, expression, result, ran, **more)
        whole = unbroadcast(Symbol.named(f"{name}*", result.data), target.shape)
        return self.add("unbroadcast", name, target, whole, fitted[-1], fitted, operands=(step,))

    def accumulate(self, target: Node, parts: list[int], sums: list[Tensor]) -> int:
        names = [Symbol.named(self.steps[p].name, self.steps[p].tensor.data) for p in parts]
        total = functools.reduce(operator.add, names)
        return self.add("accumulate", f"d{target.name}", target, total, sums[-1], sums, operands=tuple(parts))

    def add(self, role: Role, name: str, target: Node, rule: Any, tensor: Tensor, made: Any = (), **more: Any) -> int:
        reads = tuple(dict.fromkeys(leaf.node for leaf in rule.leaves() if leaf.node is not None))
        ids = tuple(self.number[t] for t in made)
        step = Step(len(self.steps), role, name, target.id, rule, tensor, reads, recorded=ids, **more)
        self.steps.append(step)
        return step.id


def _arrived(total: Tensor, count: int) -> tuple[list[Tensor], list[Tensor]]:
    """The `count` contributions that the engine added up to a gradient, one after the other, and the running sums."""
    sums: list[Tensor] = []
    parts: list[Tensor] = []
    for _ in range(count - 1):
        sums.insert(0, total)
        total, last = total.args or ()
        parts.insert(0, last)
    return [total, *parts], sums


def symbols(trace: Trace, node: Node, names: Mapping[int, str] | None = None) -> tuple[Any, ...]:
    """The arguments of an operation as a formula shows them: operands by name, bare numbers as numbers.

    `names` replaces the names of some nodes.
    """

    def symbol(argument: Any, name: str) -> Any:
        if isinstance(argument, Operand):
            source = trace.nodes[argument.id]
            called, array = (names or {}).get(source.id, source.name), _array(source)
            if source.is_scalar_constant and not source.named:
                return array.item()
            kind = NamedArray.of if array.dtype.kind != "f" and source.op is None else Symbol.named
            return kind(called, array, source.id)
        if isinstance(argument, np.ndarray) and argument.ndim:
            return NamedArray.of(name, argument)
        return tuple(symbol(a, name) for a in argument) if isinstance(argument, tuple) else argument

    return tuple(symbol(a, name) for a, name in zip(node.arguments, node.tensor.op.params if node.tensor.op else ()))


def expression_of(trace: Trace, node: Node, names: Mapping[int, str] | None = None) -> Symbol:
    """The forward formula of an operation: `weights @ V`."""
    return Symbol("getitem" if node.op == "part" else str(node.op), symbols(trace, node, names), _array(node))


def _array(node: Node) -> np.ndarray:
    """The value of a node; of an operation with several results, the first of them."""
    data: Any = node.tensor.data
    return data[0] if node.dtype == "tuple" else data  # type: ignore[no-any-return]


def _path(forward: Trace, wanted: Container[Tensor] | None) -> list[Node]:
    """The forward nodes through which some wanted value reaches the loss, in recording order."""
    on_path: set[int] = set()
    for n in forward.nodes:
        asked = n.op is None if wanted is None else n.tensor in wanted
        if n.requires_grad and (asked or not on_path.isdisjoint(n.operands)):
            on_path.add(n.id)
    return [n for n in forward.nodes if n.id in on_path]
