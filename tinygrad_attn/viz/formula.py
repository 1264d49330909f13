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
from collections import Counter
from collections.abc import Callable, Iterable
from inspect import Parameter
from string import Formatter
from typing import Any, Literal

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from ..autograd import PRIMITIVES, Primitive
from .trace import swaps_last_axes

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

    def __init__(self, op: str, args: tuple[Any, ...], like: Any, node: int | None = None, **keywords: Any) -> None:
        self.op, self.args, self.keywords, self.node = op, args, keywords, node
        self.like = np.ndarray(like.shape, like.dtype, bytes(16), strides=(0,) * like.ndim)

    @classmethod
    def named(cls, name: str, like: Any, node: int | None = None) -> Symbol:
        """The leaf of a formula: a name with the shape and dtype of `like`."""
        return cls("", (name,), like, node)

    # -- what NumPy asks ------------------------------------------------------------------------

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **keywords: Any) -> Any:
        name = ufunc.__name__ if method == "__call__" else REDUCTIONS.get(ufunc.__name__, ufunc.__name__)
        return _apply(name, getattr(ufunc, method), inputs, keywords)

    def __array_function__(self, function: Any, types: Any, args: Any, keywords: Any) -> Any:
        return _apply(function.__name__, function, args, keywords)

    def __apply_primitive__(self, op: Primitive, args: tuple[Any, ...]) -> Any:
        return _apply(op.name, op.of, args, {})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        attribute = getattr(np.ndarray, name)
        if callable(attribute):
            return lambda *args, **keywords: _apply(name, attribute, (self, *args), keywords)
        value = getattr(self.like, name)
        return Symbol(name, (self,), value) if isinstance(value, np.ndarray) else value

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

    __str__ = __repr__ = text

    def parts(self) -> list[Any]:
        """What it is directly made of, and shows as values: `x.shape` and `zeros_like(x)` read no value of x."""
        found: list[Any] = []
        _map(found.append, [self.args[self.op in ("zeros_like", "ones_like", "full_like") :], self.keywords])
        return found

    def leaves(self) -> list[Symbol | NamedArray]:
        """The names that occur in the formula as values, each once, in order."""
        found: dict[int, Symbol | NamedArray] = {} if self.op else {id(self): self}
        for part in self.parts():
            if isinstance(part, Symbol):
                found |= {id(leaf): leaf for leaf in part.leaves()}
            elif isinstance(part, NamedArray) and part.node is not None:
                found[id(part)] = part
        return list(found.values())

    def substitute(self, replacement: Callable[[Symbol], Symbol | None]) -> Symbol:
        """The formula with some of its names replaced by formulas."""
        if not self.op:
            return self if (new := replacement(self)) is None else new
        args, keywords = _map(
            lambda part: part.substitute(replacement) if isinstance(part, Symbol) else part, (self.args, self.keywords)
        )
        return Symbol(self.op, args, self.like, self.node, **keywords)


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
        return Symbol("divide", (other, self), np.empty(()))


