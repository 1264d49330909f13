"""The engine: a gradient rule is written once, in NumPy's own words, and run backwards over a recorded graph.

An operation (`Primitive`) is a forward function on arrays and, beside it, one gradient rule per argument.
A value (`Node`) remembers which operation made it from which arguments, and its recording number.  An
argument is always recorded before what is made from it, so the recording order read backwards is a
topological order: `backward` walks it once, and every gradient is complete when its value is reached.

The rules run on arrays for numbers and on Tensors, under ``create_graph``, for a graph that can be
differentiated or drawn.  What every rule would otherwise repeat stands here once: un-broadcasting, the shape
guard, the dtype guard.
"""

from __future__ import annotations

import functools
import inspect
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from operator import attrgetter
from types import MethodType
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from .modes import Scope, Switch, state

Array = Any  # an ndarray, a Tensor or a named placeholder: rules are duck-typed
Gradients = dict["Node", Array]
Rule = Callable[..., Any]
Function = TypeVar("Function", bound=Callable[..., Any])


class Origin(NamedTuple):
    """Why the backward pass made a value.

    ``role`` is "rule" (``of`` is the forward value whose rule ran, ``position`` the argument that gets the
    gradient, -1 for all at once), "unbroadcast", "cast" or "accumulate" (``of`` is the value that receives).
    """

    of: Node
    role: str
    position: int


_numbers = count(1)


def owner_of(array: Array) -> Array:
    """The array whose memory this one shows."""
    return array.base if array.base.__class__ is np.ndarray else array


class Lock:
    """Keeps an array and its views read-only while some graph holds this object: writing raises at the writing line."""

    alive: ClassVar[dict[int, weakref.ref[Lock]]] = {}  # by the array that owns the memory
    mutex: ClassVar[threading.RLock] = threading.RLock()  # graphs of several threads may share parameters

    def __init__(self, owner: Array) -> None:
        self.arrays = [owner]
        owner.setflags(False)
        self.alive[id(owner)] = weakref.ref(self)

    @classmethod
    def of(cls, array: Array) -> Lock | None:
        """The lock on the memory of an array; None where it cannot be written to anyway."""
        owner = owner_of(array)
        with cls.mutex:
            reference = cls.alive.get(id(owner))
            lock = reference() if reference is not None else cls(owner) if owner.flags.writeable else None
            if lock is not None and array is not owner and array.flags.writeable:
                array.setflags(False)
                lock.arrays.append(array)
        return lock

    def __del__(self) -> None:
        with self.mutex:
            del self.alive[id(self.arrays[0])]
            for array in self.arrays:  # the owner comes first: a view is writeable only if its owner is
                array.setflags(True)


class Node:
    """A value and how it was made.  `Tensor` adds everything that a user sees.

    ``args`` holds all arguments of the operation in order, Tensors and plain parameters; it is None for a
    leaf, and again once the graph is freed.
    """

    _data: Array
    _grad: Any
    _requires_grad: bool
    _retains_grad: bool
    _locks: list[Lock] | None  # those that this value's operation holds on its arguments
    _values: tuple[Any, ...] | None  # what the forward was called with, for the rules
    _source: str  # the user's line, where a watcher asked for it
    args: tuple[Any, ...] | None
    index: int
    name: str | None
    op: Primitive | None
    origin: Origin | None
    scope: Scope | None
    __slots__ = (*__annotations__, "__weakref__")
    result_type: ClassVar[type[Any]]


def constant(data: Array, node: Any = None) -> Any:
    """A Tensor around an array that nobody else writes to, with no history (or ``node``, made into one)."""
    node = object.__new__(Node.result_type) if node is None else node
    node._data = data
    node._requires_grad = node._retains_grad = False
    node._grad = node.name = node.op = node.args = node._values = None
    node._locks = node.scope = node.origin = None
    node.index = 0
    return node


# ------------------------------------------------------------------------------------------------ operations

PRIMITIVES: dict[str, Primitive] = {}
NUMPY: dict[Any, Callable[..., Any]] = {}  # NumPy's function or ufunc -> ours
_READY = {float, int, bool, str, tuple, type(None)}  # arguments that are taken as they are


