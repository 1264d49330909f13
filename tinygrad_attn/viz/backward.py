"""The backward pass as plain data: one step per gradient contribution, fan-out sum and un-broadcast.

The engine itself runs it: `grad(..., create_graph=True)` from a seed that wants gradients, so that every
operation is recorded. Here the recorded operations are put under the step they belong to, and each step is
named after the value whose gradient it is and carries the formula that its rule prints.
"""

from __future__ import annotations

import functools
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..autograd import unbroadcast
from .formula import SUBSCRIPT, NamedArray, ShapeOf, Symbol, rule_formulas
from .trace import Node, Operand, Trace, as_tensors, trace

if TYPE_CHECKING:
    from ..tensor import Tensor

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
    from ..autograd import grad
    from ..tensor import Tensor

    roots, given = as_tensors(loss)
    if len(roots) != 1:
        raise TypeError(f"a backward pass starts from one loss, got {len(roots)} tensors; add them up first")
    (root,) = roots
    wanted, called = _wanted(wrt)
    forward = trace({given.get(id(root)) or root.name or "loss": root}, names=names if names is not None else called)
    path = _path(forward, wanted)
    if not path:  # nothing that is wanted leads to the loss
        return Backward(forward, Trace((), (), ()), (), {})
    seed_value = np.ones_like(root.data) if gradient is None and root.data.size == 1 else gradient
    if seed_value is None:
        raise ValueError(
            f"the loss has shape {root.shape}: reduce it to one number (.sum(), .mean()), or pass"
            " gradient= of that shape"
        )
    seed = Tensor(np.asarray(seed_value, root.data.dtype), requires_grad=True)
    values = [n for n in path if isinstance(n.tensor.data, np.ndarray)]
    tensors = [n.tensor for n in values]
    found = grad(root, tensors, seed, create_graph=True, retain_graph=True, allow_unused=True)
    total = {n.id: t for n, t in zip(values, found, strict=True) if t is not None}
    return _Reader(forward, path, total, seed).read()


