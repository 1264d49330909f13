"""Where the first NaN was made: a watcher that looks at every result and every gradient."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import numpy as np

from .modes import Switch

_OURS = (__file__.rpartition("anomaly")[0], np.__file__.rpartition("__init__")[0])


def _watch(node: Any, op: Any, values: Iterable[Any], result: Any, what: str) -> None:
    """NaN is always an anomaly, an infinity only where no input held one."""
    if what == "result":
        node._source = _users_line()
    inputs, outputs = list(_floats(values)), list(_floats([result]))
    if any(np.isnan(a).any() for a in outputs):
        bad = "NaN"
    elif any(np.isinf(a).any() for a in outputs) and not any(np.isinf(a).any() for a in inputs):
        bad = "an infinity"
    else:
        return
    shapes = ", ".join(str(a.shape) for a in inputs)
    source = getattr(node, "_source", "an unknown line: put the forward under detect_anomaly too")
    raise FloatingPointError(f"{op.name}: {bad} in the {what}, from inputs of shape {shapes}; made at {source}")


def _floats(values: Iterable[Any]) -> Iterable[Any]:
    """The floating-point arrays among some values, Tensors and lists."""
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _floats(value)
            continue
        array = np.asarray(value)
        if array.dtype.kind == "f":
            yield array


def _users_line() -> str:
    """``file:line`` of the code outside this package and NumPy that is running now."""
    frame = sys._getframe(1)
    while frame.f_back and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def detect_anomaly() -> Switch:
    """Raise where the first non-finite value appears, in forward or backward: a debugging mode, and slow.

    The error is a FloatingPointError and names the operation, the shapes of its inputs and the source line that
    called it.  A NaN always raises; an infinity raises unless the inputs held one already, so that masking with
    minus infinity is no anomaly.

    >>> x = ta.Tensor([0.0], requires_grad=True)
    >>> with ta.detect_anomaly(), np.errstate(divide="ignore"):
    ...     ta.log(x)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    FloatingPointError: log: an infinity in the result, from inputs of shape (1,); made at ...
    """
    return Switch(watch=_watch)
