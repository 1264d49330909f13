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
from operator import attrgetter
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
    """One CALL of a module; two calls of one module are two of these. `path` is like `blocks.0.attn`.

    `chain` holds the numbers of the enclosing calls from the outermost to this one.
    """

    id: int
    name: str
    kind: str
    path: str
    parent: int | None
    chain: tuple[int, ...]


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

    def module_chain(self, module: int | None) -> tuple[int, ...]:
        """The enclosing module calls from the outermost to `module` itself; () outside of all."""
        return () if module is None else self.modules[module].chain

    def unique_names(self) -> list[str]:
        """A name per node that occurs once: the plain name, else with its module path, else numbered."""
        count = Counter(node.name for node in self.nodes)
        used = {name for name, n in count.items() if n == 1}
        names: list[str] = []
        for node in self.nodes:
            name = node.name
            if count[name] > 1:
                path = self.modules[node.module].path if node.module is not None else ""
                stem = name = node.tensor.name or name if node.op is None else f"{path}.{name}".lstrip(".")
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
    given |= {t: name for name, t in _named(names)}
    operands = _recorded(roots)
    number = {t: i for i, t in enumerate(operands)}
    named = {t: given.get(t) or t.name for t in operands}
    kinds = {t: _kind(t, named[t]) for t in operands}
    modules, module_of = _calls(operands, kinds)
    alike = Counter(t.op.name for t in operands if t.op is not None and not named[t])
    counter: Counter[str] = Counter()
    nodes: list[Node] = []
    for t, sources in operands.items():
        name, module = named[t], module_of[t]
        several = not isinstance(t.data, np.ndarray)  # the hidden value of an operation with many results
        if not name:
            base = kinds[t] if t.op is None else t.op.name
            counter[base] += 1
            name = base if alike[base] == 1 else f"{base}_{counter[base]}"
            if sources and named[sources[0]] and not several and swaps_last_axes(base, t.ndim, (t.args or ())[1:]):
                name = f"{nodes[number[sources[0]]].name}ᵀ"
        elif kinds[t] == "parameter" and module is not None and module.parent is not None:
            name = name.removeprefix(f"{modules[module.parent].path}.")
        node = Node(
            id=len(nodes),
            name=name,
            named=bool(named[t]),
            kind=kinds[t],
            op=None if t.op is None else t.op.name,
            operands=tuple(number[source] for source in sources),
            arguments=tuple(_argument(a, number) for a in t.args or ()),
            shape=(len(t.data),) if several else t.data.shape,
            dtype="tuple" if several else t.data.dtype.name,
            requires_grad=t.requires_grad,
            is_output=t in roots,
            module=None if module is None else module.id,
            tensor=t,
        )
        nodes.append(node)
    return Trace(tuple(nodes), tuple(modules), tuple(number[t] for t in roots))


def as_tensors(outputs: Any, *inputs: Any) -> tuple[dict[Tensor, None], dict[Tensor, str]]:
    """The distinct tensors in what a drawing function was given, and the names that came with them."""
    given: dict[Tensor, str] = {}
    if isinstance(outputs, NNModule):
        if not inputs:
            raise TypeError(
                f"a {type(outputs).__name__} alone has no graph yet: pass its inputs too, as in"
                " draw_graph(model, x), or pass a tensor that it returned"
            )
        given |= {t: name for name, t in outputs.named_parameters()}
        parameters = signature(outputs.forward).parameters
        given |= {t: name for name, t in zip(parameters, inputs) if isinstance(t, Tensor) and not t.name}
        outputs = outputs(*inputs)
    elif inputs:
        raise TypeError(f"inputs may follow a module only, not {_what(outputs)}")
    if isinstance(outputs, Mapping):
        given |= {t: str(name) for name, t in outputs.items()}
        outputs = list(outputs.values())
    found = [outputs] if isinstance(outputs, Tensor) else outputs
    if not isinstance(found, (list, tuple)):
        raise TypeError(f"expected a tensor, a list or dict of tensors, or a module and its inputs, not {_what(found)}")
    found = [t for t in found if t is not None]  # a model's loss, when it was called without targets
    for t in found:
        if not isinstance(t, Tensor):
            raise TypeError(f"expected tensors in the list to draw, not {_what(t)}")
    return dict.fromkeys(found), given


