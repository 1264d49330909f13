"""A formula is the code itself, run on names instead of numbers.

Gradient rules are ordinary NumPy expressions. A `Symbol` answers every operator, NumPy function and ndarray method
by remembering it, so running a rule on symbols gives the rule as a tree, and printing the tree gives a formula that
cannot differ from what the engine computes. Two notations of one tree: `code` is Python
(`out * (g - sum(g * out, axis=-1))`), `math` is what stands on a blackboard (`out ⊙ (g − Σ₋₁(g ⊙ out))`):

    @   matrix product                 ⊙   product element by element         ·   product with a number
    ᵀ   the last two axes swapped      √   square root                        Σ   sum over all elements
    Σ₋₁ sum over the axis in the index, keeping it for broadcasting; likewise mean₀, max₋₁
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

if TYPE_CHECKING:
    from ..autograd import Primitive

Style = Literal["code", "math"]


class Symbol(NDArrayOperatorsMixin):
    """A named array, or an operation on such: everything NumPy would compute on it, it remembers instead.

    `like` is an array of zeros of the right shape and dtype that takes no memory: results get their shapes from
    NumPy itself. `node` says which graph node a name stands for.

    >>> out, g = Symbol.named("out", np.zeros((3, 3))), Symbol.named("g", np.zeros((3, 3)))
    >>> dx = out * (g - (g * out).sum(-1, keepdims=True))
    >>> print(dx)
    out * (g - sum(g * out, axis=-1))
    >>> print(dx.text("math"))
    out ⊙ (g − Σ₋₁(g ⊙ out))
    >>> dx.shape
    (3, 3)
    """

    __slots__ = ("args", "keywords", "like", "node", "op")

    def __init__(
        self, op: str, args: tuple[Any, ...], keywords: dict[str, Any], like: Any, node: int | None = None
    ) -> None:
        self.op, self.args, self.keywords, self.node = op, args, keywords, node
        self.like = np.broadcast_to(np.zeros((), like.dtype), like.shape)

    @classmethod
    def named(cls, name: str, like: Any, node: int | None = None) -> Symbol:
        """The leaf of a formula: a name with the shape and dtype of `like`."""
        return cls("", (name,), {}, like, node)

    # -- what NumPy asks ------------------------------------------------------------------------

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **keywords: Any) -> Any:
        name = UFUNC_NAMES.get(ufunc.__name__, ufunc.__name__)
        if method != "__call__":
            name = REDUCTIONS.get(name, f"{name}.{method}")
        return _apply(name, getattr(ufunc, method), inputs, keywords)

    def __array_function__(self, function: Any, types: Any, args: Any, keywords: Any) -> Any:
        return _apply(function.__name__, function, args, keywords)

    def __apply_primitive__(self, op: Primitive, args: tuple[Any, ...]) -> Any:
        return _apply(op.name, op.of, args, {})

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(np.ndarray, name, None)
        if attribute is None or name.startswith("__"):
            raise AttributeError(f"a symbol, like an array, has no attribute {name!r}")
        if callable(attribute):
            return lambda *args, **keywords: _apply(name, attribute, (self, *args), keywords)
        value = getattr(self.like, name)
        return Symbol(name, (self,), {}, value) if isinstance(value, np.ndarray) else value

    @property
    def shape(self) -> tuple[int, ...]:
        """The real shape; printed by name (`x.shape`) where a rule passes it on."""
        return ShapeOf(self)

    def __getitem__(self, key: Any) -> Any:
        return _apply("getitem", lambda x, k: x[k], (self, key), {})

    def __len__(self) -> int:
        return len(self.like)

    def __bool__(self) -> bool:
        raise TypeError(f"the rule branches on a value ({self}), so there is no one formula for it")

    __hash__ = object.__hash__

    # -- what a picture asks --------------------------------------------------------------------

    def text(self, style: Style = "code") -> str:
        """The formula in one line; what occurs twice and is long gets a letter, explained after `where`."""
        return _Printer(style).sentence(self)

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return f"Symbol({self.text()})"

    def leaves(self) -> Iterator[Symbol]:
        """The names that occur in the formula as values, each once, in reading order (`x.shape` reads no value)."""
        seen: set[int] = set()
        stack: list[Any] = [self]
        while stack:
            s = stack.pop()
            if isinstance(s, (tuple, list)):
                stack.extend(reversed(s))
            elif isinstance(s, Symbol) and id(s) not in seen:
                seen.add(id(s))
                if s.op:
                    stack.extend(reversed([*_shown(s), *s.keywords.values()]))
                else:
                    yield s


class ShapeOf(tuple[int, ...]):
    """A shape that remembers whose it is, so that `broadcast_to(g, x.shape)` prints as written."""

    owner: Symbol

    def __new__(cls, owner: Symbol) -> ShapeOf:
        self = super().__new__(cls, owner.like.shape)
        self.owner = owner
        return self


def formula(op: Any, style: Style = "code") -> str:
    """An operation's forward and its gradient rules as text: `g` comes in, `out` is the forward's result.

    `op` is a primitive, its name, or the function that calls it. The text is made by running the rules on names.

    >>> print(formula("softmax"))
    out = softmax(x, axis=-1)
    dx = out * (g - sum(g * out, axis=-1))
    >>> print(formula("matmul", "math"))
    out = a @ b
    da = g @ bᵀ
    db = aᵀ @ g
    """
    op = find_primitive(op)
    error: Exception | None = None
    for shape in ((3, 3), (3,), (2, 3, 3), ()):
        try:
            return "\n".join(f"{name} = {s.text(style)}" for name, s in _on_placeholders(op, shape))
        except (TypeError, ValueError, IndexError, AttributeError) as e:
            error = error or e
    raise ValueError(f"the rule of {op.name!r} does not run on names alone: {error}") from error


def find_primitive(op: Any) -> Primitive:
    """The primitive behind a name, a function or a primitive itself."""
    import difflib

    from ..autograd import PRIMITIVES, Primitive

    if isinstance(op, Primitive):
        return op
    name = op if isinstance(op, str) else getattr(op, "__name__", repr(op))
    if name not in PRIMITIVES:
        near = difflib.get_close_matches(name, PRIMITIVES, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"no operation is called {name!r}{hint}")
    return PRIMITIVES[name]


def rule_formulas(op: Primitive, g: Symbol, out: Any, args: tuple[Any, ...]) -> dict[int, Symbol]:
    """The gradient formula for each argument position that has one, by running the rules on symbols."""
    raise NotImplementedError


def _on_placeholders(op: Primitive, shape: tuple[int, ...]) -> Iterable[tuple[str, Symbol]]:
    raise NotImplementedError


def _apply(name: str, function: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Remember one call; its shape and dtype come from making the call on zeros."""
    with np.errstate(all="ignore"):
        like = function(*_likes(args), **{k: _likes(v) for k, v in keywords.items()})
    if isinstance(like, (np.ndarray, np.generic)):
        return Symbol(name, tuple(args), keywords, like)
    if isinstance(like, (tuple, list)) and any(isinstance(x, np.ndarray) for x in like):
        whole = Symbol(name, tuple(args), keywords, like[0])
        return tuple(Symbol("getitem", (whole, i), {}, x) for i, x in enumerate(like))
    return like  # a question about shape or dtype, answered


