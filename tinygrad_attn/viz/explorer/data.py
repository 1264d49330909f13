"""What the page is told: tensors, steps and drawings, read off the recorded graph and nothing else.

title, loss (index of a tensor), precision, language or null, level (the drawing shown first), elementwise [op]
modules    [{path, kind, parent}]                 one per module call
tensors    [{name, role, shape, dtype, axes, ticks, ...}]  , addressed by index:
    role   parameter, input, constant, operation | seed, gradient, contribution | inner (inside a rule, not shown)
    op, args   the operation that made it; args by name: {"t": tensor}, {"v": literal, "name"?} or {"list": [...]}
    data   base64 of little-endian float32 in row-major order, or
    stats  {min, mean, max, counts} where there are too many numbers to ship
    map    for an operation that only moves numbers: base64 int32, per cell the flat cell it came from (-1: a zero)
    moved  the same for one that keeps the order;  lands: per cell of the first operand, the cell it is added to
    box    the class of its box in the drawings;  module: the call that made it
    grad, nograd   a value's whole gradient, or why it has none;  of: the value whose gradient this is
steps      [{lane, kind, tensor, formula, reads, rule, parts, done, check}] in the order in which they ran:
    kind   leaf, op | seed, rule, unbroadcast, accumulate
    formula  text with "⟦3⟧" in the place of tensor 3;  rule: the value whose gradient rule ran
    parts  the contributions of a sum;  done: the sum is complete
    check  {each: base64 float32} finite differences per cell, {direction: [autograd, finite]}, or {why}
ladders    [svg, ...] from collapsed to open      the box of a tensor has the class that its `box` says
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...autograd import PRIMITIVES
from ..backward import Backward, Step, expression_of, substitute
from ..formula import SUBSCRIPT, Symbol
from ..trace import Node, Operand, Trace
from .check import Replay, Use

# Operations that move numbers without changing them, and those that add up where another one reads.
KEEPING_ORDER = {"reshape", "squeeze", "expand_dims", "astype"}
MOVING = {
    *("transpose", "swapaxes", "broadcast_to", "getitem", "flip", "roll", "concatenate", "tril", "triu"),
    *("take_along_axis", "embedding", "part"),
}
ADDING = {"scatter": "getitem", "scatter_rows": "embedding", "scatter_along_axis": "take_along_axis"}

# What the last two axes of attention's tensors are called; others inherit theirs from their operands.
AXES: dict[str, Sequence[str]] = {
    **dict.fromkeys(("scores", "masked", "weights"), ("query", "key")),
    **dict.fromkeys(("Q", "K", "V", "output"), ("T", "d_k")),
    **dict.fromkeys(("X", "x"), ("T", "d_model")),
    **dict.fromkeys(("W_Q", "W_K", "W_V"), ("d_model", "d_k")),
}
LEADING: dict[int, Sequence[str]] = {3: ("batch",), 4: ("batch", "head")}
TOKEN_AXES = {"T", "query", "key"}
LARGEST_CHECK = 256  # numbers of a gradient that are checked one by one, while the budget lasts
CHECK_BUDGET = 20_000  # forward operations run again for the numeric checks of a page
BINS = 24


class Collector:
    """Numbers the tensors of a backward pass in the order in which a reader meets them, and describes each once."""

    def __init__(
        self,
        backward: Backward,
        *,
        tokens: Sequence[str] | None = None,
        axes: Mapping[str, Sequence[str]] | None = None,
        max_values: int = 4096,
    ) -> None:
        self.backward = backward
        self.tokens = None if tokens is None else [str(token) for token in tokens]
        self.axes = {**AXES, **(axes or {})}
        self.max_values = max_values
        self.tensors: list[dict[str, Any]] = []
        self.steps: list[dict[str, Any]] = []
        self.number: dict[int, int] = {}  # id of a Tensor -> its index on the page
        self.arrays: dict[tuple[Any, ...], int] = {}  # masks and indices, which are no Tensors
        self.by_step: dict[int, int] = {}  # step of the backward pass -> its tensor on the page
        self.uses: dict[int, frozenset[Use]] = {}  # gradient on the page -> the uses of its value it belongs to
        self.gradients: dict[int, np.ndarray] = {}  # gradient on the page -> its numbers
        for node in backward.forward.nodes:
            self._forward(node)
        for step in backward.steps:
            self._backward(step)
        self._check()

    # ------------------------------------------------------------------------------------------ the two halves

    def _forward(self, node: Node) -> None:
        if node.is_scalar_constant or node.dtype == "tuple":
            return
        forward = self.backward.forward
        index = self._add(forward, node, node.name, {"leaf": "input"}.get(node.kind, node.kind))
        record = self.tensors[index]
        record |= {"box": f"n{node.id}", "grad": None}
        if not node.requires_grad:
            twins = (n for n in forward.nodes if n.requires_grad and n.tensor.data is node.tensor.data)
            record["nograd"] = "detached" if any(twins) else "constant"
        elif node.id not in self.backward.gradients:
            record["nograd"] = "unused"
        reads = self._reads(index)
        formula = self._linked(expression_of(forward, node), {}, reads) if node.op else ""
        kind = "op" if node.op else "leaf"
        self.steps.append({"lane": "forward", "kind": kind, "tensor": index, "formula": formula, "reads": reads})

    def _backward(self, step: Step) -> None:
        graph, target = self.backward.graph, self.backward.forward.nodes[step.target]
        receiver = self.number[id(target.tensor)]
        whole = self.backward.gradients.get(step.target) == step.id
        if step.role == "accumulate":
            self._accumulate(step, receiver)
            return
        for o in step.operands:  # several gradients may be one array that rules passed on
            self.number[id(self.backward.steps[o].tensor)] = self.by_step[o]
        own = next((graph.nodes[i] for i in step.recorded if graph.nodes[i].tensor is step.tensor), None)
        name = step.name
        if target.name.endswith("ᵀ"):  # d(Kᵀ), not (dK)ᵀ
            name = name.replace(f"d{target.name}", f"d({target.name})")
        role = "seed" if step.role == "seed" else "gradient" if whole else "contribution"
        if own is not None:
            index = self._add(graph, own, name, role, of=receiver)
        else:  # the rule passes its gradient on unchanged, or the seed
            index = self._pass_on(step, name, role, receiver)
        self.by_step[step.id] = index
        self.tensors[index]["box"] = f"s{step.id}"
        self.gradients[index] = step.tensor.data
        if whole:
            self.tensors[receiver]["grad"] = index
        if step.role == "rule":
            assert step.of is not None and step.position is not None
            self.uses[index] = frozenset({(step.of, step.position)})
        elif step.role == "unbroadcast":
            self.uses[index] = self.uses[self.by_step[step.operands[0]]]
        names = {self.backward.steps[o].name: self.by_step[o] for o in step.operands}
        reads = self._reads(index)
        self.steps.append(
            {"lane": "backward", "kind": step.role, "tensor": index, "reads": reads}
            | {"formula": self._linked(step.expression, names, reads)}
            | ({} if step.of is None else {"rule": self._owner(step.of)})
        )

    def _owner(self, of: int) -> int:
        """The forward value whose rule ran; for an operation with several outputs, its first."""
        node = self.backward.forward.nodes[of]
        if node.dtype == "tuple":
            node = next(n for n in self.backward.forward.nodes if of in n.operands)
        return self.number[id(node.tensor)]

    def _accumulate(self, step: Step, receiver: int) -> None:
        """One step for each `+=` that the engine ran, placed where its second term arrived."""
        graph = self.backward.graph
        parts = [self.by_step[o] for o in step.operands]
        running = parts[0]
        for count, (i, part) in enumerate(zip(step.recorded, parts[1:], strict=True), start=2):
            done = count == len(parts)
            name = step.name if done else f"{step.name}{_subscript_sum(count)}"
            index = self._add(graph, graph.nodes[i], name, "gradient" if done else "contribution", of=receiver)
            self.tensors[index]["args"] = {"a": {"t": running}, "b": {"t": part}}
            self.tensors[index]["box"] = f"s{step.id}"
            self.gradients[index] = graph.nodes[i].tensor.data
            self.uses[index] = self.uses[running] | self.uses[part]
            place = 1 + next(n for n, s in enumerate(self.steps) if s["tensor"] == part)
            self.steps.insert(
                place,
                {"lane": "backward", "kind": "accumulate", "tensor": index, "reads": [running, part]}
                | {"formula": f"⟦{running}⟧ + ⟦{part}⟧", "parts": parts[:count], "done": done},
            )
            running = index
        self.by_step[step.id] = running
        self.tensors[receiver]["grad"] = running

    # ------------------------------------------------------------------------------------------ tensors

    def _add(self, trace: Trace, node: Node, name: str, role: str, **more: Any) -> int:
        """Describe a value and how it was made; what it was made from is described first."""
        tensor = node.tensor
        record = self._record(tensor.data, name, role, node.dtype)
        record["module"] = node.module if trace is self.backward.forward else None
        if (source := getattr(tensor, "_source", None)) is not None:
            record["source"] = source.replace("\\", "/").rpartition("/")[2]
        record.update(more)
        if tensor.op is not None:
            made_by, op = node, tensor.op
            if op.name == "part":
                made_by = trace.nodes[node.operands[0]]
                op = made_by.tensor.op or op
            record["op"] = op.name
            record["args"] = {
                parameter: self._argument(trace, argument, parameter)
                for parameter, argument in zip(op.params, made_by.arguments, strict=False)
            }
            if node.op in KEEPING_ORDER:
                record["moved"] = True
            elif node.op in MOVING:
                record["map"] = _packed(_origin(trace, node), np.int32)
            elif node.op in ADDING:
                record["lands"] = _packed(_landing(trace, node), np.int32)
        if role == "inner" and ("map" in record or "moved" in record):
            record.pop("data", None)  # looked up where the numbers came from
        index = self._place(record)
        self.number[id(tensor)] = index
        self._name_axes(index, node)
        return index

    def _record(self, data: np.ndarray, name: str, role: str, dtype: str) -> dict[str, Any]:
        record: dict[str, Any] = {"name": name, "role": role, "shape": list(data.shape), "dtype": dtype}
        if data.size <= self.max_values:
            record["data"] = _packed(data, np.float32)
        elif role != "inner":
            record["stats"] = _summary(data)
        return record

    def _place(self, record: dict[str, Any]) -> int:
        self.tensors.append(record)
        return len(self.tensors) - 1

    def _inner(self, trace: Trace, node: Node) -> int:
        """The index of a value that a rule reads or makes on its way."""
        known = self.number.get(id(node.tensor))
        return known if known is not None else self._add(trace, node, node.name, "inner" if node.op else "constant")

    def _pass_on(self, step: Step, name: str, role: str, receiver: int) -> int:
        data = step.tensor.data
        record = self._record(data, name, role, data.dtype.name) | {"of": receiver, "module": None}
        if step.operands:
            record |= {"op": "identity", "args": {"x": {"t": self.by_step[step.operands[0]]}}, "moved": True}
        index = self._place(record)
        if step.role == "seed":
            self.number[id(step.tensor)] = index
        self._copy_axes(record, self.tensors[receiver])
        return index

    def _argument(self, trace: Trace, argument: Any, parameter: str) -> dict[str, Any]:
        if isinstance(argument, Operand):
            node = trace.nodes[argument.id]
            if node.is_scalar_constant:
                return {"v": _literal(node.tensor.item())} | ({"name": node.name} if node.named else {})
            return {"t": self._inner(trace, node)}
        if isinstance(argument, tuple) and any(isinstance(a, Operand) for a in argument):
            return {"list": [self._argument(trace, a, parameter) for a in argument]}
        if isinstance(argument, np.ndarray) and argument.ndim:
            return {"t": self._array(argument, parameter)}
        return {"v": _literal(argument)}

    def _array(self, array: np.ndarray, name: str) -> int:
        key = (name, array.shape, array.dtype.str, array.tobytes())
        if key not in self.arrays:
            record = self._record(array, name, "constant", array.dtype.name)
            self.arrays[key] = self._place(record | {"module": None, "grad": None, "nograd": "constant"})
            self._label(record := self.tensors[self.arrays[key]], self.axes.get("scores") if name == "mask" else None)
        return self.arrays[key]

    def _reads(self, index: int) -> list[int]:
        """The tensors whose values the operations behind a tensor read, in reading order."""
        found: dict[int, None] = {}
        stack = [self.tensors[index]]
        while stack:
            arguments = [a for value in stack.pop().get("args", {}).values() for a in value.get("list", [value])]
            for t in (a["t"] for a in arguments if "t" in a):
                if self.tensors[t]["role"] == "inner":
                    stack.append(self.tensors[t])
                else:
                    found[t] = None
        return list(found)

    # ------------------------------------------------------------------------------------------ names of axes

    def _name_axes(self, index: int, node: Node) -> None:
        record = self.tensors[index]
        if "of" in record and self.tensors[record["of"]]["shape"] == record["shape"]:
            self._copy_axes(record, self.tensors[record["of"]])
        elif record["name"] in self.axes:
            self._label(record, self.axes[record["name"]])
        else:
            self._label(record, self._inherited(record, node))

    def _inherited(self, record: dict[str, Any], node: Node) -> Sequence[str | None] | None:
        operands = [self.tensors[a["t"]] for a in record.get("args", {}).values() if "t" in a]
        if not operands:
            return None
        first: list[str | None] = operands[0]["axes"]
        if node.op == "matmul":
            axes = [*first[:-1], operands[1]["axes"][-1]]
            return [*axes[:-2], "query", "key"] if axes[-2:] == ["T", "T"] else axes
        if node.op in ("swapaxes", "transpose") and node.tensor.op is not None:
            marked = np.empty([axis + 1 for axis in range(len(first))])
            return [first[n - 1] for n in node.tensor.op.forward(marked, *node.arguments[1:]).shape]
        return next((o["axes"] for o in operands if o["shape"] == record["shape"]), None)

    def _label(self, record: dict[str, Any], names: Sequence[str | None] | None) -> None:
        """Give a tensor the names of its axes, from the right, and tokens to those that count tokens."""
        ndim = len(record["shape"])
        known = [*LEADING.get(ndim, ()), *names] if names and len(names) == 2 else list(names or ())
        axes = ([None] * ndim + known)[-ndim:] if ndim else []
        tokens = self.tokens
        fits = [
            axis in TOKEN_AXES and tokens is not None and n == len(tokens) for axis, n in zip(axes, record["shape"])
        ]
        record["axes"] = axes
        record["ticks"] = [tokens if fit else None for fit in fits]

    def _copy_axes(self, record: dict[str, Any], other: dict[str, Any]) -> None:
        same = other["shape"] == record["shape"]
        record["axes"] = other["axes"] if same else [None] * len(record["shape"])
        record["ticks"] = other["ticks"] if same else [None] * len(record["shape"])

    # ------------------------------------------------------------------------------------------ formulas, checks

    def _linked(self, expression: Symbol, gradients: Mapping[str, int], reads: Sequence[int]) -> str:
        """The formula with "⟦3⟧" for the name of tensor 3; a value that is only a transpose is shown as one."""

        def link(leaf: Symbol) -> Symbol | None:
            if leaf.node is None:
                index = gradients.get(leaf.args[0])
                return None if index is None else Symbol.named(f"⟦{index}⟧", leaf.like)
            node = self.backward.forward.nodes[leaf.node]
            if node.name.endswith("ᵀ") and not node.named:
                return substitute(expression_of(self.backward.forward, node), link)
            index = self.number.get(id(node.tensor))
            return None if index is None else Symbol.named(f"⟦{index}⟧", leaf.like, leaf.node)

        text = substitute(expression, link).text("math")
        for (name, *_), index in self.arrays.items():
            if index in reads:
                text = re.sub(rf"\b{name}\b", f"⟦{index}⟧", text)
        return text

    def _check(self) -> None:
        """Put a finite difference beside every gradient: number by number, or along one direction if it is large."""
        gradients = [step for step in self.steps if step["tensor"] in self.uses]
        if not gradients:
            return
        replay = Replay(self.backward.forward)
        nodes = {self.number[id(n.tensor)]: n.id for n in self.backward.forward.nodes if id(n.tensor) in self.number}
        budget = CHECK_BUDGET
        for step in gradients:
            record, uses = self.tensors[step["tensor"]], self.uses[step["tensor"]]
            target, shape = nodes[record["of"]], tuple(record["shape"])
            cost = 2 * len(replay.downstream(uses))
            size = int(np.prod(shape))
            if not replay.is_faithful:
                step["check"] = {"why": "replay"}
            elif size <= LARGEST_CHECK and size * cost <= budget:
                budget -= size * cost
                step["check"] = {"each": _packed(replay.each(target, uses, shape), np.float32)}
            else:
                gradient = self.gradients[step["tensor"]]
                step["check"] = {"direction": replay.along(target, uses, gradient.astype(np.float64))}


def _origin(trace: Trace, node: Node) -> np.ndarray:
    """Where each number of a moving operation came from: the operation itself, run on the numbers 1, 2, 3, ..."""
    place = None
    if node.op == "part":
        place, node = node.arguments[1], trace.nodes[node.operands[0]]
    start = 1

    def counted(argument: Any) -> Any:
        nonlocal start
        if isinstance(argument, tuple) and any(isinstance(a, Operand) for a in argument):
            return tuple(map(counted, argument))
        if not isinstance(argument, Operand):
            return argument
        shape = trace.nodes[argument.id].shape
        first, start = start, start + int(np.prod(shape))
        return np.arange(first, start).reshape(shape)

    assert node.tensor.op is not None
    moved = node.tensor.op.forward(*map(counted, node.arguments))
    return np.asarray(moved if place is None else moved[place]) - 1


def _landing(trace: Trace, node: Node) -> np.ndarray:
    """Where each number of an adding operation is added: what its reading counterpart would read there."""
    positions = np.arange(int(np.prod(node.shape))).reshape(node.shape)
    indices = node.arguments[1:2] if node.op != "scatter_along_axis" else node.arguments[1:3]
    return np.asarray(PRIMITIVES[ADDING[node.op or ""]].forward(positions, *indices))


def _packed(array: np.ndarray, dtype: type) -> str:
    return base64.b64encode(np.ascontiguousarray(array, np.dtype(dtype).newbyteorder("<")).tobytes()).decode()


def _summary(data: np.ndarray) -> dict[str, Any]:
    finite = data[np.isfinite(data)].astype(np.float64)
    counts, _ = np.histogram(finite, BINS)
    low, mean, high = (f(finite).item() for f in (np.min, np.mean, np.max)) if finite.size else (0.0, 0.0, 0.0)
    return {"min": low, "mean": mean, "max": high, "counts": counts.tolist()}


def _literal(value: Any) -> Any:
    """What JSON can say of an argument; other things (dtypes, slices) matter to no cell and become null."""
    if isinstance(value, (np.generic, np.ndarray)):
        value = value.item()
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    if isinstance(value, (tuple, list)):
        return [_literal(v) for v in value]
    return value if isinstance(value, (bool, int, float, str)) else None


def _subscript_sum(count: int) -> str:
    """₁₊₂ for the first two contributions, ₁₊…₊₅ for the first five."""
    middle = "₊…₊" if count > 3 else "₊₂₊" if count == 3 else "₊"
    return f"₁{middle}" + str(count).translate(SUBSCRIPT)
