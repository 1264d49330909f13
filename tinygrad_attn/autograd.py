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
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np

Array = Any  # an ndarray, a Tensor or a named placeholder: rules are duck-typed
Rule = Callable[..., Any]
Function = TypeVar("Function", bound=Callable[..., Any])


class Scope(NamedTuple):
    """One call of a module: its name in its parent, its class and the call that encloses it."""

    name: str
    kind: str
    parent: Scope | None


class Origin(NamedTuple):
    """Why the backward pass made a value.

    ``role`` is "rule" (``of`` is the forward value whose rule ran, ``position`` the argument that gets the
    gradient, -1 for all at once), "unbroadcast", "cast" or "accumulate" (``of`` is the value that receives).
    """

    of: Node
    role: str
    position: int


class _State(threading.local):
    """What is switched on, for the thread that asks."""

    recording = True
    anomaly = False
    scope: Scope | None = None
    origin: Origin | None = None


state = _State()
_numbers = count(1)


class _Switch:
    """Sets one field of the state for a ``with`` block or a decorated function, and may be nested."""

    field: ClassVar[str]
    value: ClassVar[Any]

    def __init__(self) -> None:
        self._before: list[Any] = []

    def __enter__(self) -> None:
        self._before.append(getattr(state, self.field))
        setattr(state, self.field, self.value)

    def __exit__(self, *_: object) -> None:
        setattr(state, self.field, self._before.pop())

    def __call__(self, function: Function) -> Function:
        if not callable(function):
            raise TypeError(f"{type(self).__name__} takes no argument: write `with {type(self).__name__}():`")

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with type(self)():
                return function(*args, **kwargs)

        return wrapped  # type: ignore[return-value]


class no_grad(_Switch):
    """Record nothing inside: as ``with no_grad():`` or as the decorator ``@no_grad()``.

    >>> import tinygrad_attn as ta
    >>> w = ta.Tensor([1.0], requires_grad=True)
    >>> with ta.no_grad():
    ...     print((w * 2).requires_grad)
    False
    """

    field, value = "recording", False


class enable_grad(_Switch):
    """Record again inside a `no_grad` block; a context manager and a decorator like it."""

    field, value = "recording", True


class detect_anomaly(_Switch):
    """Raise where the first non-finite value appears, in forward or backward: a debugging mode, and slow.

    The error is a FloatingPointError and names the operation, the shapes of its inputs and the source line
    that called it.  A NaN always raises; an infinity raises unless the inputs held one already, so that
    masking with minus infinity is no anomaly.
    """

    field, value = "anomaly", True


def is_grad_enabled() -> bool:
    """Whether operations are being recorded in this thread."""
    return state.recording


class scope:
    """``with scope(name, kind):`` marks what is recorded inside as belonging to one call of a module."""

    __slots__ = ("_before", "_entry")

    def __init__(self, name: str, kind: str) -> None:
        self._before = state.scope
        self._entry = Scope(name, kind, self._before)

    def __enter__(self) -> None:
        state.scope = self._entry

    def __exit__(self, *_: object) -> None:
        state.scope = self._before


class Lock:
    """Keeps an array read-only while some graph holds this object: writing raises at the writing line."""

    __slots__ = ("__weakref__", "array")

    def __init__(self, array: Array) -> None:
        self.array = array
        array.setflags(write=False)

    def __del__(self) -> None:
        self.array.setflags(write=True)