def _likes(x: Any) -> Any:
    if isinstance(x, Symbol):
        return x.like
    if isinstance(x, (tuple, list)) and not isinstance(x, ShapeOf):
        return type(x)(_likes(item) for item in x)
    return x


# ------------------------------------------------------------------------------------------- printing

UFUNC_NAMES = {"subtract": "sub", "multiply": "mul", "divide": "div", "negative": "neg", "power": "pow", "absolute": "abs"}
REDUCTIONS = {"add": "sum", "mul": "prod", "maximum": "max", "minimum": "min"}

# How tightly an operator binds: looser parts are put in parentheses.
ATOM, POSTFIX, POWER, SIGN, MATMUL, TIMES, PLUS, COMPARE = 9, 8, 7, 6, 5, 4, 3, 1
INFIX = {
    "add": (PLUS, " + "), "sub": (PLUS, " - "), "mul": (TIMES, " * "), "div": (TIMES, " / "),
    "matmul": (TIMES, " @ "), "floor_divide": (TIMES, " // "), "remainder": (TIMES, " % "), "pow": (POWER, "**"),
    "less": (COMPARE, " < "), "less_equal": (COMPARE, " <= "), "greater": (COMPARE, " > "),
    "greater_equal": (COMPARE, " >= "), "equal": (COMPARE, " == "), "not_equal": (COMPARE, " != "),
    "bitwise_and": (COMPARE, " & "), "bitwise_or": (COMPARE, " | "),
}  # fmt: skip
INFIX_MATH = INFIX | {
    "sub": (PLUS, " − "), "mul": (TIMES, " ⊙ "), "matmul": (MATMUL, " @ "), "less_equal": (COMPARE, " ≤ "),
    "greater_equal": (COMPARE, " ≥ "), "equal": (COMPARE, " = "), "not_equal": (COMPARE, " ≠ "),
    "bitwise_and": (COMPARE, " ∧ "), "bitwise_or": (COMPARE, " ∨ "),
}  # fmt: skip
PREFIX = {"neg": (SIGN, "-"), "invert": (SIGN, "~"), "logical_not": (SIGN, "~")}
PREFIX_MATH = {"neg": (SIGN, "−"), "invert": (SIGN, "¬"), "logical_not": (SIGN, "¬"), "sqrt": (POSTFIX, "√")}
SUMS = {"sum": "Σ", "mean": "mean", "max": "max", "min": "min", "prod": "Π", "cumsum": "cumsum", "var": "var", "any": "any"}
SAME_VALUES = {"astype", "copy", "ascontiguousarray", "asarray"}  # not shown: the values are the operand's own
NOT_SHOWN_MATH = {"keepdims", "dtype", "shape", "out"}
LETTERS = "uvwzabcefhpq"