class _Reader:
    """Finds the steps in what the engine recorded."""

    def __init__(self, forward: Trace, path: list[Node], total: dict[int, Tensor], seed: Tensor) -> None:
        self.forward, self.path, self.total, self.seed = forward, path, total, seed
        self.on_path = {n.id for n in path}
        loss = forward.nodes[forward.outputs[0]]
        self.names = [(f"d{n.name}", total[n.id]) for n in path if n.id in total] + [(f"d{loss.name}", seed)]
        self.graph = trace(list(total.values()))
        self.number = {id(n.tensor): n.id for n in self.graph.nodes}
        self.of_rule: dict[tuple[int, int], list[int]] = {}
        for n in recorded_nodes(forward, self.graph):
            if (origin := n.tensor.origin) is not None and origin.role == "rule":
                self.of_rule.setdefault((id(origin.of), origin.position), []).append(n.id)
        self.steps: list[Step] = []
        self.gradients: dict[int, int] = {}

    def read(self) -> Backward:
        loss = self.forward.nodes[self.forward.outputs[0]]
        one = "1" if self.seed.data.size == 1 and self.seed.data.flat[0] == 1 else "seed"
        expression = Symbol.named(one, self.seed.data)
        self.gradients[loss.id] = self.add("seed", f"d{loss.name}", loss, expression, self.total[loss.id])
        uses = Counter(source for node in self.path for _, source in self.contributions(node))
        parts: dict[int, list[int]] = {}
        for node in reversed(self.path):
            rules = self.rules(node) if node.op is not None and node.op != "part" else {}
            for position, source in self.contributions(node) if rules else ():
                target, count = self.forward.nodes[source], uses[source]
                mine = parts.setdefault(source, [])
                name = f"d{target.name}" + (str(len(mine) + 1).translate(SUBSCRIPT) if count > 1 else "")
                result, sums = self.contribution(source, len(mine), count)
                mine.append(self.rule(node, position, target, rules[position], name, result))
                if len(mine) == count:
                    self.gradients[source] = self.accumulate(target, mine, sums) if count > 1 else mine[0]
        names = [*((s.name, s.tensor) for s in self.steps), *self.names]  # where one value has two, the whole's
        graph = trace([n.tensor for n in self.graph.nodes if n.is_output], names=names)
        return Backward(self.forward, graph, tuple(self.steps), self.gradients)

    def contributions(self, node: Node) -> Iterator[tuple[int, int]]:
        """(argument position, forward node) of each gradient that the rules of `node` give, in order."""
        for position, argument in enumerate(arguments_of(node)):
            if isinstance(argument, Operand) and argument.id in self.on_path:
                yield position, argument.id

    def operand_data(self, node: Node) -> Iterator[tuple[int, np.ndarray]]:
        return ((i, self.forward.nodes[source].tensor.data) for i, source in self.contributions(node))

    def contribution(self, source: int, index: int, count: int) -> tuple[Tensor, list[Tensor]]:
        """Contribution number `index` of `count` to the gradient of `source`, and the running sums of all."""
        total, sums, parts = self.total[source], [], []
        for _ in range(count - 1):
            sums.append(total)
            total, last = total.args or ()
            parts.append(last)
        return [total, *reversed(parts)][index], sums[::-1]

    def rules(self, node: Node) -> dict[int, Any]:
        """What the rules of `node` print: incoming gradients, its result and its arguments by name."""
        op, incoming = node.tensor.op, [self.named_gradient(n) for n in self.results(node)]
        assert op is not None
        out = None if op.many else Symbol.named(node.name, node.tensor.data, node.id)
        args = symbols(self.forward, node)
        try:
            return rule_formulas(op, incoming if op.many else incoming[0], out, args)
        except (TypeError, ValueError, IndexError, AttributeError):  # it asks for numbers, so it has no formula
            parts = (*incoming, *([out] if out is not None else ()), *args)
            return {i: Symbol(f"rule of {op.name}", parts, {}, source) for i, source in self.operand_data(node)}

    def results(self, node: Node) -> list[Node]:
        """The values whose gradients the rules of `node` take: its own, or those of its parts."""
        if isinstance(node.tensor.data, np.ndarray):
            return [node]
        parts = (n for n in self.forward.nodes if n.op == "part" and n.operands == (node.id,))
        return sorted(parts, key=lambda n: n.arguments[1])

    def named_gradient(self, node: Node) -> Symbol:
        step = self.gradients.get(node.id)
        return Symbol.named("0" if step is None else self.steps[step].name, node.tensor.data)

    def rule(self, node: Node, position: int, target: Node, expression: Any, name: str, result: Tensor) -> int:
        """Add the step of one rule, and that of the un-broadcast after it, if the engine made one."""
        undone: list[Any] = []
        while (o := result.origin) is not None and o.of is target.tensor and o.role in ("unbroadcast", "cast"):
            undone.append(result)
            (result, *_) = result.args or ()
        stretched = any(t.origin.role == "unbroadcast" for t in undone)
        ran = [n for p in (-1, position) for n in self.of_rule.get((id(node.tensor), p), ())]
        fitted = self.ids(reversed(undone))
        step = self.add(
            "rule",
            name + "*" * stretched,
            target,
            expression,
            result if stretched or not undone else undone[0],
            of=node.id,
            position=position,
            operands=tuple(self.gradients[n.id] for n in self.results(node) if n.id in self.gradients),
            recorded=(*ran, *fitted) if not stretched else tuple(ran),
        )
        if not stretched:
            return step
        whole = unbroadcast(Symbol.named(name + "*", result.data), target.shape)
        return self.add("unbroadcast", name, target, whole, undone[0], operands=(step,), recorded=fitted)

    def accumulate(self, target: Node, parts: list[int], sums: list[Tensor]) -> int:
        names = [Symbol.named(self.steps[p].name, self.steps[p].tensor.data) for p in parts]
        total, name = functools.reduce(operator.add, names), f"d{target.name}"
        return self.add("accumulate", name, target, total, sums[-1], operands=tuple(parts), recorded=self.ids(sums))

    def ids(self, tensors: Iterable[Tensor]) -> tuple[int, ...]:
        return tuple(self.number[id(t)] for t in tensors)

    def add(self, role: Role, name: str, target: Node, expression: Any, tensor: Tensor, **more: Any) -> int:
        reads = tuple(dict.fromkeys(leaf.node for leaf in expression.leaves() if leaf.node is not None))
        i = len(self.steps)
        self.steps.append(Step(i, role, name, target.id, expression, tensor, reads, **more))
        return i