class Node:
    """A value and how it was made.  `Tensor` adds everything that a user sees.

    ``args`` holds all arguments of the operation in order, Tensors and plain parameters; ``_values`` the same
    as the forward saw them, arrays; ``_edges`` the (position, Tensor) pairs that want gradients.  The three
    are None once the graph is freed.
    """

    __slots__ = (
        "__weakref__",
        "_data",
        "_edges",
        "_grad",
        "_lock",
        "_locks",
        "_requires_grad",
        "_retains_grad",
        "_source",
        "_values",
        "args",
        "index",
        "name",
        "op",
        "origin",
        "scope",
    )

    result_type: ClassVar[type[Node]]
    _data: Array
    _edges: tuple[tuple[int, Node], ...] | None
    _grad: Node | None
    _lock: weakref.ref[Lock] | None
    _locks: list[Lock] | None
    _requires_grad: bool
    _retains_grad: bool
    _source: str
    _values: tuple[Any, ...] | None
    args: tuple[Any, ...] | None
    index: int
    name: str | None
    op: Primitive | None
    origin: Origin | None
    scope: Scope | None

    def _hold(self) -> Lock | None:
        """The lock on a leaf's array that a graph keeps while it needs the array."""
        lock = self._lock() if self._lock is not None else None
        if (lock is None or lock.array is not self._data) and self._data.flags.writeable:
            lock = Lock(self._data)
            self._lock = weakref.ref(lock)
        return lock


def constant(data: Array) -> Any:
    """A Tensor around an array that nobody else writes to, with no history."""
    node = Node.result_type.__new__(Node.result_type)
    node._data = data
    node._requires_grad = node._retains_grad = False
    node._grad = node.name = node.op = node.args = node._values = node._edges = None
    node._lock = node._locks = node.scope = node.origin = None
    node.index = 0
    return node


# ------------------------------------------------------------------------------------------------ operations

PRIMITIVES: dict[str, Primitive] = {}
NUMPY: dict[Any, Callable[..., Any]] = {}  # NumPy's function or ufunc -> ours
_REQUIRED = object()