class _Printer:
    """Prints one tree; a long part that occurs twice is printed once, under a letter."""

    def __init__(self, style: Style) -> None:
        if style not in ("code", "math"):
            raise ValueError(f"style is 'code' or 'math', not {style!r}")
        self.math = style == "math"
        self.infix = INFIX_MATH if self.math else INFIX
        self.prefix = PREFIX_MATH if self.math else PREFIX
        self.letters: dict[int, str] = {}

    def sentence(self, root: Symbol) -> str:
        uses: dict[int, int] = {}
        order: list[Symbol] = []  # parts before wholes

        def count(x: Any) -> None:
            if isinstance(x, (tuple, list)):
                for item in x:
                    count(item)
            elif isinstance(x, Symbol):
                uses[id(x)] = uses.get(id(x), 0) + 1
                if uses[id(x)] == 1 and x.op:
                    count([*_shown(x), *x.keywords.values()])
                    order.append(x)

        count(root)
        taken = {leaf.args[0] for leaf in root.leaves()}
        free = iter(letter for letter in LETTERS if letter not in taken)
        lets = []
        for part in order:
            if uses[id(part)] > 1 and len(text := self.show(part)) > 12 and (letter := next(free, None)):
                lets.append(f"{letter} = {text}")
                self.letters[id(part)] = letter
        return self.show(root) + (", where " + ", ".join(lets) if lets else "")

    def show(self, x: Any, tightness: int = 0) -> str:
        """The text of `x`, in parentheses if it binds less tightly than its surroundings ask."""
        text, binding = self.term(x)
        return f"({text})" if binding < tightness else text

    def term(self, x: Any) -> tuple[str, int]:
        if not isinstance(x, Symbol):
            return self.value(x)
        if id(x) in self.letters:
            return self.letters[id(x)], ATOM
        if not x.op:
            return x.args[0], ATOM
        op, args = x.op, x.args
        if op in SAME_VALUES:
            return self.term(args[0])
        if op == "pow" and _number(args[1]) == 1:
            return self.term(args[0])
        if op == "square":
            op, args = "pow", (args[0], 2)
        if op == "reciprocal":
            op, args = "div", (1, args[0])
        if self.math:
            if op in ("expand_dims", "squeeze"):
                return self.term(args[0])
            if _is_transpose(x):
                return self.transposed(args[0])
            if op == "pow" and (n := _number(args[1])) is not None and n == int(n) and 0 <= n < 100:
                return self.show(args[0], POWER) + str(int(n)).translate(SUPERSCRIPT), POWER
            if op == "mul" and (factor := self.scaled(args)):
                return factor, TIMES
        elif op in ("mT", "T"):
            return f"{self.show(args[0], POSTFIX)}.{op}", POSTFIX
        if op in self.infix and len(args) == 2:
            binding, sign = self.infix[op]
            left, right = self.show(args[0], binding), self.show(args[1], binding + (op not in ("add", "mul") or not self.math))
            if op == "pow":
                left, right = self.show(args[0], POWER + 1), self.show(args[1], POWER)
            return f"{left}{sign}{right}", binding
        if op in self.prefix:
            binding, sign = self.prefix[op]
            return f"{sign}{self.show(args[0], binding)}", binding
        if op == "getitem":
            return f"{self.show(args[0], POSTFIX)}[{self.index(args[1])}]", POSTFIX
        return self.call(x), ATOM

    def transposed(self, x: Any) -> tuple[str, int]:
        """Aᵀ; the transpose of a transpose is A, and that of a product is the product of the transposes."""
        if isinstance(x, Symbol) and id(x) not in self.letters:
            if _is_transpose(x):
                return self.term(x.args[0])
            if x.op == "matmul" and all(isinstance(a, Symbol) and len(a.shape) > 1 for a in x.args):
                left, right = (self.transposed(a) for a in reversed(x.args))
                return f"{_enclose(left, MATMUL)} @ {_enclose(right, MATMUL + 1)}", MATMUL
        return f"{self.show(x, POSTFIX)}ᵀ", POSTFIX

    def scaled(self, args: tuple[Any, ...]) -> str | None:
        """A number times an array, number first."""
        for number, other in (args, args[::-1]):
            if np.ndim(_likes(number)) == 0 and not (isinstance(number, Symbol) and number.op):
                return f"{self.show(number, TIMES)}·{self.show(other, TIMES)}"
        return None

    def call(self, x: Symbol) -> str:
        op, args, keywords = x.op, list(x.args), dict(x.keywords)
        if op in SUMS:
            axis = keywords.pop("axis", args.pop(1) if len(args) > 1 else None)
            keywords.pop("keepdims", None)
            keywords.pop("dtype", None)
            inner = self.show(args[0])
            if not self.math:
                return f"{op}({inner})" if axis is None else f"{op}({inner}, axis={self.show(axis)})"
            return f"{SUMS[op]}{_subscript(axis)}({inner})"
        if self.math:
            args = [a for a in args if not isinstance(a, ShapeOf)]
            keywords = {k: v for k, v in keywords.items() if k not in NOT_SHOWN_MATH and not _trivial_axis(k, v)}
        op = CALL_NAMES.get(op, op) if self.math else op
        inner = [self.show(a) for a in args] + [f"{k}={self.show(v)}" for k, v in keywords.items()]
        return f"{op}({', '.join(inner)})"

    def value(self, v: Any) -> tuple[str, int]:
        if isinstance(v, ShapeOf):
            return f"{self.show(v.owner, POSTFIX)}.shape", POSTFIX
        if isinstance(v, (tuple, list)):
            inner = ", ".join(self.show(item) for item in v)
            return (f"[{inner}]" if isinstance(v, list) else f"({inner}{',' if len(v) == 1 else ''})"), ATOM
        if (n := _number(v)) is not None:
            return _number_text(n, self.math)
        if isinstance(v, np.ndarray):
            return f"{v.dtype.name}[{','.join(map(str, v.shape))}]", ATOM
        if isinstance(v, type) or isinstance(v, np.dtype):
            return np.dtype(v).name, ATOM
        return ("all" if isinstance(v, slice) and v == slice(None) else str(v)), ATOM

    def index(self, key: Any) -> str:
        keys = key if isinstance(key, tuple) else (key,)
        return ", ".join(_slice_text(k) if isinstance(k, slice) else "..." if k is ... else self.show(k) for k in keys)


