"""What the page is told: tensors, steps and drawings, read off the recorded graph and nothing else.

title, loss (index of a tensor), precision, language or null, level (the drawing shown first)
tokens     the text of each position, or null;  axes  {name of a tensor: names of its axes}
modules    [{path, kind, parent}]                 one per module call
tensors    [{name, role, shape, dtype, ...}]      addressed by index:
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
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...autograd import PRIMITIVES
from ..backward import Backward, Step, expression_of
from ..formula import SUBSCRIPT, Symbol
from ..trace import Node, Operand, Trace
from .check import FiniteDifferences, Use, run

# Operations that move numbers without changing them, and those that add up numbers which land in one place.
KEEPING_ORDER = {"reshape", "squeeze", "expand_dims", "astype"}
MOVING = {"transpose", "swapaxes", "broadcast_to", "getitem", "flip", "roll", "concatenate", "tril", "triu"}
MOVING |= {"take_along_axis", "embedding", "part"}
ADDING = {"scatter", "scatter_along_axis"}
BINS = 24  # of a histogram


class Collector:
    """Numbers the tensors of a backward pass in the order in which a reader meets them, and describes each once."""

    def __init__(self, backward: Backward, max_values: int) -> None:
        self.backward, self.forward, self.max_values = backward, backward.forward, max_values
        self.tensors: list[dict[str, Any]] = []
        self.steps: list[dict[str, Any]] = []
        self.number: dict[int, int] = {}  # id of a Tensor -> its index on the page
        self.arrays: dict[tuple[Any, ...], int] = {}  # masks and indices, which are no Tensors
        self.by_step: dict[int, int] = {}  # step of the backward pass -> its tensor on the page
        self.uses: dict[int, frozenset[Use]] = {}  # gradient on the page -> the uses of its value that it is along
        self.differences = FiniteDifferences(backward.forward)
        for node in self.forward.nodes:
            if not node.is_scalar_constant and node.dtype != "tuple":
                self._forward(node)
        for step in backward.steps:
            (self._accumulate if step.role == "accumulate" else self._backward)(step)

    # ------------------------------------------------------------------------------------------ the two halves

    def _forward(self, node: Node) -> None:
        role = "input" if node.kind == "leaf" else node.kind
        index = self._add(self.forward, node, node.name, role, box=f"n{node.id}", module=node.module, grad=None)
        if not node.requires_grad:
            twins = (n for n in self.forward.nodes if n.requires_grad and n.tensor.data is node.tensor.data)
            self.tensors[index]["nograd"] = "detached" if any(twins) else "constant"
        elif node.id not in self.backward.gradients:
            self.tensors[index]["nograd"] = "unused"
        formula = self._linked(expression_of(self.forward, node), {}, index) if node.op else ""
        self._step("forward", "op" if node.op else "leaf", index, formula)

    def _backward(self, step: Step) -> None:
        graph, steps = self.backward.graph, self.backward.steps
        operands = {steps[o].name: self.by_step[o] for o in step.operands}
        for o in step.operands:  # several gradients may be one array that rules passed on
            self.number[id(steps[o].tensor)] = self.by_step[o]
        target, name = self.forward.nodes[step.target], step.name
        if target.name.endswith("ᵀ"):  # d(Kᵀ), not (dK)ᵀ
            name = name.replace(f"d{target.name}", f"d({target.name})")
        whole = self.backward.gradients.get(step.target) == step.id
        role = "seed" if step.role == "seed" else "gradient" if whole else "contribution"
        made = next((graph.nodes[i] for i in step.recorded if graph.nodes[i].tensor is step.tensor), None)
        if made is not None:
            index = self._add(graph, made, name, role)
        else:  # the seed, or a rule that passes its gradient on unchanged
            index = self._place(step.tensor.data, name, role)
            if step.operands:
                args = {"x": {"t": self.by_step[step.operands[0]]}}
                self.tensors[index] |= {"op": "identity", "args": args, "moved": True}
            self.number.setdefault(id(step.tensor), index)
        self.by_step[step.id] = index
        if step.role == "unbroadcast":
            self.uses[index] = self.uses[self.by_step[step.operands[0]]]
        elif step.of is not None and step.position is not None:
            self.uses[index] = frozenset({(step.of, step.position)})
        rule = {} if step.of is None else {"rule": self._value(step.of)}
        self._gradient(step, index, self._linked(step.expression, operands, index), step.tensor.data, whole, **rule)

    def _accumulate(self, step: Step) -> None:
        """One step for each `+=` that the engine ran, placed where its second term arrived."""
        running, *others = parts = [self.by_step[o] for o in step.operands]
        for count, (i, part) in enumerate(zip(step.recorded, others, strict=True), start=2):
            tensor, done = self.backward.graph.nodes[i].tensor, count == len(parts)
            name, role = (step.name, "gradient") if done else (step.name + _subscript_sum(count), "contribution")
            terms = {"a": {"t": running}, "b": {"t": part}}
            index = self.number[id(tensor)] = self._place(tensor.data, name, role, op="add", args=terms)
            self.uses[index] = self.uses[running] | self.uses[part]
            formula, more = f"⟦{running}⟧ + ⟦{part}⟧", {"parts": parts[:count], "done": done}
            arrived = next(n for n, s in enumerate(self.steps) if s["tensor"] == part)
            self._gradient(step, index, formula, tensor.data, done, at=arrived + 1, **more)
            running = index
        self.by_step[step.id] = running

    def _gradient(self, step: Step, index: int, formula: str, data: np.ndarray, whole: bool, **more: Any) -> None:
        """Tie a gradient to its value, put a finite difference beside it, and make it a step."""
        value = self._value(step.target)
        self.tensors[index] |= {"of": value, "box": f"s{step.id}", "module": None}
        if whole:
            self.tensors[value]["grad"] = index
        if index in self.uses:
            finite = self.differences.of(step.target, self.uses[index], data.astype(np.float64))
            if isinstance(finite, np.ndarray):
                more["check"] = {"each": _packed(finite, np.float32)}
            else:
                more["check"] = {"why": "replay"} if finite is None else {"direction": _literal(finite)}
        self._step("backward", step.role, index, formula, **more)

    def _step(self, lane: str, kind: str, index: int, formula: str, at: int | None = None, **more: Any) -> None:
        step = {"lane": lane, "kind": kind, "tensor": index, "formula": formula, "reads": self._reads(index), **more}
        self.steps.insert(len(self.steps) if at is None else at, step)

    def _value(self, node: int) -> int:
        """The tensor of a forward node; of an operation with several results, the first of them."""
        if self.forward.nodes[node].dtype == "tuple":
            node = next(n.id for n in self.forward.nodes if node in n.operands)
        return self.number[id(self.forward.nodes[node].tensor)]

    # ------------------------------------------------------------------------------------------ tensors

    def _place(self, data: np.ndarray, name: str, role: str, **more: Any) -> int:
        record: dict[str, Any] = {"name": name, "role": role, "shape": data.shape, "dtype": data.dtype.name}
        if role == "inner" and ("map" in more or "moved" in more):
            pass  # looked up where the numbers came from
        elif data.size <= self.max_values:
            record["data"] = _packed(data, np.float32)
        elif role != "inner":
            record["stats"] = _summary(data)
        self.tensors.append(record | more)
        return len(self.tensors) - 1

    def _add(self, trace: Trace, node: Node, name: str, role: str, **more: Any) -> int:
        """Describe a value and how it was made; what it was made from is described first."""
        made = _maker(trace, node)
        if (op := made.tensor.op) is not None:
            more |= {"op": op.name, "args": {p: self._argument(trace, a, p) for p, a in zip(op.params, made.arguments)}}
        if node.op in KEEPING_ORDER:
            more["moved"] = True
        elif node.op in MOVING:
            more["map"] = _packed(_origin(trace, node), np.int32)
        elif node.op in ADDING:
            more["lands"] = _packed(_landing(node), np.int32)
        if (source := getattr(node.tensor, "_source", None)) is not None:
            more["source"] = re.split(r"[\\/]", source)[-1]
        index = self.number[id(node.tensor)] = self._place(node.tensor.data, name, role, **more)
        return index

    def _argument(self, trace: Trace, argument: Any, parameter: str) -> dict[str, Any]:
        if isinstance(argument, Operand):
            node = trace.nodes[argument.id]
            if node.is_scalar_constant:
                return {"v": _literal(node.tensor.item())} | ({"name": node.name} if node.named else {})
            if id(node.tensor) not in self.number:  # made or used by a rule on its way
                self._add(trace, node, node.name, "inner" if node.op else "constant")
            return {"t": self.number[id(node.tensor)]}
        if isinstance(argument, tuple) and any(isinstance(a, Operand) for a in argument):
            return {"list": [self._argument(trace, a, parameter) for a in argument]}
        if isinstance(argument, np.ndarray) and argument.ndim:
            key = (parameter, argument.shape, argument.dtype.str, argument.tobytes())
            if key not in self.arrays:
                self.arrays[key] = self._place(argument, parameter, "constant", grad=None, nograd="constant")
            return {"t": self.arrays[key]}
        return {"v": _literal(argument)}

    def _reads(self, index: int) -> list[int]:
        """The tensors whose values the operations behind a tensor read, through what rules make on their way."""
        found: dict[int, None] = {}
        stack = [index]
        while stack:
            arguments = self.tensors[stack.pop()].get("args", {}).values()
            operands = [a["t"] for value in arguments for a in value.get("list", [value]) if "t" in a]
            stack += [t for t in operands if self.tensors[t]["role"] == "inner"]
            found |= dict.fromkeys(t for t in operands if self.tensors[t]["role"] != "inner")
        return list(found)

    def _linked(self, expression: Symbol, gradients: Mapping[str, int], tensor: int) -> str:
        """The formula of a tensor with "⟦3⟧" for the name of tensor 3; transposes and splits are shown as such."""

        def link(leaf: Symbol) -> Symbol | None:
            if leaf.node is None:
                index = gradients.get(leaf.args[0])
            else:
                node = self.forward.nodes[leaf.node]
                if node.dtype == "tuple" or (node.name.endswith("ᵀ") and not node.named):
                    return expression_of(self.forward, node).substitute(link)
                index = self.number.get(id(node.tensor))
            return None if index is None else Symbol.named(f"⟦{index}⟧", leaf.like, leaf.node)

        text, reads = expression.substitute(link).text("math"), self._reads(tensor)
        for (name, *_), index in self.arrays.items():
            if index in reads:
                text = re.sub(rf"\b{name}\b", f"⟦{index}⟧", text)
        return text


def _maker(trace: Trace, node: Node) -> Node:
    """The operation that made a value: itself, or the one whose several results it is part of."""
    return trace.nodes[node.operands[0]] if node.op == "part" else node


def _origin(trace: Trace, node: Node) -> np.ndarray:
    """Where each number of a moving operation came from: the operation itself, run on the numbers 1, 2, 3, ..."""
    made = _maker(trace, node)
    start, counted = 1, {}
    for operand in made.operands:
        shape = trace.nodes[operand].shape
        counted[operand] = np.arange(start, start + np.prod(shape, dtype=int)).reshape(shape)
        start += counted[operand].size
    moved = run(made, counted, {})
    return np.asarray(moved if made is node else moved[node.arguments[1]]) - 1


def _landing(node: Node) -> np.ndarray:
    """Where each number of an adding operation is added: what its gradient, on the way back, would read there."""
    positions = np.arange(np.prod(node.shape, dtype=int)).reshape(node.shape)
    return np.asarray(PRIMITIVES[node.op or ""].by_position[0](positions, None, *node.arguments))


def _packed(array: np.ndarray, dtype: type) -> str:
    return base64.b64encode(np.ascontiguousarray(array, np.dtype(dtype).newbyteorder("<")).tobytes()).decode()


def _summary(data: np.ndarray) -> dict[str, Any]:
    finite = data[np.isfinite(data)].astype(np.float64)
    low, mean, high = (finite.min(), finite.mean(), finite.max()) if finite.size else (0.0, 0.0, 0.0)
    counts = np.histogram(finite, BINS)[0].tolist()
    return {"min": float(low), "mean": float(mean), "max": float(high), "counts": counts}


def _literal(value: Any) -> Any:
    """What JSON can say of an argument; other things (dtypes, slices) matter to no cell and become null."""
    if isinstance(value, (np.generic, np.ndarray)):
        value = value.item() if value.size == 1 else value.tolist()
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    if isinstance(value, (tuple, list)):
        return [_literal(v) for v in value]
    return value if isinstance(value, (bool, int, float, str)) else None


def _subscript_sum(count: int) -> str:
    """₁₊₂ for the first two contributions, ₁₊…₊₅ for the first five."""
    return "₁₊" + {2: "", 3: "₂₊"}.get(count, "…₊") + str(count).translate(SUBSCRIPT)