class NamedArray(np.ndarray):
    """Real numbers that print as a name: a mask, an index, targets, what an operation got beside operands."""

    name: str | None = None
    node: int | None = None

    @classmethod
    def of(cls, name: str, array: Any, node: int | None = None) -> NamedArray:
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
    name = op if isinstance(op, str) else getattr(op, "__name__", repr(op))
    primitive = op if isinstance(op, Primitive) else PRIMITIVES.get(name)
    if primitive is None:
        near = difflib.get_close_matches(name, PRIMITIVES, 1)
        raise ValueError(f"no operation is called {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    error: Exception | None = None
    for shape in ((3, 3), (3,), (2, 3, 3), ()):
        try:
            return "\n".join(f"{name} = {s.text(style)}" for name, s in _on_placeholders(primitive, shape))
        except NO_FORMULA as e:
            error = error or e
    raise ValueError(f"the rule of {name!r} does not run on names alone: {error}") from error


NO_FORMULA = (TypeError, ValueError, IndexError, AttributeError)  # what a rule raises that asks for numbers


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
        else:
            args.append(_example(name, shape) if default is Parameter.empty else default)
    result = _apply(op.name, op.of, tuple(args), {})
    yield "out", Symbol(op.name, tuple(args), np.empty(shape))
    g: Any = [Placeholder.named(f"g[{i}]", part.like) for i, part in enumerate(result)] if op.many else None
    out = None if op.many else Placeholder.named("out", result.like)
    g = g or Placeholder.named("g", result.like)
    for i, gradient in rule_formulas(op, g, out, tuple(args)).items():
        yield "d" + (args[0][i].args[0] if op.variadic else op.params[i]), gradient


def _example(name: str, shape: tuple[int, ...]) -> Any:
    """What stands for an argument without gradient and default when an operation is printed for its own sake."""
    arrays = {"mask": (shape, bool), "condition": (shape, bool), "indices": (shape, int)}
    arrays |= dict.fromkeys(("ids", "index", "targets"), (shape[:-1], int))
    if name in arrays:
        return NamedArray.of(name, np.zeros(*arrays[name]))
    y, bundle = (Placeholder.named(n, np.empty(s)) for n, s in (("y", shape), ("bundle", (2, *shape))))
    others: dict[str, Any] = {"shape": y.shape, "bundle": bundle, "scale": Placeholder.named("scale", np.empty(()))}
    others |= {"n": SomeLength(3), "sections": 3, "dtype": np.float64, "subscripts": "ij,jk->ik"}
    return others.get(name, Placeholder.named(name, np.empty((), int)))


def _apply(name: str, function: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Remember one call; its shape and dtype come from making the call on zeros."""
    zeros, more = _map(lambda x: x.like if isinstance(x, Symbol) else x, (tuple(args), keywords))
    with np.errstate(all="ignore"):
        like = function(*zeros, **more)
    if isinstance(like, (np.ndarray, np.generic)):
        return Symbol(name, tuple(args), like, **keywords)
    if isinstance(like, (tuple, list)) and any(isinstance(x, np.ndarray) for x in like):
        whole = Symbol(name, tuple(args), like[0], **keywords)
        return tuple(Symbol("getitem", (whole, i), x) for i, x in enumerate(like))
    if isinstance(like, (float, bool, complex)) or name in ("item", "tolist"):
        raise TypeError(f"the rule asks for numbers ({name}), and a name has none")
    return like  # a question about shape or dtype, answered


def _map(function: Callable[[Any], Any], x: Any) -> Any:
    """The function of `x`, or of all that tuples, lists and dicts hold; a shape is one thing."""
    if isinstance(x, dict):
        return {key: _map(function, value) for key, value in x.items()}
    if isinstance(x, (tuple, list)) and not isinstance(x, ShapeOf):
        return type(x)(_map(function, item) for item in x)
    return function(x)


# ------------------------------------------------------------------------------------------- printing

REDUCTIONS = {"add": "sum", "multiply": "prod", "maximum": "max", "minimum": "min"}

# How tightly a notation binds: a looser part is put in parentheses.
ATOM, POSTFIX, POWER, SIGN, MATMUL, TIMES, PLUS, COMPARE = 9, 8, 7, 6, 5, 4, 3, 1
# operation -> how tightly its notation binds, and the notation: {:5} is a part that must bind at least so tightly
CODE = {
    "add": (PLUS, "{:3} + {:4}"), "subtract": (PLUS, "{:3} - {:4}"), "matmul": (TIMES, "{:4} @ {:5}"),
    "multiply": (TIMES, "{:4} * {:5}"), "divide": (TIMES, "{:4} / {:5}"), "power": (POWER, "{:8}**{:7}"),
    "negative": (SIGN, "-{:7}"), "invert": (SIGN, "~{:7}"), "logical_not": (SIGN, "~{:7}"),
    "mT": (POSTFIX, "{:8}.mT"), "T": (POSTFIX, "{:8}.T"), "getitem": (POSTFIX, "{:8}[{:items}]"),
    "less": (COMPARE, "{:1} < {:2}"), "less_equal": (COMPARE, "{:1} <= {:2}"),
    "greater": (COMPARE, "{:1} > {:2}"), "greater_equal": (COMPARE, "{:1} >= {:2}"),
    "equal": (COMPARE, "{:1} == {:2}"), "not_equal": (COMPARE, "{:1} != {:2}"),
    "bitwise_and": (COMPARE, "{:1} & {:2}"), "bitwise_or": (COMPARE, "{:1} | {:2}"),
}  # fmt: skip
MATH = CODE | {
    "add": (PLUS, "{:3} + {:3}"), "subtract": (PLUS, "{:3} − {:4}"), "matmul": (MATMUL, "{:5} @ {:6}"),
    "multiply": (TIMES, "{:4} ⊙ {:4}"), "scale": (TIMES, "{:4}·{:4}"), "power": (POWER, "{:8}^{:7}"),
    "negative": (SIGN, "−{:7}"), "invert": (SIGN, "¬{:7}"), "logical_not": (SIGN, "¬{:7}"),
    "ᵀ": (POSTFIX, "{:8}ᵀ"), "sqrt": (POSTFIX, "√{:8}"), "broadcast_to": (ATOM, "broadcast({:0})"),
    "rows": (ATOM, "rows({:0})"),
    "less_equal": (COMPARE, "{:1} ≤ {:2}"), "greater_equal": (COMPARE, "{:1} ≥ {:2}"),
    "equal": (COMPARE, "{:1} = {:2}"), "not_equal": (COMPARE, "{:1} ≠ {:2}"),
    "bitwise_and": (COMPARE, "{:1} ∧ {:2}"), "bitwise_or": (COMPARE, "{:1} ∨ {:2}"),
}  # fmt: skip
SUMS = {"sum": "Σ", "prod": "Π"} | {name: name for name in ("mean", "var", "max", "min", "any", "cumsum")}
SUPERSCRIPT = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
SUBSCRIPT = str.maketrans("0123456789-,", "₀₁₂₃₄₅₆₇₈₉₋,")
LONG = 12  # characters from which a repeated part of a formula gets a letter
HIDDEN_INSIDE = {"expand_dims", "squeeze"}  # inside a mathematical formula, broadcasting speaks for itself
SAME_VALUES = {"astype", "copy", "asarray"}  # not shown: the values are the operand's own
LETTERS = "uvwzabcefhpq"


class _Printer(Formatter):
    """Prints one tree; a long part that occurs twice is printed once, under a letter."""

    def __init__(self, style: Style) -> None:
        if style not in ("code", "math"):
            raise ValueError(f"style is 'code' or 'math', not {style!r}")
        self.math = style == "math"
        self.notation = MATH if self.math else CODE
        self.plain: dict[int, str] = {}  # each long part -> its text in full: equal parts have equal texts
        self.letters: dict[str, str] = {}  # that text -> the letter that stands for it

    def sentence(self, root: Symbol) -> str:
        uses: Counter[str] = Counter()
        parts: dict[str, Symbol] = {}  # inner ones first

        def count(whole: Symbol) -> None:
            for part in whole.parts():
                if isinstance(part, Symbol) and part.op and len(text := self.show(part)) > LONG:
                    self.plain[id(part)] = text
                    uses[text] += 1
                    if uses[text] == 1:
                        count(part)
                        parts[text] = part

        count(root)
        repeated = [text for text in parts if uses[text] > 1]
        names = {leaf.args[0] for leaf in root.leaves() if isinstance(leaf, Symbol)} if repeated else set()
        where = []
        for text, letter in zip(repeated, (letter for letter in LETTERS if letter not in names)):
            where.append(f"{letter} = {self.show(parts[text])}")
            self.letters[text] = letter
        alone = root.op in HIDDEN_INSIDE | SAME_VALUES  # shown where it is all there is
        return (self.call(root) if alone else self.show(root)) + (f", where {', '.join(where)}" if where else "")

    def letter(self, x: Symbol) -> str | None:
        return self.letters.get(self.plain.get(id(x), ""))

    def show(self, x: Any, tightness: int = 0) -> str:
        """The text of `x`, in parentheses if it binds less tightly than its surroundings ask."""
        text, binding = self.term(x)
        return f"({text})" if binding < tightness else text

    def format_field(self, part: Any, tightness: str) -> str:
        """What a part of a notation becomes: `str.format` with a tightness in the place of a format."""
        if tightness == "items":
            return ", ".join(map(self.show, part if isinstance(part, tuple) else (part,)))
        return self.show(part, int(tightness))

    def term(self, x: Any) -> tuple[str, int]:
        if not isinstance(x, Symbol):
            return self.value(x)
        if letter := self.letter(x):
            return letter, ATOM
        if not x.op:
            return x.args[0], ATOM
        op, args = x.op, x.args
        exponent = _number(args[1]) if op == "power" else None
        if op in SAME_VALUES or exponent == 1 or (self.math and op in HIDDEN_INSIDE):
            return self.term(args[0])
        if self.math:
            if _is_transpose(x):
                return self.term(self.transposed(args[0]))
            if exponent in range(100):
                return self.show(args[0], POWER) + str(int(exponent or 0)).translate(SUPERSCRIPT), POWER
            if op == "multiply":
                op, args = self.product(*args)
            if op == "reshape" and x.like.ndim == 2 < args[0].like.ndim and x.shape[-1] == args[0].shape[-1]:
                op = "rows"
        if op not in self.notation:
            return self.call(x), ATOM
        binding, notation = self.notation[op]
        return self.format(notation, *args), binding

    def transposed(self, x: Symbol) -> Symbol:
        """Aᵀ; the transpose of a transpose is A, and that of a product is the product of the transposes."""
        if not self.letter(x):
            if _is_transpose(x):
                return x.args[0]  # type: ignore[no-any-return]
            if not x.op and x.args[0].endswith("ᵀ"):  # an unnamed transpose goes by the name of its operand
                name = x.args[0]
                return Symbol.named(name[:-1] if x.node is not None else f"({name})ᵀ", x.like)
            if x.op == "matmul" and all(isinstance(a, Symbol) and len(a.shape) > 1 for a in x.args):
                return Symbol("matmul", tuple(self.transposed(a) for a in reversed(x.args)), x.like)
        return Symbol("ᵀ", (x,), x.like)

    def product(self, a: Any, b: Any) -> tuple[str, tuple[Any, Any]]:
        """A product with a number, number first; a product with 1/c as a quotient."""
        for factor, other in ((b, a), (a, b)):
            if isinstance(factor, Symbol):
                if factor.op == "divide" and _number(factor.args[0]) == 1 and not self.letter(factor):
                    return "divide", (other, factor.args[1])
            elif (text := self.show(factor)).startswith("1/"):
                return "divide", (other, Symbol.named(text[2:], np.empty(())))
            elif np.ndim(factor) == 0:
                return "scale", (factor, other)
        shapes = [np.shape(getattr(x, "like", x)) for x in (a, b)]
        return "scale" if () in shapes else "multiply", (a, b)

    def call(self, x: Symbol) -> str:
        op = PRIMITIVES.get(x.op)
        known = list(zip(op.params, op.defaults)) if op is not None else []
        inside, keywords = [], dict(x.keywords)
        for i, argument in enumerate(x.args):
            name, default = known[i] if i < len(known) else ("", None)
            as_usual = argument is default and default != -np.inf  # what masked_fill fills in is always said
            if name in ("axis", "keepdims"):
                keywords[name] = argument
            elif i == 0 or not (as_usual or (self.math and isinstance(argument, ShapeOf))):
                inside.append(self.show(argument))
        axis = keywords.pop("axis", None)
        if self.math and x.op in SUMS:
            return f"{SUMS[x.op]}{_subscript(axis)}({inside[0]})"
        if axis is not None and not (self.math and _number(axis) == -1):
            inside.append(f"axis={self.show(axis)}")
        inside += [f"{k}={self.show(v)}" for k, v in keywords.items() if k not in ("keepdims", "dtype")]
        return f"{x.op}({', '.join(inside)})"

    def value(self, v: Any) -> tuple[str, int]:
        if isinstance(v, ShapeOf):
            return f"{self.show(v.owner, POSTFIX)}.shape", POSTFIX
        if isinstance(v, NamedArray) and v.name:
            return v.name, ATOM
        if isinstance(v, (tuple, list)):
            inner = ", ".join(map(self.show, v))
            return (f"[{inner}]" if isinstance(v, list) else f"({inner}{',' * (len(v) == 1)})"), ATOM
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


def _subscript(axis: Any) -> str:
    if isinstance(axis, Symbol):
        return f"[{axis}]"
    return "" if axis is None else str(axis).strip("([,])").replace(" ", "").translate(SUBSCRIPT)


def _is_transpose(x: Symbol) -> bool:
    axes = (*x.args[1:], *x.keywords.values())
    return not any(isinstance(a, Symbol) for a in axes) and swaps_last_axes(x.op, x.like.ndim, axes)


def _number(v: Any) -> float | int | None:
    if isinstance(v, (np.ndarray, np.generic)) and v.shape == ():
        v = v.item()
    return v if isinstance(v, (int, float)) and not isinstance(v, bool) else None


def _number_text(n: float, math_style: bool) -> tuple[str, int]:
    """3, 0.5, √2 and 1/√2 rather than 1.4142135 and 0.70710678; infinity as ∞."""
    minus, root, infinity = ("−", "√{}", "∞") if math_style else ("-", "sqrt({})", "inf")
    if n < 0:
        return minus + _number_text(-n, math_style)[0], SIGN
    if math.isinf(n) or isinstance(n, SomeLength):
        return (infinity if math.isinf(n) else "n"), ATOM
    if n != float(f"{n:.3g}"):
        for whole, text in ((1 / n, "1/{}"), (n * n, root), (1 / (n * n), "1/" + root)):
            if 2 <= round(whole) < 1e6 and math.isclose(whole, round(whole), rel_tol=1e-6):
                return text.format(round(whole)), TIMES if text[0] == "1" else ATOM
    return str(n) if isinstance(n, int) else f"{n:.4g}", ATOM


def _array_text(v: np.ndarray, math_style: bool) -> tuple[str, int]:
    """An array that a rule made from numbers: by its one value, as one_hot, or by its type."""
    if v.size and (v == v.flat[0]).all() and (n := _number(v.flat[0])) is not None:
        return _number_text(n, math_style)
    if v.ndim and v.size and ((v == 0) | (v == 1)).all() and (v.sum(-1) == 1).all():
        return "one_hot", ATOM
    return f"{v.dtype.name}[{','.join(map(str, v.shape))}]", ATOM
