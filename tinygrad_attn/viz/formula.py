"""A formula is the code itself, run on names instead of numbers.

Gradient rules are ordinary NumPy expressions. A `Symbol` answers every operator, NumPy function and ndarray
method by remembering it, so running a rule on symbols gives the rule as a tree, and printing the tree gives a
formula that cannot differ from what the engine computes. Two notations of one tree: `code` is Python (`out *
(g - sum(g * out, axis=-1))`), `math` is what stands on a blackboard (`out ⊙ (g − Σ₋₁(g ⊙ out))`):

    @   matrix product                 ⊙   product element by element         ·   product with a number
    ᵀ   the last two axes swapped      √   square root                        Σ   sum over all elements
    Σ₋₁ sum over the axis in the index, keeping it for broadcasting; likewise mean₀, max₋₁
    rows(X)  a stack of matrices as one tall matrix (all axes but the last flattened)
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Iterator
from inspect import Parameter
from itertools import zip_longest
from typing import Any, Literal

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from ..autograd import PRIMITIVES, Primitive

Style = Literal["code", "math"]


class Symbol(NDArrayOperatorsMixin):
    """A named array, or an operation on such: everything NumPy would compute on it, it remembers instead.

    `like` is an array of zeros of the right shape and dtype that takes no memory: results get their shapes
    from NumPy itself. `node` says which graph node a name stands for.

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
        name = ufunc.__name__ if method == "__call__" else REDUCTIONS.get(ufunc.__name__, ufunc.__name__)
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

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError(f"the rule asks for the numbers of {self}, and a name has none")

    __hash__ = object.__hash__

    # -- what a picture asks --------------------------------------------------------------------

    def text(self, style: Style = "code") -> str:
        """The formula in one line; what occurs twice and is long gets a letter, explained after `where`."""
        return _Printer(style).sentence(self)

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return f"Symbol({self.text()})"

    def leaves(self) -> Iterator[Symbol | NamedArray]:
        """The names that occur in the formula as values, each once, in order (`x.shape` reads no value)."""
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
            elif isinstance(s, NamedArray) and s.node is not None and id(s) not in seen:
                seen.add(id(s))
                yield s


class ShapeOf(tuple[int, ...]):
    """A shape that remembers whose it is, so that `broadcast_to(g, x.shape)` prints as written."""

    owner: Symbol

    def __new__(cls, owner: Symbol) -> ShapeOf:
        self = super().__new__(cls, map(SomeLength if isinstance(owner, Placeholder) else int, owner.like.shape))
        self.owner = owner
        return self


class Placeholder(Symbol):
    """A name that stands for arrays of any shape: its lengths print as n."""

    __slots__ = ()


class SomeLength(int):
    """A length of a placeholder's shape, or a product of such: it prints as n, since it could be any."""

    def __mul__(self, other: int) -> SomeLength:
        return SomeLength(int(self) * int(other))

    __rmul__ = __mul__

    def __sub__(self, other: int) -> SomeLength:
        return SomeLength(int(self) - int(other)) if other else self

    def __rtruediv__(self, other: Any) -> Symbol:  # type: ignore[override]
        return Symbol("divide", (other, self), {}, np.empty((), np.float64))


class NamedArray(np.ndarray):
    """Real numbers that print as a name: a mask, an index, targets, what an operation got beside operands."""

    name: str | None = None
    node: int | None = None

    @classmethod
    def of(cls, array: Any, name: str, node: int | None = None) -> NamedArray:
        self = np.asarray(array).view(cls)
        self.name, self.node = name, node
        return self


