"""A module is an object that owns parameters; everything else here is a walk over its attributes.

Nothing is registered: what a module owns is what its attributes hold, directly or inside lists, tuples and
dicts. So the path of a parameter is the Python expression for it, with dots: `model.h[0].ln_1.weight` is
`"h.0.ln_1.weight"`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from ..modes import Scope, state
from ..tensor import Tensor

Kind = TypeVar("Kind")
Rng = np.random.Generator | None


class Parameter(Tensor):
    """A tensor that is trained: a leaf that wants gradients, found by the module that holds it.

    >>> ta.nn.Parameter([[1.0, 2.0]], name="W_Q").requires_grad
    True
    """

    __slots__ = ()

    def __init__(self, data: ArrayLike | Tensor, *, dtype: DTypeLike | None = None, name: str | None = None):
        super().__init__(data, requires_grad=True, dtype=dtype, name=name)


class Module:
    """Base of all layers: write `__init__` that sets attributes and `forward` that computes.

    >>> class Twice(ta.nn.Module):
    ...     def __init__(self, rng):
    ...         self.layers = [ta.nn.Linear(2, 2, rng=rng), ta.nn.Linear(2, 2, bias=False, rng=rng)]
    ...     def forward(self, x):
    ...         for layer in self.layers:
    ...             x = layer(x)
    ...         return x
    >>> model = Twice(np.random.default_rng(0))
    >>> model
    Twice()
      layers.0: Linear(2, 2)
      layers.1: Linear(2, 2, bias=False)
    >>> [name for name, _ in model.named_parameters()]
    ['layers.0.weight', 'layers.0.bias', 'layers.1.weight']
    """

    training: bool = True
    _name: str = ""  # the attribute of the parent that holds this module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no forward: define what calling it computes")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """`forward`, in a scope that tells recorded operations which module call they belong to."""
        mode = state.mode
        before = mode.scope
        mode.scope = Scope(self._name, type(self).__name__, before)
        try:
            return self.forward(*args, **kwargs)
        finally:
            mode.scope = before

    def __setattr__(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)
        for path, module in _modules(name, value):
            object.__setattr__(module, "_name", path)
        for path, parameter in _find(Parameter, name, value, set()):
            if parameter.name is None or f".{path}".endswith(f".{parameter.name}"):  # its user chose no other name
                parameter.name = path

    # -- what is in here --

    def named_modules(self) -> list[tuple[str, Module]]:
        """This module under the name "" and every module below, each once, parents first."""
        return list(_find(Module, "", self, set()))

    def named_parameters(self) -> list[tuple[str, Parameter]]:
        """Every parameter with its path, once: one that is tied goes by the first of its names."""
        return list(_find(Parameter, "", self, set()))

    def named_generators(self) -> list[tuple[str, np.random.Generator]]:
        """Every random generator (of dropout, say) with its path, once. A checkpoint saves their states."""
        return list(_find(np.random.Generator, "", self, set()))

    def parameters(self) -> list[Parameter]:
        """Every parameter once, in the order of `named_parameters`."""
        return [parameter for _, parameter in self.named_parameters()]

    def num_parameters(self) -> int:
        """How many numbers are trained.

        >>> ta.nn.Linear(3, 4).num_parameters()
        16
        """
        return sum(parameter.data.size for parameter in self.parameters())

    # -- training --

    def train(self, mode: bool = True) -> Self:
        """Put this module and all below into training mode, in which dropout drops."""
        for _, module in self.named_modules():
            module.training = mode
        return self

    def eval(self) -> Self:
        """Put this module and all below into evaluation mode, in which dropout does nothing."""
        return self.train(False)

    @contextmanager
    def evaluating(self) -> Iterator[Self]:
        """Evaluation mode for a `with` block; each module then gets its own mode back, after an error too.

        >>> model = ta.nn.Dropout(0.5)
        >>> with model.evaluating():
        ...     model.training
        False
        >>> model.training
        True
        """
        modes = [(module, module.training) for _, module in self.named_modules()]
        self.eval()
        try:
            yield self
        finally:
            for module, mode in modes:
                module.training = mode

    def zero_grad(self) -> None:
        """Forget all gradients: every parameter's `grad` becomes None."""
        for parameter in self.parameters():
            parameter.grad = None

    def to(self, dtype: DTypeLike) -> Self:
        """Convert all parameters, in place, for example to float64 for a gradient check.

        >>> ta.nn.Linear(2, 2).to(np.float64).weight.dtype
        dtype('float64')
        """
        for parameter in self.parameters():
            parameter.data = parameter.data.astype(dtype)
            parameter.grad = None
        return self

    # -- state --

    def state_dict(self) -> dict[str, np.ndarray]:
        """A copy of every parameter's array under its path."""
        return {name: parameter.data.copy() for name, parameter in self.named_parameters()}

    def load_state_dict(self, state: Mapping[str, ArrayLike | Tensor], strict: bool = True) -> None:
        """Copy arrays into the parameters of the same path, in the parameters' dtype.

        All differences are reported in one ValueError, before anything is written: names that are missing or
        unexpected (unless `strict` is False), shapes that differ, arrays that hold no floating-point numbers.

        >>> layer = ta.nn.Linear(2, 3)
        >>> layer.load_state_dict({"weight": np.zeros((3, 2)), "scale": np.ones(3)})
        Traceback (most recent call last):
            ...
        ValueError: Linear.load_state_dict: the state doesn't fit, nothing was loaded
          missing: bias
          unexpected: scale
          weight: shape (3, 2) in the state, (2, 3) in the module
        """
        own = dict(self.named_parameters())
        arrays = {name: np.asarray(state[name]) for name in own if name in state}
        problems = []
        if strict:
            missing, unexpected = [n for n in own if n not in state], [n for n in state if n not in own]
            problems += [f"missing: {', '.join(missing)}"] if missing else []
            problems += [f"unexpected: {', '.join(unexpected)}"] if unexpected else []
        for name, array in arrays.items():
            if array.shape != own[name].shape:
                problems.append(f"{name}: shape {array.shape} in the state, {own[name].shape} in the module")
            elif array.dtype.kind != "f":
                problems.append(f"{name}: dtype {array.dtype} in the state, {own[name].dtype} in the module")
        if problems:
            title = f"{type(self).__name__}.load_state_dict: the state doesn't fit, nothing was loaded"
            raise ValueError("\n  ".join([title, *problems]))
        for name, array in arrays.items():
            own[name].data = array.astype(own[name].dtype)

    # -- to look at --

    def describe(self) -> str:
        """What stands in the parentheses of this module's line in `repr`."""
        return ""

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__}({self.describe()})"]
        for attribute, value in vars(self).items():
            for name, module in _modules(attribute, value):
                lines += f"{name}: {module!r}".splitlines()
        return "\n  ".join(lines)

    def _repr_html_(self) -> str:
        """What a notebook shows: the parameters with their types."""
        from ..viz.notebook import module_html

        return module_html(self)


