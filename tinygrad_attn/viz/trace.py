"""A recorded computation as plain data: numbered nodes, edges in operand order, module calls.

One node is one value together with the operation that made it. Everything that shows a graph (listing, DOT
text, pictures, the step player) reads this data and nothing else; it knows no picture format.
Numbers follow the recording: operations in the order they ran, each leaf just before its first use, so an
operand's number is always smaller than its user's and the same computation gets the same numbers every time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from inspect import signature
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..nn import Module as NNModule, Parameter
from ..tensor import Tensor

if TYPE_CHECKING:
    from ..modes import Scope

Kind = Literal["parameter", "leaf", "input", "constant", "operation"]


@dataclass(frozen=True, slots=True)
class Operand:
    """Stands in `Node.arguments` where the operation received the value of another node."""

    id: int


@dataclass(slots=True, eq=False)
class Node:
    """One value and how it was made.

    `name` is what a reader calls it (may repeat in different module calls, see `Trace.unique_names`); `named`
    tells a name that someone gave from one made up here. Kinds: a `parameter` of a module; a `leaf` that
    wants gradients; an `input` (named, wants none); a `constant` (unnamed, wants none); an `operation`'s
    result. `arguments` are the operation's arguments in order, with `Operand(id)` in the place of each
    tensor.
    """

    id: int
    name: str
    named: bool
    kind: Kind
    op: str | None
    operands: tuple[int, ...]
    arguments: tuple[Any, ...]
    shape: tuple[int, ...]
    dtype: str
    requires_grad: bool
    is_output: bool
    module: int | None
    tensor: Tensor = field(repr=False)

    @property
    def is_scalar_constant(self) -> bool:
        """A number such as the 2 in `x * 2`, or one named √d: it stands in formulas, not in a box."""
        return self.kind in ("constant", "input") and self.shape == () and not self.is_output


@dataclass(frozen=True, slots=True)
class Edge:
    """The value of `source` is operand number `position` (from 0) of `target`."""

    source: int
    target: int
    position: int


@dataclass(frozen=True, slots=True)
class Module:
    """One CALL of a module; two calls of one module are two of these. `path` is like `blocks.0.attn`."""

    id: int
    name: str
    kind: str
    path: str
    parent: int | None


@dataclass(frozen=True, slots=True)
class Trace:
    """A computation: `nodes[i].id == i`, operands before their users; `modules` parents before children."""

    nodes: tuple[Node, ...]
    modules: tuple[Module, ...]
    outputs: tuple[int, ...]

    @property
    def edges(self) -> tuple[Edge, ...]:
        """Every use of a value, in recording order; an operand used twice gives two edges."""
        return tuple(Edge(source, n.id, i) for n in self.nodes for i, source in enumerate(n.operands))

    def module_chain(self, module: int | None) -> list[int]:
        """The enclosing module calls from the outermost to `module` itself.

        >>> Trace((), (Module(0, "", "GPT", "", None), Module(1, "h", "Block", "h", 0)), ()).module_chain(1)
        [0, 1]
        """
        chain: list[int] = []
        while module is not None:
            chain.append(module)
            module = self.modules[module].parent
        return chain[::-1]

    def unique_names(self) -> list[str]:
        """A name per node that occurs once: the plain name, else with its module path, else numbered."""
        count = Counter(node.name for node in self.nodes)
        names: list[str] = []
        used: set[str] = {name for name, n in count.items() if n == 1}
        for node in self.nodes:
            name = node.name
            if count[name] > 1:
                path = self.modules[node.module].path if node.module is not None else ""
                stem = name = node.tensor.name or name if node.op is None else f"{path}.{name}" if path else name
                k = 2
                while name in used:
                    name, k = f"{stem}_{k}", k + 1
                used.add(name)
            names.append(name)
        return names


def trace(outputs: Any, *inputs: Any, names: Any = None) -> Trace:
    """The graph that produced `outputs`, as plain data.

    `outputs` is a tensor, a list of tensors, a dict (its keys become names), or a module followed by the
    inputs to call it with. `names` gives further names: a dict of tensors, or a module whose parameters then
    carry their path (shown without the part that the enclosing module call says already). A name is resolved
    in this order: given here, `tensor.name`, the parameter's path in its module, the operation's own name
    with a number.

    >>> import tinygrad_attn as ta
    >>> x = ta.Tensor([1.0, 2.0], requires_grad=True, name="x")
    >>> [(n.id, n.name, n.kind, n.operands) for n in trace(x * x).nodes]
    [(0, 'x', 'leaf', ()), (1, 'multiply', 'operation', (0, 0))]
    """
    roots, given = as_tensors(outputs, *inputs)
    given.update({id(t): name for name, t in _named(names)})
    ordered, operands = _recording_order(roots)
    number = {id(t): i for i, t in enumerate(ordered)}
    named = [given.get(id(t)) or t.name for t in ordered]
    kinds = [_kind(t, name) for t, name in zip(ordered, named)]
    calls = _Calls()
    modules = [calls.number(t.scope) for t in ordered]
    calls.place(modules, operands, kinds)
    unnamed = Counter(t.op.name for t, name in zip(ordered, named) if t.op is not None and not name)
    counter: Counter[str] = Counter()
    nodes: list[Node] = []
    for i, t in enumerate(ordered):
        name = named[i]
        if not name:
            base = t.op.name if t.op is not None else kinds[i]
            counter[base] += 1
            name = base if unnamed[base] == 1 else f"{base}_{counter[base]}"
            if _is_matrix_transpose(t) and nodes[operands[i][0]].named:
                name = f"{nodes[operands[i][0]].name}ᵀ"
        elif kinds[i] == "parameter" and (module := modules[i]) is not None:
            above = calls.modules[module].parent
            name = name.removeprefix(f"{calls.modules[above].path}." if above is not None else "")
        several = not isinstance(t.data, np.ndarray)  # the hidden value of an operation with many results
        nodes.append(
            Node(
                id=i,
                name=name,
                named=bool(named[i]),
                kind=kinds[i],
                op=None if t.op is None else t.op.name,
                operands=operands[i],
                arguments=tuple(_argument(a, number) for a in t.args or ()),
                shape=(len(t.data),) if several else t.data.shape,
                dtype="tuple" if several else t.data.dtype.name,
                requires_grad=t.requires_grad,
                is_output=any(t is root for root in roots),
                module=modules[i],
                tensor=t,
            )
        )
    return Trace(tuple(nodes), tuple(calls.modules), tuple(number[id(t)] for t in roots))


def as_tensors(outputs: Any, *inputs: Any) -> tuple[list[Tensor], dict[int, str]]:
    """The distinct tensors in what a drawing function was given, and the names that came with them."""
    given: dict[int, str] = {}
    if isinstance(outputs, NNModule):
        if not inputs:
            raise TypeError(
                f"a {type(outputs).__name__} alone has no graph yet: pass its inputs too, as in"
                " draw_graph(model, x), or pass a tensor that it returned"
            )
        given.update({id(t): name for name, t in _named(outputs)})
        for name, value in zip(signature(outputs.forward).parameters, inputs):
            if isinstance(value, Tensor) and not value.name:
                given[id(value)] = name
        outputs = outputs(*inputs)
    elif inputs:
        raise TypeError(f"inputs may follow a module only, not {_what(outputs)}")
    if isinstance(outputs, Mapping):
        given.update({id(t): str(name) for name, t in outputs.items()})
        outputs = list(outputs.values())
    found = [outputs] if isinstance(outputs, Tensor) else outputs
    if not isinstance(found, (list, tuple)):
        raise TypeError(f"expected a tensor, a list or dict of tensors, or a module and its inputs, not {_what(found)}")
    roots: dict[int, Tensor] = {}
    for t in found:
        if t is None:  # a model's loss, when it was called without targets
            continue
        if not isinstance(t, Tensor):
            raise TypeError(f"expected tensors in the list to draw, not {_what(t)}")
        roots[id(t)] = t
    return list(roots.values()), given


def operands_of(t: Tensor) -> list[Tensor]:
    """The tensors among an operation's arguments, in order; concatenate holds its own in a tuple."""
    if t.op is None:
        return []
    if t.args is None:
        raise ValueError(
            f"the graph behind {t.name or t.op.name!r} was freed by backward(): draw it before,"
            " or call backward(retain_graph=True)"
        )
    arguments = t.args[0] if t.op.variadic else t.args
    return [a for a in arguments if isinstance(a, Tensor)]