def formula(op: Any, style: Style = "code") -> str:
    """An operation's forward and its gradient rules as text: `g` comes in, `out` is the forward's result.

    `op` is a primitive, its name, or the function that calls it. The text is made by running the rules on
    names.

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
    if isinstance(op, Primitive):
        return op
    name = op if isinstance(op, str) else getattr(op, "__name__", repr(op))
    if name not in PRIMITIVES:
        near = difflib.get_close_matches(name, PRIMITIVES, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"no operation is called {name!r}{hint}")
    return PRIMITIVES[name]


def rule_formulas(op: Primitive, g: Any, out: Any, args: tuple[Any, ...]) -> dict[int, Any]:
    """The gradient of each differentiable argument, by position, as the rules themselves state it on symbols.

    For an operation on a sequence (concatenate) the positions are those in its first argument.
    """
    if op.saves is not None:
        args = (*args, op.saves(*args))
    if op.joint is not None:
        together = op.joint(g, out, *args)
        return dict(enumerate(together) if op.variadic else zip(op.operands, together))
    return {i: rule(g, out, *args) for i, rule in enumerate(op.by_position) if rule and args[i] is not None}


def _on_placeholders(op: Primitive, shape: tuple[int, ...]) -> Iterable[tuple[str, Any]]:
    """The lines of `formula`, from placeholders of one shape."""
    args: list[Any] = []
    for i, (name, default) in enumerate(zip(op.params, op.defaults)):
        if op.variadic and i == 0:
            args.append(tuple(Placeholder.named(n, np.empty(shape)) for n in "ab"))
        elif i in op.operands and default in (None, Parameter.empty):
            args.append(Placeholder.named(name, np.empty(shape)))
        elif default is Parameter.empty:
            args.append(_example(name, shape))
        else:
            args.append(default)
    result = _apply(op.name, op.of, tuple(args), {})
    yield "out", Symbol(op.name, tuple(args), {}, np.empty(shape))
    g: Any = [Placeholder.named(f"g[{i}]", part.like) for i, part in enumerate(result)] if op.many else None
    out = None if op.many else Placeholder.named("out", result.like)
    for i, gradient in rule_formulas(op, g or Placeholder.named("g", result.like), out, tuple(args)).items():
        yield "d" + (args[0][i].args[0] if op.variadic else op.params[i]), gradient


def _example(name: str, shape: tuple[int, ...]) -> Any:
    """What stands for an argument without gradient and default when an operation is printed for its own sake."""
    rows = shape[:-1]
    mask, ids, targets = np.zeros(shape, bool), np.zeros(rows, int), np.arange(math.prod(rows)).reshape(rows) % 3
    arrays = {"mask": mask, "condition": mask, "ids": ids, "index": ids, "targets": targets}
    if name in arrays or name == "indices":
        return NamedArray.of(arrays.get(name, np.zeros(shape, int)), name)
    y, bundle, scale = (
        Placeholder.named(n, np.empty(s)) for n, s in (("y", shape), ("bundle", (2, *shape)), ("scale", ()))
    )
    others = {"shape": y.shape, "bundle": bundle, "scale": scale, "n": SomeLength(3), "sections": 3}
    others |= {"dtype": np.float64, "subscripts": "ij,jk->ik"}
    return others.get(name, Placeholder.named(name, np.empty((), int)))


def _apply(name: str, function: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Remember one call; its shape and dtype come from making the call on zeros."""
    with np.errstate(all="ignore"):
        like = function(*_likes(args), **{k: _likes(v) for k, v in keywords.items()})
    if isinstance(like, (np.ndarray, np.generic)):
        return Symbol(name, tuple(args), keywords, like)
    if isinstance(like, (tuple, list)) and any(isinstance(x, np.ndarray) for x in like):
        whole = Symbol(name, tuple(args), keywords, like[0])
        return tuple(Symbol("getitem", (whole, i), {}, x) for i, x in enumerate(like))
    if isinstance(like, (float, bool, complex)) or name in ("item", "tolist"):
        raise TypeError(f"the rule asks for numbers ({name}), and a name has none")
    return like  # a question about shape or dtype, answered


def _likes(x: Any) -> Any:
    if isinstance(x, Symbol):
        return x.like
    if isinstance(x, (tuple, list)) and not isinstance(x, ShapeOf):
        return type(x)(_likes(item) for item in x)
    return x