class Primitive:
    """An operation: its forward on arrays, and a rule for the gradient of each argument that can have one.

    A rule takes ``(g, out, *arguments)``: the incoming gradient, the forward's result and its arguments.  It
    gives the gradient of the argument whose name it bears, in any shape that broadcasting made of it.

    ``op(*arguments)`` is the public call and gives a Tensor.  ``op.of(*arguments)`` is for rules: it stays in
    the world of what it is given, so arrays give an array, Tensors a Tensor, placeholders a placeholder.
    """

    def __init__(
        self,
        forward: Callable[..., Any],
        *,
        saves: Callable[..., tuple[Any, ...]] | None = None,
        variadic: bool = False,
        promotes: bool = False,
    ) -> None:
        names = forward.__code__.co_varnames[: forward.__code__.co_argcount]
        self.forward = forward
        self.saves = saves  # intermediates that forward and rules share: one more argument, a tuple
        self.variadic = variadic  # the first argument is a sequence of operands
        self.promotes = promotes  # operands broadcast elementwise, and scalars and integers are weak
        defaults = forward.__defaults__ or ()
        self.params = names
        if saves:
            self.params, defaults = names[:-1], defaults[:-1]
        self.defaults = (_REQUIRED,) * (len(self.params) - len(defaults)) + defaults
        self.operands: tuple[int, ...] = (0,)
        self.rules: dict[str, Rule] = {}
        self.joint: Rule | None = None
        self.rewrite: Callable[..., Any] | None = None
        self.remedy: Callable[..., str] | None = None
        self.by_position: tuple[Any, ...] = ()
        self.many = False
        self.__name__ = self.__qualname__ = self.name = forward.__name__
        self.__doc__ = forward.__doc__
        self.__module__ = forward.__module__
        self.__wrapped__ = forward

    def __repr__(self) -> str:
        shown = (
            n if d is _REQUIRED else f"{n}={d!r}" for n, d in zip(self.params, self.defaults, strict=True)
        )
        return f"{self.name}({', '.join(shown)})"

    def gradients(self, **rules: Rule) -> None:
        """State one rule per differentiable argument, named by the argument."""
        self.rules = rules
        self.operands = tuple(i for i, name in enumerate(self.params) if name in rules)
        self.by_position = tuple(rules.get(name) for name in self.params)

    def joint_gradients(self, rule: Rule) -> Rule:
        """State one rule that gives the gradients of all operands, in order, where they share their work."""
        self.joint = rule
        return rule

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        bound = self.bind(args, kwargs)
        if self.rewrite is not None:
            rewritten = self.rewrite(*bound)
            if rewritten is not None:
                return rewritten
        return apply(self, bound)

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
        if kwargs or len(args) != len(self.params):
            args = self._complete(args, kwargs)
        if self.variadic:
            if isinstance(args[0], Node) or not isinstance(args[0], Iterable):
                raise TypeError(f"{self.name}: takes a sequence of tensors, got {type(args[0]).__name__}")
            return (tuple(a if isinstance(a, Node) else Node.result_type(a) for a in args[0]), *args[1:])  # type: ignore[call-arg]
        bound = [self._bind_one(i, a) for i, a in enumerate(args)]
        if not any(isinstance(bound[i], Node) for i in self.operands):
            for i in self.operands:
                if args[i] is not None:
                    bound[i] = Node.result_type(args[i])  # type: ignore[call-arg]
        return tuple(bound)

    def _bind_one(self, position: int, a: Any) -> Any:
        if a is None or (isinstance(a, (Node, float, int)) and not isinstance(a, np.generic)):
            return a
        if position not in self.operands:  # a mask, an index: the graph keeps its own copy
            return a.copy() if isinstance(a, np.ndarray) and a.flags.writeable else a
        if isinstance(a, np.generic) or (isinstance(a, np.ndarray) and a.ndim == 0):
            return a.item()
        return Node.result_type(a)  # type: ignore[call-arg]

    def _complete(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        if len(args) > len(self.params):
            raise TypeError(f"{self}: takes {len(self.params)} arguments, got {len(args)}")
        given = [*args, *self.defaults[len(args) :]]
        for name, value in kwargs.items():
            if name not in self.params:
                raise TypeError(f"{self}: has no argument {name!r}")
            position = self.params.index(name)
            if position < len(args):
                raise TypeError(f"{self}: got {name!r} twice")
            given[position] = value
        for name, value in zip(self.params, given, strict=True):
            if value is _REQUIRED:
                raise TypeError(f"{self}: {name!r} is missing")
        return tuple(given)

    def explain(self, error: Exception, values: Sequence[Any]) -> Exception:
        """The error of a failed forward, with the operation, the shapes and the remedy in it."""
        if str(error).startswith(f"{self.name}: "):
            return error
        operands = values[0] if self.variadic else [values[i] for i in self.operands]
        shapes = " and ".join(str(np.shape(a)) for a in operands)
        skipped = (0,) if self.variadic else self.operands
        named = zip(self.params, values, strict=False)
        rest = "".join(
            f", {n}={v!r}" for i, (n, v) in enumerate(named) if i not in skipped and np.ndim(v) < 2
        )
        remedy = f". {self.remedy(*values[: len(self.params)])}" if self.remedy else ""
        return type(error)(f"{self.name}: cannot take shapes {shapes}{rest}: {error}{remedy}")


def primitive(
    *, numpy: Any = (), method: str | None = "", operators: Sequence[str] = (), **options: Any
) -> Callable[[Callable[..., Any]], Primitive]:
    """Declare an operation: the function, the Tensor's method and operators, and the NumPy names, at once."""

    def declare(forward: Callable[..., Any]) -> Primitive:
        op = Primitive(forward, **options)
        PRIMITIVES[op.name] = op
        attach(op, op.name, numpy=numpy, method=method, operators=operators)
        return op

    return declare


def derived(
    *, numpy: Any = (), method: str | None = "", operators: Sequence[str] = ()
) -> Callable[[Function], Function]:
    """Declare a function written in terms of operations: it needs no rule and gets the same names."""

    def declare(function: Function) -> Function:
        attach(function, function.__name__, numpy=numpy, method=method, operators=operators)
        return function

    return declare


def attach(op: Any, name: str, *, numpy: Any, method: str | None, operators: Sequence[str]) -> None:
    """Give ``op`` its NumPy names, its method (None for no method) and its operators."""
    for function in numpy if isinstance(numpy, tuple) else (numpy,):
        NUMPY[function] = op
    if method is not None:
        setattr(Node.result_type, method or name, _method(op))
    for operator in operators:
        setattr(Node.result_type, f"__{operator}__", _operator(op, reflected=False))
        if operator not in ("neg", "pos", "abs"):
            setattr(Node.result_type, f"__r{operator}__", _operator(op, reflected=True))


def _method(op: Any) -> Callable[..., Any]:
    @functools.wraps(op, updated=())
    def method(self: Node, *args: Any, **kwargs: Any) -> Any:
        return op(self, *args, **kwargs)

    return method


def _operator(op: Any, *, reflected: bool) -> Callable[..., Any]:
    if not isinstance(op, Primitive):
        return (lambda self, other: op(other, self)) if reflected else (lambda self, *other: op(self, *other))

    def operator(self: Node, other: Any) -> Any:
        kind = other.__class__
        args = (other, self) if reflected else (self, other)
        if (kind is float or kind is Node.result_type) and op.rewrite is None:  # nothing to lift
            return apply(op, args)
        return op(*args) if _is_operand(other) else NotImplemented

    return operator if len(op.params) == 2 else (lambda self: apply(op, (self,)))


def _is_operand(value: Any) -> bool:
    return isinstance(value, (Node, int, float, np.ndarray, np.generic, list, tuple))


@np.errstate(invalid="ignore")
def _check_finite(op: Primitive, values: Iterable[Any], out: Any, edges: Any, source: str, what: str) -> None:
    """Anomaly mode: NaN is always one, an infinity only where no input held one."""
    arrays = [out] if not isinstance(out, (tuple, list)) else list(out)
    if any(np.isnan(a).any() for a in arrays):
        bad = "NaN"
    elif any(np.isinf(a).any() for a in arrays) and not any(
        np.isinf(v).any() for v in values if _is_float(v)
    ):
        bad = "an infinity"
    else:
        return
    shapes = ", ".join(str(np.shape(v)) for v in values if _is_float(v))
    raise FloatingPointError(
        f"{op.name}: {bad} in the {what}, from inputs of shape {shapes}; made at {source}"
    )


def _is_float(value: Any) -> bool:
    return isinstance(value, (float, np.ndarray, np.generic)) and np.asarray(value).dtype.kind == "f"


_HERE = __file__.rpartition("autograd")[0]


def _users_line() -> str:
    """``file:line`` of the code outside this package and NumPy that is running now."""
    frame = sys._getframe(1)
    numpy = np.__file__.rpartition("__init__")[0]
    while frame.f_back and frame.f_code.co_filename.startswith((_HERE, numpy)):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _promote(op: Primitive, args: Sequence[Any], values: list[Any]) -> None:
    """Let integers and 0-d constants follow the dtype of the floats beside them, as scalars do."""
    arrays = [i for i in op.operands if isinstance(values[i], np.ndarray)]
    floats = [i for i in arrays if values[i].dtype.kind == "f"]
    strong = [i for i in floats if values[i].ndim or args[i]._requires_grad] or floats
    if strong:
        dtype = np.result_type(*(values[i].dtype for i in strong))
        for i in arrays:
            if i not in strong:
                values[i] = values[i].astype(dtype)


def apply(op: Primitive, args: tuple[Any, ...]) -> Any:
    """Run the forward on the arrays in ``args``; record how the result was made, if it wants gradients."""
    values: list[Any] = []
    edges: list[tuple[int, Node]] = []
    if op.variadic:
        values = [tuple(a._data for a in args[0]), *args[1:]]
        edges = [(i, a) for i, a in enumerate(args[0]) if a._requires_grad]
    else:
        for i, a in enumerate(args):
            if isinstance(a, Node):
                values.append(a._data)
                if a._requires_grad:
                    edges.append((i, a))
            else:
                values.append(a)
    if op.promotes:
        dtype = None
        for i in op.operands:
            a = values[i]
            if a.__class__ is np.ndarray:
                if dtype is None:
                    dtype = a.dtype
                elif a.dtype is not dtype:
                    _promote(op, args, values)
                    break
    try:
        if op.saves is not None:
            values.append(op.saves(*values))
        out = op.forward(*values)
    except (ValueError, TypeError, IndexError) as error:
        raise op.explain(error, values) from error
    if op.many:
        return _unpack(op, args, values, edges, out)
    if out.__class__ is not np.ndarray:
        out = np.asarray(out)
    node = constant(out)
    if state.anomaly:
        node._source = _users_line()
        _check_finite(op, values, out, edges, node._source, "result")
    if edges and state.recording and (op.by_position or op.joint is not None):
        _record(node, op, args, values, edges)
    return node


def _record(
    node: Any, op: Primitive, args: tuple[Any, ...], values: list[Any], edges: list[tuple[int, Node]]
) -> None:
    node._requires_grad = True
    node.op = op
    node.args = args
    node._values = tuple(values)
    node._edges = tuple(edges)
    node.index = next(_numbers)
    node.scope = state.scope
    node.origin = state.origin
    locks = None
    for a in args[0] if op.variadic else args:
        if isinstance(a, Node) and a.op is None:
            lock = a._hold()
            if lock is not None:
                locks = [lock] if locks is None else [*locks, lock]
    node._locks = locks
    if node._data.__class__ is np.ndarray:
        node._data.setflags(write=False)


def _unpack(
    op: Primitive, args: tuple[Any, ...], values: list[Any], edges: list[Any], out: Sequence[Array]
) -> list[Any]:
    """The results of an operation with many: one `part` of a recorded bundle for each."""
    if not (edges and state.recording):
        return [constant(a) for a in out]
    bundle = constant(tuple(out))
    _record(bundle, op, args, values, edges)
    return [apply(part, (bundle, i)) for i in range(len(out))]


# ----------------------------------------------------------------------------------------- the backward pass


def unbroadcast(g: Array, shape: tuple[int, ...]) -> Array:
    """Sum a gradient over the axes that broadcasting stretched, back to ``shape``."""
    extra = g.ndim - len(shape)
    if extra > 0:
        g = g.sum(axis=tuple(range(extra)))
    stretched = tuple(i for i, n in enumerate(shape) if n == 1 and g.shape[i] != 1)
    return g.sum(axis=stretched, keepdims=True) if stretched else g


def _ancestors(roots: Iterable[Node]) -> list[Node]:
    """Every value behind the roots that wants a gradient, in recording order, leaves first."""
    seen = set(roots)
    stack = list(seen)
    while stack:
        node = stack.pop()
        if node.op is not None:
            if node._edges is None:
                raise RuntimeError(
                    f"backward: the graph behind {node.name or node.op.name!r} was freed by an earlier pass;"
                    " compute the value again, or pass retain_graph=True to the first pass"
                )
            for _, a in node._edges:
                if a not in seen:
                    seen.add(a)
                    stack.append(a)
    return sorted(seen, key=_recording_number)


def _recording_number(node: Node) -> int:
    return node.index


def _on_path(order: list[Node], inputs: Iterable[Node]) -> set[Node]:
    """Those of ``order`` that some input leads to: the only ones whose gradient is worth computing."""
    needed = set(inputs)
    for node in order:
        if node.op is not None and any(a in needed for _, a in node._edges or ()):
            needed.add(node)
    return needed


def _walk(
    seeds: dict[Node, Array], inputs: Sequence[Node] | None, *, create_graph: bool, retain_graph: bool
) -> dict[Node, Array]:
    """Carry the seeds back through the graph; the gradients of ``inputs`` (None: of all leaves) come out.

    Arrays flow, or Tensors under ``create_graph``.  A value is reached when all that was made from it is
    done, so its gradient is complete, is used once and is dropped: interior gradients never pile up.
    """
    order = _ancestors(seeds)
    needed = None if inputs is None else _on_path(order, inputs)
    targets = None if inputs is None else set(inputs)
    gradients = dict(seeds)
    owned: set[Node] = set()  # whose running sum is an array of ours, to be added to in place
    found: dict[Node, Array] = {}
    while order:
        node = order.pop()
        if needed is not None and node not in needed:
            continue
        g = gradients.pop(node)
        if (node.op is None or node._retains_grad) if targets is None else node in targets:
            found[node] = g
        op = node.op
        if op is None:
            continue
        assert node._values is not None and node._edges is not None and node.args is not None
        out, values, edges = node._data, node._values, node._edges
        if create_graph:
            out, values, state.origin = node, node.args, Origin(node, "rule", -1)
            if op.saves is not None:
                values = (*values, op.saves(*values))
        if op is part:
            bundle = edges[0][1]
            gradients.setdefault(bundle, [None] * len(bundle._data))[values[1]] = g
        else:
            if op.many:
                g = [_zeros(a, create_graph) if c is None else c for c, a in zip(g, node._data, strict=True)]
            if op.joint is not None:
                together = op.joint(g, out, *values)
            for i, a in edges:
                if needed is not None and a not in needed:
                    continue
                if op.joint is not None:
                    c = together[i]
                else:
                    if create_graph:
                        state.origin = Origin(node, "rule", i)
                    c = op.by_position[i](g, out, *values)
                data = a._data
                if c.shape != data.shape or c.dtype is not data.dtype:
                    c = _fit(c, node, a, create_graph)
                if state.anomaly:
                    _check_backward(node, g, c)
                if a not in gradients:
                    gradients[a] = c
                elif a in owned:
                    np.add(gradients[a], c, out=gradients[a])
                else:
                    if create_graph:
                        state.origin = Origin(a, "accumulate", -1)
                    gradients[a] = c = gradients[a] + c
                    if c.__class__ is np.ndarray:
                        owned.add(a)
        if not retain_graph:
            _free(node)
    return found


def _fit(c: Array, node: Node, a: Node, create_graph: bool) -> Array:
    """A gradient has the shape and the dtype of its value: undo broadcasting and casting."""
    data = a._data
    if c.shape != data.shape:
        if create_graph:
            state.origin = Origin(a, "unbroadcast", -1)
        if c.ndim >= data.ndim:
            c = unbroadcast(c, data.shape)
        if c.shape != data.shape:
            assert node.op is not None
            raise RuntimeError(
                f"{node.op.name}: its gradient rule gave shape {c.shape} to an argument of shape {data.shape}"
            )
    if c.dtype != data.dtype:
        if create_graph:
            state.origin = Origin(a, "cast", -1)
        c = c.astype(data.dtype)
    return c


def _zeros(like: Array, create_graph: bool) -> Array:
    return constant(np.zeros_like(like)) if create_graph else np.zeros_like(like)


def _check_backward(node: Node, g: Array, c: Array) -> None:
    assert node.op is not None and node._values is not None
    incoming, outgoing = (x._data if isinstance(x, Node) else x for x in (g, c))
    values = [incoming, *(v for v in node._values if _is_float(v))]
    _check_finite(node.op, values, outgoing, None, getattr(node, "_source", "an unknown line"), "gradient")


def _free(node: Node) -> None:
    node.args = node._values = node._edges = node._locks = None
    data = node._data
    if data.__class__ is np.ndarray and (data.base is None or data.base.flags.writeable):
        data.setflags(write=True)


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
    if gradient is None:
        if data.size != 1:
            raise ValueError(
                f"backward: an output of shape {data.shape} needs a gradient of that shape; reduce it to one"
                " number first (.sum() or .mean()), or pass the seed"
            )
        gradient = np.ones_like(data)
    kept = isinstance(gradient, Node) and create_graph
    array = gradient._data if isinstance(gradient, Node) else np.asarray(gradient)
    if array.shape != data.shape:
        raise ValueError(
            f"backward: the gradient has shape {array.shape}, but the output has shape {data.shape}"
        )
    if array.dtype.kind not in "fiub":
        raise TypeError(f"backward: a gradient of dtype {array.dtype} is not numeric")
    if kept:
        return gradient if array.dtype == data.dtype else gradient.astype(data.dtype)
    array = array.astype(data.dtype)
    return constant(array) if create_graph else array


def _run(
    outputs: Sequence[Any],
    seeds: Sequence[Any],
    inputs: Sequence[Node] | None,
    create_graph: bool,
    retain: bool | None,
) -> dict[Node, Array]:
    total: dict[Node, Array] = {}
    for output, gradient in zip(outputs, seeds, strict=True):
        seed = _seed(output, gradient, create_graph)
        total[output] = total[output] + seed if output in total else seed
    before = state.recording, state.origin, state.scope
    state.recording, state.scope = create_graph, None
    try:
        return _walk(
            total, inputs, create_graph=create_graph, retain_graph=create_graph if retain is None else retain
        )
    finally:
        state.recording, state.origin, state.scope = before


def backward(
    output: Any, gradient: Any = None, *, retain_graph: bool | None = None, create_graph: bool = False
) -> None:
    """Add the gradient of ``output`` to the ``.grad`` of every leaf behind it; see `Tensor.backward`."""
    found = _run([output], [gradient], None, create_graph, retain_graph)
    deposited: set[int] = set()
    for leaf, g in found.items():
        if not create_graph:
            array = np.asarray(g)
            if array.base is not None or not array.flags.writeable or id(array) in deposited:
                array = array.copy()  # .grad is the leaf's own: never a view, never shared
            deposited.add(id(array))
            g = constant(array)
        with enable_grad() if create_graph else no_grad():
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
    single = isinstance(inputs, Node)
    wanted = [inputs] if single else list(inputs)
    for i, a in enumerate(wanted):
        if not isinstance(a, Node):
            raise TypeError(f"grad: input {i} is {type(a).__name__}, expected a Tensor")
        if not a._requires_grad:
            raise RuntimeError(
                f"grad: input {a.name or i} does not require gradients; set requires_grad=True first"
            )
    results = [outputs] if isinstance(outputs, Node) else list(outputs)
    seeds = (
        grad_outputs
        if isinstance(grad_outputs, (list, tuple)) and not isinstance(outputs, Node)
        else [grad_outputs]
    )
    if grad_outputs is None:
        seeds = [None] * len(results)
    if len(seeds) != len(results):
        raise ValueError(f"grad: {len(results)} outputs need as many grad_outputs, got {len(seeds)}")
    found = _run(results, seeds, wanted, create_graph, retain_graph)
    for i, a in enumerate(wanted):
        if a not in found and not allow_unused:
            raise RuntimeError(
                f"grad: the outputs do not depend on input {a.name or i}; allow_unused=True gives None for it"
            )
    if not create_graph:
        taken: dict[int, Array] = {}
        for a, g in found.items():
            array = np.asarray(g)
            found[a] = constant(array.copy() if not array.flags.writeable or id(array) in taken else array)
            taken[id(array)] = array
    gradients = tuple(found.get(a) for a in wanted)
    return gradients[0] if single else gradients


def _pick(bundle: Any, i: int) -> Array:
    """Output ``i`` of an operation with many outputs."""
    return bundle[i]


part = Primitive(_pick)
part.name = "part"
part.gradients(bundle=lambda g, out, bundle, i: g)
PRIMITIVES["part"] = part
