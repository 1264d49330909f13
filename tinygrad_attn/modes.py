"""What is switched on in this thread: recording, the module call that is running, a watcher of every operation."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ContextDecorator
from typing import Any, ClassVar, NamedTuple


class Scope(NamedTuple):
    """One call of a module: its name in its parent, its class and the call that encloses it."""

    name: str
    kind: str
    parent: Scope | None


class Mode:
    """The switches of one thread."""

    __slots__ = ("origin", "recording", "scope", "watch")

    def __init__(self) -> None:
        self.recording = True
        self.scope: Scope | None = None
        self.origin: Any = None  # under create_graph: why the backward pass is recording
        self.watch: Callable[..., None] | None = None  # called with every result and every gradient


class _State(threading.local):
    def __init__(self) -> None:
        self.mode = Mode()


state = _State()


class Switch(ContextDecorator):
    """Sets one field of the mode for a ``with`` block or a decorated function, and may be nested."""

    field: ClassVar[str]
    value: ClassVar[Any]

    def __init__(self) -> None:
        self._before: list[Any] = []

    def __enter__(self) -> None:
        self._before.append(getattr(state.mode, self.field))
        setattr(state.mode, self.field, self.value)

    def __exit__(self, *_: object) -> None:
        setattr(state.mode, self.field, self._before.pop())


class no_grad(Switch):
    """Record nothing inside: as ``with no_grad():`` or as the decorator ``@no_grad()``.

    >>> w = ta.Tensor([1.0], requires_grad=True)
    >>> with ta.no_grad():
    ...     print((w * 2).requires_grad)
    False
    """

    field, value = "recording", False


class enable_grad(Switch):
    """Record again inside a `no_grad` block; a context manager and a decorator like it."""

    field, value = "recording", True


def is_grad_enabled() -> bool:
    """Whether operations are being recorded in this thread."""
    return state.mode.recording


class scope:
    """``with scope(name, kind):`` marks what is recorded inside as belonging to one call of a module."""

    __slots__ = ("_before", "_entry")

    def __init__(self, name: str, kind: str) -> None:
        self._before = state.mode.scope
        self._entry = Scope(name, kind, self._before)

    def __enter__(self) -> None:
        state.mode.scope = self._entry

    def __exit__(self, *_: object) -> None:
        state.mode.scope = self._before