# ------------------------------------------------------------------------------------------- printing

REDUCTIONS = {"add": "sum", "multiply": "prod", "maximum": "max", "minimum": "min"}

# How tightly an operator binds: looser parts are put in parentheses.
ATOM, POSTFIX, POWER, SIGN, MATMUL, TIMES, PLUS, COMPARE = 9, 8, 7, 6, 5, 4, 3, 1
# operation -> binding and sign in code, then in mathematics
INFIX = {
    "add": (PLUS, " + ", PLUS, " + "), "subtract": (PLUS, " - ", PLUS, " − "),
    "multiply": (TIMES, " * ", TIMES, " ⊙ "), "divide": (TIMES, " / ", TIMES, " / "),
    "matmul": (TIMES, " @ ", MATMUL, " @ "), "power": (POWER, "**", POWER, "^"),
    "less": (COMPARE, " < ", COMPARE, " < "), "less_equal": (COMPARE, " <= ", COMPARE, " ≤ "),
    "greater": (COMPARE, " > ", COMPARE, " > "), "greater_equal": (COMPARE, " >= ", COMPARE, " ≥ "),
    "equal": (COMPARE, " == ", COMPARE, " = "), "not_equal": (COMPARE, " != ", COMPARE, " ≠ "),
    "bitwise_and": (COMPARE, " & ", COMPARE, " ∧ "), "bitwise_or": (COMPARE, " | ", COMPARE, " ∨ "),
}  # fmt: skip
PREFIX = {"negative": "-−", "invert": "~¬", "logical_not": "~¬"}
SUMS = {"sum": "Σ", "prod": "Π"} | {name: name for name in ("mean", "var", "max", "min", "any", "cumsum")}
LONG = 12  # characters from which a repeated part of a formula gets a letter
HIDDEN_INSIDE = {"expand_dims", "squeeze"}  # inside a mathematical formula, broadcasting speaks for itself
SAME_VALUES = {"astype", "copy", "asarray"}  # not shown: the values are the operand's own
NOT_ALONE = HIDDEN_INSIDE | SAME_VALUES  # but shown where it is all there is
LETTERS = "uvwzabcefhpq"