def _recorded(roots: Iterable[Tensor]) -> dict[Tensor, list[Tensor]]:
    """All that the roots depend on, with its operands, in recording order and each leaf just before its first use."""
    operands: dict[Tensor, list[Tensor]] = {}
    stack = list(roots)
    while stack:
        if (t := stack.pop()) not in operands:
            operands[t] = _operands(t)
            stack += operands[t]
    order: dict[Tensor, list[Tensor]] = {}
    for t in sorted(operands, key=attrgetter("index")):
        if t.op is not None:
            order |= {o: operands[o] for o in (*operands[t], t) if o not in order}
    return order | {t: [] for t in roots if t not in order}  # leaves that are drawn for their own sake


def _operands(t: Tensor) -> list[Tensor]:
    """The tensors among an operation's arguments, in order; concatenate holds its own in a tuple."""
    if t.op is None:
        return []
    if t.args is None:
        raise ValueError(
            f"the graph behind {t.name or t.op.name!r} was freed by backward(): draw it before,"
            " or call backward(retain_graph=True)"
        )
    return [a for a in (t.args[0] if t.op.variadic else t.args) if isinstance(a, Tensor)]


def _calls(
    operands: dict[Tensor, list[Tensor]], kinds: dict[Tensor, Kind]
) -> tuple[list[Module], dict[Tensor, Module | None]]:
    """The module calls, numbered in order of their first operation, and in which of them each value stands.

    A parameter or constant stands in the innermost call that holds all its uses.
    """
    modules: list[Module] = []
    known: dict[int, Module] = {}

    def call(scope: Scope | None) -> Module | None:
        if scope is not None and id(scope) not in known:
            parent = call(scope.parent)
            path = ".".join(name for name in (parent.path if parent else "", scope.name) if name)
            chain = (*(parent.chain if parent else ()), len(modules))
            modules.append(Module(len(modules), scope.name, scope.kind, path, parent.id if parent else None, chain))
            known[id(scope)] = modules[-1]
        return known.get(id(scope))

    module_of = {t: call(t.scope) for t in operands}
    uses: dict[Tensor, list[tuple[int, ...]]] = {}
    for user, sources in operands.items():
        for t in sources:
            if kinds[t] in ("parameter", "constant"):
                uses.setdefault(t, []).append(module.chain if (module := module_of[user]) else ())
    for t, chains in uses.items():
        common = [level[0] for level in zip(*chains) if len(set(level)) == 1]
        module_of[t] = modules[common[-1]] if common else None
    return modules, module_of


def swaps_last_axes(op: str, ndim: int, axes: tuple[Any, ...]) -> bool:
    """Whether an operation transposes matrices: tried out on an array of shape (0, 1, 2, ...)."""
    if op not in ("swapaxes", "transpose", "T"):
        return op in ("mT", "matrix_transpose")
    turned = getattr(np.empty(range(ndim)), op.replace("T", "transpose"))(*axes)
    return bool(ndim > 1 and turned.shape == (*range(ndim - 2), ndim - 1, ndim - 2))


def _kind(t: Tensor, name: str | None) -> Kind:
    if t.op is not None:
        return "operation"
    known: Kind = "input" if name else "constant"
    return "parameter" if isinstance(t, Parameter) else "leaf" if t.requires_grad else known


def _argument(a: Any, number: dict[Tensor, int]) -> Any:
    if isinstance(a, tuple):
        return tuple(_argument(item, number) for item in a)
    return Operand(number[a]) if isinstance(a, Tensor) else a


def _named(names: Any) -> Iterable[tuple[str, Tensor]]:
    """The pairs of name and tensor in a module, a dict or a list of pairs."""
    if isinstance(names, NNModule):
        return names.named_parameters()
    return names.items() if isinstance(names, Mapping) else names or ()


def _what(x: Any) -> str:
    return "None" if x is None else f"{type(x).__name__} {x!r}"[:80]