def recorded_nodes(forward: Trace, graph: Trace) -> list[Node]:
    """The operations of `graph` that the backward pass recorded: later than all of the forward pass."""
    last = max(n.tensor.index for n in forward.nodes)
    return [n for n in graph.nodes if n.op is not None and n.tensor.index > last]


def symbols(trace: Trace, node: Node, names: Mapping[int, str] | None = None) -> tuple[Any, ...]:
    """The arguments of an operation as a formula shows them: operands by name, bare numbers as numbers.

    `names` replaces the names of some nodes.
    """
    op = node.tensor.op
    assert op is not None

    def symbol(argument: Any, name: str) -> Any:
        if isinstance(argument, Operand):
            source = trace.nodes[argument.id]
            data, called = source.tensor.data, (names or {}).get(source.id, source.name)
            if not isinstance(data, np.ndarray):
                return Symbol.named(called, data[0], source.id)
            if source.is_scalar_constant and not source.named:
                return data.item()
            if data.dtype.kind != "f" and source.op is None:
                return NamedArray.of(data, called, source.id)
            return Symbol.named(called, data, source.id)
        if isinstance(argument, np.ndarray) and argument.ndim:
            return NamedArray.of(argument, name)
        if isinstance(argument, tuple):
            return tuple(symbol(a, name) for a in argument)
        return argument

    return tuple(symbol(a, name) for a, name in zip(node.arguments, op.params))


def expression_of(trace: Trace, node: Node, names: Mapping[int, str] | None = None) -> Symbol:
    """The forward formula of an operation: `weights @ V`."""
    assert node.op is not None
    data = node.tensor.data
    op = "getitem" if node.op == "part" else node.op
    return Symbol(op, symbols(trace, node, names), {}, data if isinstance(data, np.ndarray) else data[0])


def substitute(expression: Symbol, replacement: Callable[[Any], Symbol | None]) -> Symbol:
    """The formula with some of its names replaced by formulas."""

    def walk(x: Any) -> Any:
        if isinstance(x, (tuple, list)) and not isinstance(x, ShapeOf):
            return type(x)(walk(item) for item in x)
        if not isinstance(x, Symbol):
            return x
        if not x.op:
            return x if (new := replacement(x)) is None else new
        return Symbol(x.op, walk(x.args), {k: walk(v) for k, v in x.keywords.items()}, x.like, x.node)

    result: Symbol = walk(expression)
    return result


def arguments_of(node: Node) -> Sequence[Any]:
    """The arguments that rules count by position: all, or the members of a sequence (concatenate)."""
    op = node.tensor.op
    return node.arguments[0] if op is not None and op.variadic else node.arguments


def _wanted(wrt: Any) -> tuple[list[Tensor] | None, Any]:
    """The tensors meant by `wrt`, and a source of names for them."""
    if wrt is None:
        return None, None
    if hasattr(wrt, "named_parameters"):
        return list(wrt.parameters()), wrt
    return as_tensors(wrt)[0], wrt if isinstance(wrt, Mapping) else None


def _path(forward: Trace, wanted: list[Tensor] | None) -> list[Node]:
    """The forward nodes through which some wanted value reaches the loss, in recording order."""
    chosen = None if wanted is None else {id(t) for t in wanted}
    on_path: set[int] = set()
    for n in forward.nodes:
        asked = n.op is None if chosen is None else id(n.tensor) in chosen
        if n.requires_grad and (asked or any(source in on_path for source in n.operands)):
            on_path.add(n.id)
    return [n for n in forward.nodes if n.id in on_path]