class _Printer:
    """Prints one tree; a long part that occurs twice is printed once, under a letter."""

    def __init__(self, style: Style) -> None:
        if style not in ("code", "math"):
            raise ValueError(f"style is 'code' or 'math', not {style!r}")
        self.math = style == "math"
        self.plain: dict[int, str] = {}  # each long part -> its text in full: equal parts have equal texts
        self.letters: dict[str, str] = {}  # that text -> the letter that stands for it

    def sentence(self, root: Symbol) -> str:
        if not any(isinstance(part, (tuple, list)) or getattr(part, "op", "") for part in root.args):
            return self.call(root) if root.op in NOT_ALONE else self.show(root)
        uses: dict[str, int] = {}
        order: list[tuple[str, Symbol]] = []  # parts before wholes

        def count(x: Any) -> None:
            if isinstance(x, (tuple, list)) and not isinstance(x, ShapeOf):
                for item in x:
                    count(item)
            elif isinstance(x, Symbol) and x.op and len(text := self.show(x)) > LONG:
                self.plain[id(x)] = text
                uses[text] = uses.get(text, 0) + 1
                if uses[text] == 1:
                    count([*_shown(x), *x.keywords.values()])
                    order.append((text, x))

        count(root)
        taken = {leaf.args[0] for leaf in root.leaves() if isinstance(leaf, Symbol)}
        free = iter(letter for letter in LETTERS if letter not in taken)
        lets: list[tuple[str, str]] = []
        for plain, part in order:
            if uses[plain] > 1 and (letter := next(free, None)):
                lets.append((letter, self.show(part)))
                self.letters[plain] = letter
        text = self.call(root) if root.op in NOT_ALONE else self.show(root)
        where = ""
        for letter, part_text in reversed(lets):  # the notation may have made one superfluous
            if re.search(rf"\b{letter}\b", text + where):
                where = f", {letter} = {part_text}{where}"
        return text + (f", where {where[2:]}" if where else "")

    def show(self, x: Any, tightness: int = 0) -> str:
        """The text of `x`, in parentheses if it binds less tightly than its surroundings ask."""
        return _enclose(self.term(x), tightness)

    def term(self, x: Any) -> tuple[str, int]:
        if not isinstance(x, Symbol):
            return self.value(x)
        if letter := self.letters.get(self.plain.get(id(x), "")):
            return letter, ATOM
        if not x.op:
            return x.args[0], ATOM
        op, args = x.op, x.args
        if op in SAME_VALUES:
            return self.term(args[0])
        if op in ("square", "reciprocal"):
            op, args = ("power", (args[0], 2)) if op == "square" else ("divide", (1, args[0]))
        exponent = _number(args[1]) if op == "power" else None
        if exponent == 1:
            return self.term(args[0])
        if self.math:
            if op in HIDDEN_INSIDE:
                return self.term(args[0])
            if _is_transpose(x):
                return self.transposed(args[0])
            if op == "reshape" and x.like.ndim == 2 < args[0].like.ndim and x.shape[-1] == args[0].shape[-1]:
                return f"rows({self.show(args[0])})", ATOM
            if op == "sqrt":
                return f"√{self.show(args[0], POSTFIX)}", POSTFIX
            if exponent is not None and exponent in range(100):
                return self.show(args[0], POWER) + str(int(exponent)).translate(SUPERSCRIPT), POWER
            if op == "multiply" and (product := self.product(*args)):
                return product, TIMES
        elif op in ("mT", "T"):
            return f"{self.show(args[0], POSTFIX)}.{op}", POSTFIX
        if op in INFIX and len(args) == 2:
            binding, sign = INFIX[op][2:] if self.math else INFIX[op][:2]
            associative = self.math and op in ("add", "multiply")  # a + (b + c) needs no parentheses on paper
            left = self.show(args[0], binding + (op == "power"))
            return f"{left}{sign}{self.show(args[1], binding + (op != 'power' and not associative))}", binding
        if op in PREFIX:
            return f"{PREFIX[op][self.math]}{self.show(args[0], SIGN + 1)}", SIGN
        if op == "getitem":
            keys = args[1] if isinstance(args[1], tuple) else (args[1],)
            return f"{self.show(args[0], POSTFIX)}[{', '.join(map(self.show, keys))}]", POSTFIX
        return self.call(x), ATOM

    def transposed(self, x: Any) -> tuple[str, int]:
        """Aᵀ; the transpose of a transpose is A, and that of a product is the product of the transposes."""
        if isinstance(x, Symbol) and self.plain.get(id(x)) not in self.letters:
            if _is_transpose(x):
                return self.term(x.args[0])
            if not x.op and x.args[0].endswith("ᵀ"):  # an unnamed transpose goes by the name of its operand
                return (x.args[0][:-1] if x.node is not None else f"({x.args[0]})ᵀ"), POSTFIX
            if x.op == "matmul" and all(isinstance(a, Symbol) and len(a.shape) > 1 for a in x.args):
                left, right = (self.transposed(a) for a in reversed(x.args))
                return f"{_enclose(left, MATMUL)} @ {_enclose(right, MATMUL + 1)}", MATMUL
        return f"{self.show(x, POSTFIX)}ᵀ", POSTFIX

    def product(self, a: Any, b: Any) -> str | None:
        """A product with a number, number first; a product with 1/c as a quotient."""
        for factor, other in ((b, a), (a, b)):
            if isinstance(factor, Symbol) and factor.op == "divide" and _number(factor.args[0]) == 1:
                return f"{self.show(other, TIMES)} / {self.show(factor.args[1], TIMES + 1)}"
            if (text := self.show(factor)).startswith("1/"):
                return f"{self.show(other, TIMES)} / {text[2:]}"
            if not isinstance(factor, Symbol) and np.ndim(factor) == 0:
                return f"{text}·{self.show(other, TIMES)}"
        if () in (_likes(a).shape, _likes(b).shape):
            return f"{self.show(a, TIMES)}·{self.show(b, TIMES)}"
        return None

    def call(self, x: Symbol) -> str:
        inside: list[str] = []
        keywords = dict(x.keywords)
        for i, (argument, (name, default)) in enumerate(
            zip_longest(x.args, _parameters(x.op)[: len(x.args)], fillvalue=("", None))
        ):
            if name in ("axis", "keepdims"):
                keywords[name] = argument
            elif i == 0 or argument is not default or default == -np.inf:
                inside += [self.show(argument)] * (not self.math or not isinstance(argument, ShapeOf))
        axis = keywords.pop("axis", None)
        if self.math and x.op in SUMS:
            return f"{SUMS[x.op]}{_subscript(axis)}({inside[0]})"
        if axis is not None and not (self.math and _number(axis) == -1):
            inside.append(f"axis={self.show(axis)}")
        inside += [f"{k}={self.show(v)}" for k, v in keywords.items() if k not in ("keepdims", "dtype")]
        if self.math and x.op == "broadcast_to":
            return f"broadcast({inside[0]})"
        return f"{x.op}({', '.join(inside)})"

    def value(self, v: Any) -> tuple[str, int]:
        if isinstance(v, ShapeOf):
            return f"{self.show(v.owner, POSTFIX)}.shape", POSTFIX
        if isinstance(v, SomeLength):
            return "n", ATOM
        if isinstance(v, NamedArray) and v.name:
            return v.name, ATOM
        if isinstance(v, (tuple, list)):
            inner = ", ".join(self.show(item) for item in v)
            return (f"[{inner}]" if isinstance(v, list) else f"({inner}{',' if len(v) == 1 else ''})"), ATOM
        if (n := _number(v)) is not None:
            return _number_text(n, self.math)
        if isinstance(v, np.ndarray):
            return _array_text(v, self.math)
        if isinstance(v, (type, np.dtype)):
            return np.dtype(v).name, ATOM
        if isinstance(v, slice):
            ends = ["" if end is None else str(end) for end in (v.start, v.stop, v.step)]
            return ":".join(ends if ends[2] else ends[:2]), ATOM
        return "..." if v is ... else str(v), ATOM


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


