"""What a tensor and a module show in Jupyter and marimo: a name, a type, and numbers where they fit."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

import numpy as np

from .picture import array_type

if TYPE_CHECKING:
    from ..nn import Module
    from ..tensor import Tensor

MAX_ROWS = 8


def tensor_html(t: Tensor) -> str:
    """A tensor's name, type, origin, values and gradient.

    >>> import tinygrad_attn as ta
    >>> "no gradient yet" in tensor_html(ta.Tensor([1.0], requires_grad=True, name="w"))
    True
    """
    made = (
        f"made by {t.op.name}"
        if t.op is not None
        else "a leaf that wants a gradient"
        if t.requires_grad
        else "a constant"
    )
    head = f"<b>{escape(t.name or 'Tensor')}</b> {_type_html(t)}, {made}"
    cells = f"<td>{_array_html(t.data)}</td>"
    if t.grad is not None:
        cells += f'<td style="padding-left:1.5em">gradient{_array_html(t.grad.data)}</td>'
    elif t.requires_grad and t.op is None:
        cells += '<td style="padding-left:1.5em">no gradient yet: call backward()</td>'
    return f'<div>{head}<table style="border:0"><tr style="vertical-align:top">{cells}</tr></table></div>'


def module_html(m: Module) -> str:
    """A module's parts: each parameter with its type, and how many numbers there are."""
    rows = "".join(
        f"<tr><td><code>{escape(name)}</code></td><td>{_type_html(p)}</td>"
        f'<td style="text-align:right">{p.data.size:,}</td></tr>'
        for name, p in m.named_parameters()
    )
    return (
        f"<div><b>{escape(type(m).__name__)}</b>, {m.num_parameters():,} parameters"
        f"<table><tr><th>parameter</th><th>type</th><th>numbers</th></tr>{rows}</table></div>"
    )


def _type_html(t: Tensor) -> str:
    return f"<code>{array_type(t.data.dtype.name, t.data.shape)}</code>"


def _array_html(array: np.ndarray) -> str:
    rows = array.reshape(-1, array.shape[-1]) if array.ndim > 1 else array.reshape(1, -1)
    if array.size == 0 or max(rows.shape) > MAX_ROWS:
        return f"<pre>{escape(np.array2string(array, precision=4, threshold=40, edgeitems=2))}</pre>"
    cells = "".join("<tr>" + "".join(f"<td>{v:.4g}</td>" for v in row.tolist()) + "</tr>" for row in rows)
    return f"<table>{cells}</table>"