CALL_NAMES = {"broadcast_to": "broadcast"}
SUPERSCRIPT = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")
SUBSCRIPT = str.maketrans("0123456789-,", "₀₁₂₃₄₅₆₇₈₉₋,")


def _enclose(part: tuple[str, int], tightness: int) -> str:
    text, binding = part
    return f"({text})" if binding < tightness else text


def _subscript(axis: Any) -> str:
    if axis is None:
        return ""
    if isinstance(axis, Symbol):
        return f"[{axis}]"
    axes = axis if isinstance(axis, (tuple, list)) else (axis,)
    return ",".join(str(a) for a in axes).translate(SUBSCRIPT)


def _trivial_axis(keyword: str, value: Any) -> bool:
    return keyword == "axis" and value == -1


def _shown(s: Symbol) -> tuple[Any, ...]:
    """The arguments that a print of `s` shows as values."""
    if s.op in ("zeros_like", "ones_like", "full_like", "empty_like"):
        return s.args[1:]
    return s.args


def _is_transpose(x: Symbol) -> bool:
    """Whether `x` is its operand with the last two axes swapped, by whichever function."""
    n = len(x.like.shape)
    if x.op in ("mT", "matrix_transpose"):
        return True
    if x.op == "swapaxes":
        return {a % n for a in x.args[1:3]} == {n - 1, n - 2}
    if x.op in ("transpose", "T"):
        axes = x.args[1] if len(x.args) == 2 else x.args[1:] or x.keywords.get("axes")
        axes = tuple(range(n))[::-1] if axes is None or axes == () else tuple(a % n for a in axes)
        return n >= 2 and axes == (*range(n - 2), n - 1, n - 2)
    return False


