"""Check a gradient against finite differences.

The one idea: move an input a little along a direction d, see how much the result moves, and compare with what
the backward pass promised, <gradient, d>. Small inputs are moved one element at a time, so every element is
checked; large ones along a few random directions, which any wrong element spoils. A gradient is a function
like any other, so checking it the same way (order 2) checks that the rule itself can be differentiated.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn

import numpy as np

from .autograd import grad
from .modes import enable_grad
from .tensor import Tensor

EXHAUSTIVE = 1000  # inputs with more elements than this are checked along random directions,
PROJECTIONS = 10  # so many of them
KINK = 100  # slopes on both sides that are this many tolerances apart are no rounding

Function = Callable[..., Any]
Array = np.ndarray[Any, np.dtype[Any]]


class GradcheckError(AssertionError):
    """A gradient and the finite differences disagree, or their agreement would prove nothing."""


class Check(NamedTuple):
    """One line of the report: one input at one order."""

    order: int
    input: str
    shape: tuple[int, ...]
    method: str
    largest_error: float
    note: str


@dataclass(frozen=True, repr=False)
class GradcheckReport:
    """What was checked, how, and how far gradient and difference were apart at most. Prints as a table."""

    eps: float
    atol: float
    rtol: float
    checks: list[Check] = field(default_factory=list)

    def __repr__(self) -> str:
        rows: list[tuple[str, ...]] = [("order", "input", "shape", "checked", "largest error", "note")]
        rows += [(*map(str, c[:4]), f"{c.largest_error:.1e}", c.note) for c in self.checks]
        widths = [max(map(len, column)) for column in zip(*rows)]
        table = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        return "\n".join([f"gradcheck passed: eps {self.eps}, atol {self.atol}, rtol {self.rtol}", *table])


def gradcheck(
    f: Function, inputs: Any, *, eps: float = 1e-6, atol: float = 1e-6, rtol: float = 1e-4, order: int = 1
) -> GradcheckReport:
    """Compare the gradients of `f` with central differences, and raise where they disagree.

    `inputs` is a Tensor or an array, or a sequence of them; `f(*inputs)` returns a Tensor of any shape or
    several, which are projected on fixed random numbers. Inputs that require gradients are checked; if none
    does, as with arrays, all floating-point inputs are. They are copied and taken as float64, since the
    difference of neighbouring values in float32 is mostly rounding. The others stay constant.

    An element passes if |gradient - difference| <= atol + rtol * |difference|, with a step of `eps`. Inputs
    of up to 1,000 elements are checked element by element, larger ones along 10 random directions; the report
    says which. `order=2` also checks the gradient of the gradient, by the inputs and by the seed.

    Raises `GradcheckError`, naming input, index, both numbers and the tolerance, where they disagree or one
    is not finite; where `f` has a kink within `eps`, so that there is no one slope to compare with; where
    everything is zero, so that nothing would be proven; and where `f` is not deterministic.

    >>> ta.gradcheck(lambda x: x.exp(), np.array([0.5, 2.0])).checks[0].method
    'all 2 elements'
    >>> ta.gradcheck(lambda x: x.abs(), np.array([0.0, 2.0]))
    Traceback (most recent call last):
    tinygrad_attn.gradcheck.GradcheckError: gradcheck (order 1): f has a kink within 1e-06 of input 0 ...
    """
    if order < 1:
        raise ValueError(f"gradcheck: order is 1 or more, got {order}")
    if isinstance(inputs, (Tensor, np.ndarray)) or not isinstance(inputs, Iterable):
        inputs = [inputs]
    prepared, report = list(_prepare(list(inputs))), GradcheckReport(eps, atol, rtol)
    if not any(x.checked for x in prepared):
        raise GradcheckError("gradcheck proves nothing: no input is a floating-point Tensor or array")
    with enable_grad():
        _Slopes(f, prepared, report, 1).check(order)
    return report


class _Input(NamedTuple):
    """An argument of the function: a float64 Tensor, whose gradient is checked if it wants one, or anything."""

    label: str
    value: Any
    note: str = ""

    @property
    def checked(self) -> bool:
        return isinstance(self.value, Tensor) and self.value.requires_grad

    def fresh(self, value: Any = None) -> Any:
        """The argument, made anew for every call, so that nothing `f` does to it lasts."""
        value = self.value if value is None else value
        if isinstance(self.value, Tensor):
            return Tensor(value, requires_grad=self.checked, name=self.value.name)
        return value.copy() if isinstance(value, np.ndarray) else value


def _prepare(inputs: Sequence[Any]) -> Iterator[_Input]:
    asked = any(isinstance(x, Tensor) and x.requires_grad for x in inputs)
    for position, x in enumerate(inputs):
        array, name = np.array(x), x.name if isinstance(x, Tensor) else None
        note = ""
        if array.dtype.kind == "f":
            note = "" if array.dtype == np.float64 else f"{array.dtype} taken as float64"
            wanted = not asked or (isinstance(x, Tensor) and x.requires_grad)
            x = Tensor(array, dtype=np.float64, requires_grad=wanted, name=name)
        yield _Input(f"{position} ({name})" if name else str(position), x, note)


class _Slopes:
    """How much <seeds, f> rises when one input moves, beside what its gradient promises."""

    def __init__(self, f: Function, inputs: Sequence[_Input], report: GradcheckReport, order: int) -> None:
        self.f, self.inputs, self.report, self.order = f, inputs, report, order
        self.rng = np.random.default_rng(0)
        self.outputs = self.call(x.fresh() for x in inputs)
        shapes = [y.shape for y in self.outputs]
        self.seeds = [self.rng.choice([-1.0, 1.0], shape) * self.rng.uniform(0.5, 1.5, shape) for shape in shapes]
        # A result of one number is shown as it is, not as its projection.
        self.unit = self.seeds[0].item() if [y.size for y in self.outputs] == [1] else 1.0

    def check(self, last: int) -> None:
        """Check every input of `f`, a line of the report each; then do the same with the gradient of `f`."""
        if not all(np.isfinite(y.data).all() for y in self.outputs):
            self.fail("f is not finite at the given inputs")
        if self.rise() != 0:
            self.fail("f gives different values for the same inputs; let it seed its own random numbers")
        checked = [x for x in self.inputs if x.checked]
        found = self.gradients([x.fresh() for x in self.inputs], self.seeds)
        checks = [self.compare(x, gradient) for x, gradient in zip(checked, found)]
        if all(check.note.startswith("zero") for check in checks):
            self.fail("proves nothing: every gradient and every difference is zero. Does f use its arguments?")
        self.report.checks.extend(checks)

        def slope(*arguments: Any) -> list[Tensor]:
            n = len(self.inputs)
            return [g for g in self.gradients(arguments[:n], arguments[n:], create_graph=True) if g is not None]

        if self.order < last:
            seeds = [_Input(f"seed {i}", Tensor(seed, requires_grad=True)) for i, seed in enumerate(self.seeds)]
            _Slopes(slope, [*self.inputs, *seeds], self.report, self.order + 1).check(last)

    def call(self, arguments: Iterable[Any]) -> list[Tensor]:
        result = self.f(*arguments)
        outputs = list(result) if isinstance(result, (tuple, list)) else [result]
        for y in outputs:
            if not isinstance(y, Tensor):
                raise TypeError(f"gradcheck: f must return a Tensor or several, got {type(y).__name__}")
            if y.dtype != np.float64:
                self.fail(
                    f"proves nothing: f returns {y.dtype} for float64 inputs, and differences in "
                    f"{y.dtype} are mostly rounding; keep the whole computation in float64"
                )
        return outputs

    def gradients(self, arguments: Sequence[Any], seeds: Sequence[Any], **how: Any) -> Sequence[Tensor | None]:
        """Of <seeds, f(arguments)>, by every checked input; None where no path leads there."""
        wanted = [x for x, given in zip(arguments, self.inputs) if given.checked]
        total: Any = sum((y * seed).sum() for y, seed in zip(self.call(arguments), seeds))
        return grad(total, wanted, allow_unused=True, **how) if total.requires_grad else [None] * len(wanted)

    def rise(self, mover: _Input | None = None, moved: Array | None = None) -> float:
        with np.errstate(all="ignore"):  # what is not finite is reported by name
            after = self.call(x.fresh(moved if x is mover else None) for x in self.inputs)
            rises = [np.sum((a.data - y.data) * s) for a, y, s in zip(after, self.outputs, self.seeds)]
        return float(sum(rises)) / self.unit

    def slopes(self, x: _Input, gradient: Array, directions: Iterable[Array], eps: float) -> Array:
        """For each direction: the slope behind the input, the slope ahead, and what the gradient promises."""
        here, slopes = x.value.data, []
        for d in directions:
            behind, ahead = here - eps * d, here + eps * d
            back, forth = (float(np.sum((to - here) * d) / np.sum(d**2)) for to in (behind, ahead))
            if not back < 0 < forth:
                self.fail(f"a step of {eps} is lost beside the size of {_place(x, d)}; raise eps")
            moved = behind != ahead  # a gradient of nan elsewhere is none of this direction's business
            promise = gradient[moved] @ (ahead - behind)[moved] / (forth - back)
            slopes.append([self.rise(x, behind) / back, self.rise(x, ahead) / forth, promise])
            if not np.isfinite(slopes[-1][:2]).all():
                self.fail(f"f is not finite within {eps} of {_place(x, d)}")
        table: Array = np.array(slopes).reshape(-1, 3).T + 0.0  # + 0.0 makes 0 of -0
        return table

    def compare(self, x: _Input, found: Tensor | None) -> Check:
        """Check one input, along each of its elements or along random directions."""
        eps, atol, rtol = self.report.eps, self.report.atol, self.report.rtol
        gradient = np.zeros(x.value.shape) if found is None else found.data / self.unit
        size = x.value.size
        exhaustive = size <= EXHAUSTIVE
        directions = np.eye(size) if exhaustive else self.rng.standard_normal((PROJECTIONS, size))
        directions = directions.reshape(len(directions), *x.value.shape)
        behind, ahead, promise = self.slopes(x, gradient, directions, eps)
        difference, gap = (behind + ahead) / 2, abs(ahead - behind)
        error, tolerance = abs(promise - difference), atol + rtol * abs(difference)
        wrong = ~(error <= tolerance)  # so that nan is wrong

        # At a kink any number between the slopes may be right. Where the promise happens to be their mean, a
        # mere bend looks the same, but there a smaller step brings the slopes together.
        kink = (gap > KINK * tolerance) & (error <= gap / 2 + tolerance)
        mean = np.flatnonzero(kink & ~wrong)
        behind_half, ahead_half, _ = self.slopes(x, gradient, directions[mean], eps / 2)
        kink[mean] = abs(ahead_half - behind_half) > 0.75 * gap[mean]

        if (wrong & ~kink).any():
            worst = directions[np.argmax(np.where(wrong & ~kink, error / tolerance, -1))]
            worst = worst if exhaustive else self.worst_element(x, gradient, worst)
            back, forth, says = self.slopes(x, gradient, [worst], eps)[:, 0]
            allowed = atol + rtol * abs(back + forth) / 2
            sides = f" ({back:.9g} behind, {forth:.9g} ahead)" if abs(forth - back) > allowed else ""
            self.fail(
                f"the gradient of {_place(x, worst)} is wrong: backward says {says:.9g}, finite differences say "
                f"{(back + forth) / 2:.9g}{sides}, and the tolerance is {allowed:.3g} (atol {atol} + rtol {rtol} * "
                f"|difference|); {wrong.sum()} of {wrong.size} checks of it fail"
                + ("; no path leads from the result to this input" if found is None else "")
            )
        if kink.any():
            k = np.argmax(kink)
            self.fail(
                f"f has a kink within {eps} of {_place(x, directions[k])}: the slope is {behind[k]:.6g} on one "
                f"side and {ahead[k]:.6g} on the other (the gradient says {promise[k]:.6g}); move the input away"
            )
        zero = "zero everywhere" if np.all(np.maximum(abs(promise), abs(difference)) <= atol) else ""
        method = f"all {size} elements" if exhaustive else f"{PROJECTIONS} random directions of {size:,}"
        note = ", ".join(filter(None, [zero, x.note]))
        return Check(self.order, x.label, x.value.shape, method, float(error.max(initial=0)), note)

    def worst_element(self, x: _Input, gradient: Array, direction: Array) -> Array:
        """The one element that spoils a random direction most, found by halving the direction repeatedly."""
        while np.count_nonzero(direction) > 1:
            halves = np.stack([direction, direction])
            for half, dropped in zip(halves, np.array_split(np.flatnonzero(direction), 2)):
                half.flat[dropped] = 0
            behind, ahead, promise = self.slopes(x, gradient, halves, self.report.eps)
            direction = halves[np.argmax(abs(promise - (behind + ahead) / 2))]
        return np.where(direction, 1.0, 0.0)

    def fail(self, what: str) -> NoReturn:
        raise GradcheckError(f"gradcheck (order {self.order}): {what}")


def _place(x: _Input, direction: Array) -> str:
    index, *more = np.argwhere(direction).tolist()
    return f"input {x.label}" + (" along a random direction" if more else f" at {index}" if index else "")