def _parameters(op: str) -> list[tuple[str, Any]]:
    return list(zip(PRIMITIVES[op].params, PRIMITIVES[op].defaults)) if op in PRIMITIVES else []


def _shown(s: Symbol) -> tuple[Any, ...]:
    """The arguments that a print of `s` shows as values."""
    return s.args[s.op in ("zeros_like", "ones_like", "full_like") :]


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
    if isinstance(v, (np.ndarray, np.generic)) and v.shape == ():
        v = v.item()
    return v if isinstance(v, (int, float)) and not isinstance(v, bool) else None


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
    if n != float(f"{n:.3g}"):
        for whole, text in ((1 / n, "1/{}"), (n * n, root), (1 / (n * n), "1/" + root)):
            if 2 <= round(whole) < 1e6 and math.isclose(whole, round(whole), rel_tol=1e-6):
                return text.format(round(whole)), TIMES if text[0] == "1" else ATOM
    return f"{n:.4g}", ATOM


def _array_text(v: np.ndarray, math_style: bool) -> tuple[str, int]:
    """An array that a rule made from numbers: by its one value, as one_hot, or by its type."""
    if v.size and (v == v.flat[0]).all() and (n := _number(v.flat[0])) is not None:
        return _number_text(n, math_style)
    if v.ndim and v.size and ((v == 0) | (v == 1)).all() and (v.sum(-1) == 1).all():
        return "one_hot", ATOM
    return f"{v.dtype.name}[{','.join(map(str, v.shape))}]", ATOM