def _number(v: Any) -> float | int | None:
    if isinstance(v, (bool, np.bool_)) or not isinstance(v, (int, float, np.number)):
        if not (isinstance(v, np.ndarray) and v.shape == () and v.dtype.kind in "iuf"):
            return None
    return v.item() if isinstance(v, (np.generic, np.ndarray)) else v


def _number_text(n: float, math_style: bool) -> tuple[str, int]:
    """3, 0.5, √2 and 1/√2 rather than 1.4142135 and 0.70710678; infinity as ∞."""
    if n < 0:
        text, binding = _number_text(-n, math_style)
        return ("−" if math_style else "-") + text, min(SIGN, binding)
    root = "√{}" if math_style else "sqrt({})"
    if math.isnan(n) or math.isinf(n):
        return ("∞" if math_style and math.isinf(n) else str(n)), ATOM
    if n == int(n):
        return str(int(n)), ATOM
    for power, pattern, binding in ((n * n, root, ATOM), (1 / (n * n), "1/" + root, TIMES)):
        if 2 <= round(power) < 1e6 and math.isclose(power, round(power), rel_tol=1e-6) and not _is_short(n):
            return pattern.format(round(power)), binding
    return f"{n:.4g}", ATOM


def _is_short(n: float) -> bool:
    return n == float(f"{n:.3g}")


def _slice_text(s: slice) -> str:
    ends = ["" if e is None else str(e) for e in (s.start, s.stop, s.step)]
    return ":".join(ends if s.step is not None else ends[:2])