def _find(kind: type[Kind], path: str, value: object, seen: set[int]) -> Iterator[tuple[str, Kind]]:
    """(path, object) for every object of this kind in a value and in what it holds, once, owners first."""
    if id(value) not in seen:
        seen.add(id(value))
        if isinstance(value, kind):
            yield path, value
        for key, member in _members(value):
            yield from _find(kind, f"{path}.{key}" if path else str(key), member, seen)


def _members(owner: object) -> Iterable[tuple[object, object]]:
    """What a module holds in attributes and a list, tuple or dict in places, with name, index or key."""
    if isinstance(owner, Module | dict):
        return (vars(owner) if isinstance(owner, Module) else owner).items()
    return enumerate(owner) if isinstance(owner, list | tuple) else ()


def _modules(path: str, value: object) -> Iterator[tuple[str, Module]]:
    """The modules that an attribute holds, directly or in lists, tuples and dicts."""
    if isinstance(value, Module):
        yield path, value
    else:
        for key, member in _members(value):
            yield from _modules(f"{path}.{key}", member)


def generator(rng: Rng) -> np.random.Generator:
    """The generator that initial weights are drawn from: the one given, else a new one with seed 0."""
    if rng is None:
        return np.random.default_rng(0)
    if not isinstance(rng, np.random.Generator):
        raise TypeError(f"rng must be a np.random.Generator, got {rng!r}; write np.random.default_rng(seed)")
    return rng