def _recording_order(roots: Iterable[Tensor]) -> tuple[list[Tensor], list[tuple[int, ...]]]:
    """Everything the roots depend on, each leaf just before its first use, and the operands by number."""
    operands: dict[int, list[Tensor]] = {}
    operations: list[Tensor] = []
    stack = list(roots)
    while stack:
        t = stack.pop()
        if id(t) not in operands:
            operands[id(t)] = operands_of(t)
            stack += operands[id(t)]
            if t.op is not None:
                operations.append(t)
    order: dict[int, Tensor] = {}
    for t in sorted(operations, key=lambda t: t.index):
        order |= {id(o): o for o in operands[id(t)] if id(o) not in order}
        order[id(t)] = t
    order |= {id(t): t for t in roots if id(t) not in order}  # leaves that are drawn for their own sake
    number = {key: i for i, key in enumerate(order)}
    return list(order.values()), [tuple(number[id(o)] for o in operands[key]) for key in order]


class _Calls:
    """Module calls, numbered in order of their first recorded operation, parents first."""

    def __init__(self) -> None:
        self.modules: list[Module] = []
        self.chains: dict[int | None, list[int]] = {None: []}
        self._ids: dict[int, int] = {}

    def number(self, scope: Scope | None) -> int | None:
        if scope is None:
            return None
        if id(scope) not in self._ids:
            parent = self.number(scope.parent)
            above = self.modules[parent].path if parent is not None else ""
            i = self._ids[id(scope)] = len(self.modules)
            path = ".".join(name for name in (above, scope.name) if name)
            self.modules.append(Module(i, scope.name, scope.kind, path, parent))
            self.chains[i] = [*self.chains[parent], i]
        return self._ids[id(scope)]

    def place(self, modules: list[int | None], operands: list[tuple[int, ...]], kinds: list[Kind]) -> None:
        """Put each parameter and constant into the innermost call that holds all its uses."""
        common: dict[int, list[int]] = {}
        for user, sources in enumerate(operands):
            for i in sources:
                if kinds[i] in ("parameter", "constant"):
                    chain = self.chains[modules[user]]
                    common[i] = [a for a, b in zip(chain, common.get(i, chain)) if a == b]
        for i, chain in common.items():
            modules[i] = chain[-1] if chain else None


def _is_matrix_transpose(t: Tensor) -> bool:
    if t.op is None or t.op.name not in ("swapaxes", "transpose") or t.args is None:
        return False
    n: int = t.data.ndim
    if t.op.name == "transpose":
        return n == 2
    first, second = t.args[1:]
    return bool({first % n, second % n} == {n - 1, n - 2})


def _kind(t: Tensor, name: str | None) -> Kind:
    if t.op is not None:
        return "operation"
    if isinstance(t, Parameter):
        return "parameter"
    if t.requires_grad:
        return "leaf"
    return "input" if name else "constant"


def _argument(a: Any, number: dict[int, int]) -> Any:
    if id(a) in number:
        return Operand(number[id(a)])
    if isinstance(a, (tuple, list)) and any(id(x) in number for x in a):
        return tuple(_argument(x, number) for x in a)
    return a


def _named(names: Any) -> Iterable[tuple[str, Tensor]]:
    if names is None:
        return ()
    if hasattr(names, "named_parameters"):
        return names.named_parameters()  # type: ignore[no-any-return]
    return names.items() if isinstance(names, Mapping) else names


def _what(x: Any) -> str:
    return "None" if x is None else f"{type(x).__name__} {x!r}"[:80]
