"""What is switched on in this thread: recording, the module call that is running, a watcher of every operation."""

import threading
from contextlib import ContextDecorator
from typing import Any, NamedTuple


class Scope(NamedTuple):
    """One call of a module: its name in its parent, its class and the call that encloses it."""

    name: str
    kind: str
    parent: "Scope | None"


class Mode:
    """The switches of one thread."""

    def __init__(self) -> None:
        self.recording = True
        self.scope: Scope | None = None  # the module call that is running
        self.origin: Any = None  # why the backward pass makes what it makes
        self.watch: Any = None  # called with every result and every gradient


class _State(threading.local):
    def __init__(self) -> None:
        self.mode = Mode()


state = _State()


class Switch(ContextDecorator):
    """Sets fields of the mode for a ``with`` block or a decorated function, and may be nested."""

    def __init__(self, **fields: Any) -> None:
        self._fields = fields
        self._before: list[dict[str, Any]] = []

    def __enter__(self) -> None:
        self._before.append({name: getattr(state.mode, name) for name in self._fields})
        vars(state.mode).update(self._fields)

    def __exit__(self, *_: object) -> None:
        vars(state.mode).update(self._before.pop())

    def _recreate_cm(self) -> "Switch":  # one for each call of a decorated function, which threads may share
        return Switch(**self._fields)


def no_grad() -> Switch:
    """Record nothing inside: as ``with no_grad():`` or as the decorator ``@no_grad()``.

    >>> w = ta.Tensor([1.0], requires_grad=True)
    >>> with ta.no_grad():
    ...     print((w * 2).requires_grad)
    False
    """
    return Switch(recording=False)


def enable_grad() -> Switch:
    """Record again inside a `no_grad` block; a context manager and a decorator like it."""
    return Switch(recording=True)


def is_grad_enabled() -> bool:
    """Whether operations are being recorded in this thread."""
    return state.mode.recording