@dataclass(eq=False, repr=False)
class Primitive:
    """An operation: its forward on arrays, and a rule for the gradient of each argument that can have one.

    A rule takes ``(g, out, *arguments)``: the incoming gradient, the forward's result and its arguments.  It
    gives the gradient of the argument whose name it bears, in any shape that broadcasting made of it.

    ``op(*arguments)`` is the public call and gives a Tensor.  ``op.of(*arguments)`` is for rules: it stays in
    the world of what it is given, so arrays give an array, Tensors a Tensor, placeholders a placeholder.
    """

    forward: Rule
    saves: Rule | None = None  # intermediates that forward and rules share: one more argument, a tuple
    variadic: bool = False  # the first argument is a sequence of operands
    promotes: bool = False  # operands broadcast elementwise, and scalars and integers are weak
    packs: bool = False  # the tuple may come as separate arguments too: x.reshape(2, 3)
    many: bool = False  # the forward gives several arrays
    operands: tuple[int, ...] = (0,)  # the positions of the arguments that become Tensors
    by_position: tuple[Any, ...] = ()
    joint: Rule | None = None
    rewrite: Callable[..., Any] | None = None  # another way to the result, or an error, before anything is recorded
    remedy: Callable[..., str] | None = None  # what to do about arguments that do not fit

    def __post_init__(self) -> None:
        parameters = [p.replace(annotation=p.empty) for p in inspect.signature(self.forward).parameters.values()]
        parameters = parameters[:-1] if self.saves else parameters
        self.__signature__ = self.signature = inspect.Signature(parameters)
        self.params = tuple(p.name for p in parameters)
        self.defaults = tuple(p.default for p in parameters)
        self.required = self.defaults.count(inspect.Parameter.empty)
        self.name = self.forward.__name__
        functools.update_wrapper(self, self.forward)

    def __repr__(self) -> str:
        return f"{self.name}{self.signature}"

    def __get__(self, instance: Node | None, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(self, instance)  # an attribute of Tensor is a method

    def gradients(self, **rules: Rule) -> None:
        """State one rule per differentiable argument, named by the argument."""
        self.operands = tuple(i for i, name in enumerate(self.params) if name in rules)
        self.by_position = tuple(rules.get(name) for name in self.params)

    def joint_gradients(self, rule: Rule) -> Rule:
        """State one rule that gives the gradients of all operands, in order, where they share their work."""
        self.joint = rule
        return rule

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.record(self.bind(args, kwargs))

    def record(self, bound: tuple[Any, ...]) -> Any:
        """The operation on what `bind` gives, in which nothing has to be lifted any more."""
        rewritten = self.rewrite(*bound) if self.rewrite is not None else None
        return apply(self, bound) if rewritten is None else rewritten

    def of(self, *args: Any) -> Any:
        """The operation on whatever a rule is running on."""
        operand = args[0][0] if self.variadic else args[0]
        if isinstance(operand, Node):
            return self(*args)
        if hasattr(operand, "__apply_primitive__"):
            return operand.__apply_primitive__(self, args)
        args += self.defaults[len(args) :]
        return self.forward(*args, self.saves(*args)) if self.saves else self.forward(*args)

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """All arguments in order, operands lifted to Tensors; scalars stay scalars, which are weak."""
        if self.packs and len(args) > 2:
            args = (args[0], args[1:])
        if not kwargs and self.required <= len(args) <= len(self.params):
            args += self.defaults[len(args) :]
        else:
            try:
                given = self.signature.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{self}: {error}") from None
            given.apply_defaults()
            args = given.args
        if self.variadic:
            if isinstance(args[0], Node) or not isinstance(args[0], Iterable):
                raise TypeError(f"{self.name}: takes a sequence of tensors, got {type(args[0]).__name__}")
            return (tuple(a if isinstance(a, Node) else Node.result_type(a) for a in args[0]), *args[1:])
        bound = list(args)
        tracked = False
        for i, a in enumerate(args):
            if isinstance(a, Node):
                tracked = tracked or i in self.operands
                if a._requires_grad and i not in self.operands:
                    raise TypeError(f"{self.name}: {self.params[i]} has no gradient here; detach() it")
            elif a.__class__ in _READY:
                continue
            elif isinstance(a, (np.ndarray, np.generic)) and not (a.ndim and i in self.operands):
                bound[i] = a.copy() if a.ndim else a.item()  # a mask or an index of the graph's own; a weak number
            elif i in self.operands:
                bound[i] = Node.result_type(a)
        if not tracked:  # numbers alone: they become Tensors of their own dtype
            for i in self.operands:
                if args[i] is not None:
                    bound[i] = Node.result_type(args[i])
        return tuple(bound)

    def explain(self, error: Exception, values: Sequence[Any]) -> Exception:
        """The error of a failed forward, with the operation, the shapes and the remedy in it."""
        if str(error).startswith(f"{self.name}: ") and "gufunc" not in str(error):  # NumPy's matmul names itself
            return error
        operands = values[0] if self.variadic else [values[i] for i in self.operands]
        shapes = " and ".join(str(np.shape(a)) for a in operands)
        others = [i for i in range(len(self.params)) if i not in self.operands and np.ndim(values[i]) < 2]
        given = "".join(f", {self.params[i]}={values[i]!r}" for i in others)
        remedy = f". {self.remedy(*values[: len(self.params)])}" if self.remedy else ""
        kind = TypeError if isinstance(error, TypeError) else type(error)  # NumPy's own kinds take other arguments
        return kind(f"{self.name}: cannot take shapes {shapes}{given}: {error}{remedy}")


def derived(
    *, numpy: Any = (), method: str | None = "", operators: Sequence[str] = ()
) -> Callable[[Function], Function]:
    """Give a function its NumPy names, its method (None: no method) and its operators.

    A function written in terms of operations needs no more: its gradient follows from theirs.
    """

    def declare(function: Function) -> Function:
        for name in numpy if isinstance(numpy, tuple) else (numpy,):
            NUMPY[name] = function
        if method is not None:
            setattr(Node.result_type, method or function.__name__, function)
        for operator in operators:
            setattr(Node.result_type, f"__{operator}__", _operator(function, reflected=False))
            if operator in ("add", "sub", "mul", "truediv", "pow", "matmul"):
                setattr(Node.result_type, f"__r{operator}__", _operator(function, reflected=True))
                setattr(Node.result_type, f"__i{operator}__", _in_place(function))
        return function

    return declare


def primitive(
    *, numpy: Any = (), method: str | None = "", operators: Sequence[str] = (), **options: Any
) -> Callable[[Callable[..., Any]], Primitive]:
    """Declare an operation: the function, the Tensor's method and operators, and the NumPy names, at once."""

    def declare(forward: Callable[..., Any]) -> Primitive:
        op = PRIMITIVES[forward.__name__] = Primitive(forward, **options)
        return derived(numpy=numpy, method=method, operators=operators)(op)

    return declare


def _operator(op: Any, *, reflected: bool) -> Callable[..., Any]:
    if not isinstance(op, Primitive) or len(op.params) == 1:
        return lambda self: op(self)
    tensor = Node.result_type

    def operator(self: Node, other: Any) -> Any:
        kind = other.__class__
        args = (other, self) if reflected else (self, other)
        if kind is tensor or kind is float:  # nothing to lift
            return apply(op, args) if op.rewrite is None else op.record(args)
        known = isinstance(other, (Node, int, float, np.ndarray, np.generic, list, tuple))
        return op(*args) if known else NotImplemented

    return operator


def _in_place(op: Any) -> Callable[..., Any]:
    """``w -= step``: a leaf that wants gradients keeps its identity, and is only written to under `no_grad`."""

    def operator(self: Node, other: Any) -> Any:
        if self.op is not None or not self._requires_grad:
            return op(self, other)
        if state.mode.recording:
            raise RuntimeError(f"{op.__name__}: a leaf that requires gradients changes in place only under no_grad()")
        self._data[...] = op(self, other)._data
        return self

    return operator


def apply(op: Primitive, args: tuple[Any, ...]) -> Any:
    """Run the forward on the arrays in ``args``; record how the result was made, if it wants gradients."""
    mode = state.mode
    values: list[Any] = []
    wanted = False
    leaves: list[Node] = []
    for a in args[0] if op.variadic else args:
        if isinstance(a, Node):
            values.append(a._data)
            if a._requires_grad:
                wanted = True
            if a.op is None:
                leaves.append(a)
        else:
            values.append(a)
    if op.variadic:
        values = [values, *args[1:]]
    if op.promotes and values[-1].__class__ is values[-2].__class__ and values[-1].dtype is not values[-2].dtype:
        args = _promote(op, args, values)  # a condition may stand before the two
    try:
        if op.saves is not None:
            values.append(op.saves(*values))
        arguments = tuple(values)
        out = op.forward(*arguments)
    except (ValueError, TypeError, IndexError) as error:
        raise op.explain(error, values) from None
    if out.__class__ is not np.ndarray:
        out = tuple(out) if op.many else np.asarray(out)
    node: Node = constant(out)
    if mode.watch is not None:
        mode.watch(node, op, values, out, "result")
    if wanted and mode.recording and (op.by_position or op.joint):
        node._requires_grad = True
        node.op = op
        node.args = args
        node._values = arguments
        node.scope = mode.scope
        node.origin = mode.origin
        node.index = next(_numbers)
        if leaves:
            node._locks = [lock for leaf in leaves if (lock := Lock.of(leaf._data)) is not None]
        if not op.many:
            out.setflags(False)
    return [apply(part, (node, i)) if node.op else constant(a) for i, a in enumerate(out)] if op.many else node


def _promote(op: Primitive, args: tuple[Any, ...], values: list[Any]) -> tuple[Any, ...]:
    """Let integers and 0-d constants follow the dtype of the floats beside them, as scalars do."""
    arrays = [i for i in op.operands if isinstance(values[i], np.ndarray)]
    floats = [i for i in arrays if values[i].dtype.kind == "f"]
    strong = [i for i in floats if values[i].ndim or args[i]._requires_grad] or floats
    given = list(args)
    for i in arrays:
        if strong and i not in strong:
            values[i] = values[i].astype(np.result_type(*(values[j] for j in strong)))
            given[i] = constant(values[i])  # the rules see what the forward saw
            given[i].name = args[i].name
    return tuple(given)


# ----------------------------------------------------------------------------------------- the backward pass


def unbroadcast(g: Array, shape: tuple[int, ...]) -> Array:
    """Sum a gradient over the axes that broadcasting stretched, back to ``shape``."""
    extra = g.ndim - len(shape)
    if extra > 0:
        g = g.sum(axis=tuple(range(extra)))
    stretched = tuple(i for i, n in enumerate(shape) if n == 1 and g.shape[i] != 1)
    return g.sum(axis=stretched, keepdims=True) if stretched else g


def _ancestors(roots: Iterable[Node]) -> list[Node]:
    """Every value behind the roots that an operation made and that wants a gradient, in recording order."""
    seen = set(roots)
    stack = list(seen)
    while stack:
        node = stack.pop()
        if node.op is None:
            continue
        if node.args is None:
            raise RuntimeError(
                f"backward: the graph behind {node.name or node.op.name!r} was freed by an earlier pass;"
                " compute the value again, or pass retain_graph=True to the first pass"
            )
        for a in node.args[0] if node.op.variadic else node.args:
            if isinstance(a, Node) and a._requires_grad and a not in seen:
                seen.add(a)
                stack.append(a)
    return sorted((node for node in seen if node.op is not None), key=attrgetter("index"))


def _on_path(order: list[Any], inputs: Iterable[Node]) -> set[Node]:
    """The inputs and those of ``order`` that they lead to: the only ones whose gradient is worth computing."""
    needed = set(inputs)
    for node in order:
        if any(isinstance(a, Node) and a in needed for a in (node.args[0] if node.op.variadic else node.args)):
            needed.add(node)
    return needed


def _walk(seeds: Gradients, inputs: Sequence[Node] | None, create_graph: bool, retain_graph: bool) -> Gradients:
    """Carry the seeds back through the graph; the gradients of ``inputs`` (None: of all leaves) come out.

    Arrays flow, or Tensors under ``create_graph``.  A value is reached when all that was made from it is
    done, so its gradient is complete, is used once and is dropped: interior gradients never pile up.
    """
    mode = state.mode
    order = _ancestors(seeds)
    kept = set(inputs or ())
    needed = None if inputs is None else _on_path(order, kept)
    gradients = dict(seeds)
    owned: set[Node] = set()  # whose running sum is an array of ours, to be added to in place
    found: Gradients = {}
    while order:
        node: Any = order.pop()
        g = gradients.pop(node, None)
        if g is None:
            continue
        op, args, out, values = node.op, node.args, node._data, node._values
        if node._retains_grad or (kept and node in kept):
            found[node] = g
        operands = args[0] if op.variadic else args
        if op is part:  # the bundle waits for the gradients of all its parts
            bundle, i = operands
            gradients.setdefault(bundle, [None] * len(bundle._data))[i] = g
            operands = ()
        elif op.many:  # a part that nothing was made from has gradient zero
            g = [np.zeros_like(a) if c is None else c for c, a in zip(g, out, strict=True)]
        if create_graph:
            mode.origin = Origin(node, "rule", -1)
            out, values = node, args if op.saves is None else (*args, op.saves(*args))
        together = op.joint(g, out, *values) if op.joint is not None else None
        for i, a in enumerate(operands):
            if not isinstance(a, Node) or not a._requires_grad or (needed is not None and a not in needed):
                continue
            if create_graph:
                mode.origin = Origin(node, "rule", i)
            c = together[i] if together is not None else op.by_position[i](g, out, *values)
            data = a._data
            if c.shape != data.shape or c.dtype is not data.dtype:
                c = _fit(c, node, a)
            if mode.watch is not None:
                mode.watch(node, op, [g, *values], c, "gradient")
            have = gradients.get(a)
            if have is None:
                gradients[a] = c
            elif a in owned:
                np.add(have, c, out=have)
            else:
                mode.origin = Origin(a, "accumulate", -1)
                gradients[a] = total = have + c
                if total.__class__ is np.ndarray:
                    owned.add(a)
        if not retain_graph:
            node.args = node._values = node._locks = None
            if not op.many and (node._data.base is None or node._data.base.flags.writeable):
                node._data.setflags(True)
    return found | gradients  # what is left belongs to leaves


def _fit(c: Array, node: Node, a: Node) -> Array:
    """A gradient has the shape and the dtype of its value: undo broadcasting and casting."""
    shape, dtype = a._data.shape, a._data.dtype
    if c.shape != shape:
        state.mode.origin = Origin(a, "unbroadcast", -1)
        fitted = unbroadcast(c, shape) if c.ndim >= len(shape) else c
        if fitted.shape != shape:
            raise RuntimeError(f"{node.op}: its rule gave a gradient of shape {c.shape} to an argument of {shape}")
        c = fitted
    if c.dtype != dtype:
        state.mode.origin = Origin(a, "cast", -1)
        c = c.astype(dtype)
    return c


def _seed(output: Any, gradient: Any, create_graph: bool) -> Any:
    """The incoming gradient of one output: 1 for a single number, otherwise of exactly the output's shape."""
    if not isinstance(output, Node):
        raise TypeError(f"backward: expected a Tensor, got {type(output).__name__}")
    if not output._requires_grad:
        raise RuntimeError(
            "backward: this value does not depend on anything that requires gradients; create a leaf with"
            " requires_grad=True, and check that it was not computed under no_grad() or from detached values"
        )
    data = output._data
    if gradient is None and data.size == 1:
        gradient = np.ones_like(data)
    array = gradient._data if isinstance(gradient, Node) else np.asarray(gradient)
    if gradient is None or array.shape != data.shape:
        raise ValueError(
            f"backward: an output of shape {data.shape} needs a gradient of that shape, got {np.shape(gradient)};"
            " reduce it to one number first (.sum() or .mean()), or pass the seed"
        )
    if array.dtype.kind not in "fiub":
        raise TypeError(f"backward: a gradient of dtype {array.dtype} is not numeric")
    if create_graph and isinstance(gradient, Node):
        return gradient if array.dtype == data.dtype else gradient.astype(data.dtype)  # type: ignore[attr-defined]
    seed = array.astype(data.dtype)
    return constant(seed) if create_graph else seed


def differentiate(outputs: Any, seeds: Any, inputs: Any, create_graph: bool, retain: bool | None) -> Gradients:
    """The gradients of the outputs for the inputs, or for every leaf behind them: each a Tensor of its own."""
    total: Gradients = {}
    for output, gradient in zip(outputs, seeds, strict=True):
        seed = _seed(output, gradient, create_graph)
        total[output] = total[output] + seed if output in total else seed
    with Switch(recording=create_graph, scope=None, origin=None):
        found = _walk(total, inputs, create_graph, create_graph if retain is None else retain)
    return found if create_graph else delivered(found)


def delivered(found: Gradients) -> Gradients:
    """The gradients as Tensors, each with an array of its own: never a view, never shared."""
    given: dict[int, Node] = {}
    for node, g in found.items():
        array = np.asarray(g)
        if id(array) in given or array.base is not None or not array.flags.writeable:
            array = array.copy()
        found[node] = given[id(array)] = constant(array)
    return found


def deposit(found: Gradients, create_graph: bool = False) -> None:
    """Add gradients to the ``.grad`` of their leaves."""
    with Switch(recording=create_graph):
        for leaf, g in found.items():
            leaf._grad = g if leaf._grad is None else leaf._grad + g


def grad(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    *,
    create_graph: bool = False,
    retain_graph: bool | None = None,
    allow_unused: bool = False,
) -> Any:
    """The gradient of ``outputs`` with respect to ``inputs``, without touching any ``.grad``.

    Args:
        outputs: a Tensor or a sequence of them (their gradients add).
        inputs: a Tensor, which gives a Tensor, or a sequence, which gives a tuple.
        grad_outputs: a seed of exactly the shape of each output; may be left out for single numbers.  Under
            ``create_graph`` a seed that wants gradients stays in the graph.
        create_graph: record the backward pass, so that the result can be differentiated again.
        retain_graph: keep the graph for another pass (default: as ``create_graph``).
        allow_unused: give None for an input that the outputs do not depend on, otherwise an error.

    >>> import tinygrad_attn as ta
    >>> x = ta.Tensor(2.0, requires_grad=True)
    >>> slope = ta.grad(x**3, x, create_graph=True)
    >>> slope.item(), ta.grad(slope, x).item()
    (12.0, 12.0)
    """
    wanted = [inputs] if isinstance(inputs, Node) else list(inputs)
    for i, a in enumerate(wanted):
        if not isinstance(a, Node):
            raise TypeError(f"grad: input {i} is {type(a).__name__}, expected a Tensor")
        if not a._requires_grad:
            raise RuntimeError(f"grad: input {a.name or i} does not require gradients; set requires_grad=True first")
    results, seeds = ([outputs], [grad_outputs]) if isinstance(outputs, Node) else (list(outputs), grad_outputs)
    seeds = [None] * len(results) if seeds is None else list(seeds)
    if len(seeds) != len(results):
        raise ValueError(f"grad: {len(results)} outputs need as many grad_outputs, got {len(seeds)}")
    found = differentiate(results, seeds, wanted, create_graph, retain_graph)
    for i, a in enumerate(wanted):
        if a not in found and not allow_unused:
            raise RuntimeError(
                f"grad: the outputs do not depend on input {a.name or i}; allow_unused=True gives None for it"
            )
    result = tuple(found.get(a) for a in wanted)
    return result[0] if isinstance(inputs, Node) else result


@primitive(method=None, operands=())
def part(bundle: Any, i: int) -> Array:
    """Output ``i`` of an operation with many outputs, such as split.

    Shapes: those of the output; so is the dtype.
    Rule:   dbundle = g
    """
    return bundle[i]


part.gradients(bundle=lambda g, out, bundle, i: g)
