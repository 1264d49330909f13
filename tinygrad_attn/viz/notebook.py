"""What a tensor and a module show in Jupyter and marimo: a name, a type, and numbers where they fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .picture import html, label, small, table, type_of

if TYPE_CHECKING:
    from ..nn import Module
    from ..tensor import Tensor


def tensor_html(t: Tensor) -> str:
    """A tensor's name, type, origin, values and gradient.

    >>> "no gradient yet" in tensor_html(ta.Tensor([1.0], requires_grad=True, name="w"))
    True
    """
    leaf = "a leaf that wants a gradient" if t.requires_grad else "a constant"
    parts = [table("value", t.data, 4)]
    if t.grad is not None:
        parts.append(table("gradient", t.grad.data, 4))
    elif t.requires_grad and t.op is None:
        parts.append(small("no gradient yet: call backward()"))
    origin = f"made by {t.op.name}" if t.op is not None else leaf
    return label(t.name or "Tensor", "", [f"{type_of(t.data)}, {origin}"], parts)


def module_html(m: Module) -> str:
    """A module's parameters with their types, and how many numbers there are.

    >>> "f32[2,3]" in module_html(ta.nn.Linear(2, 3))
    True
    """
    types = [(name, type_of(p.data)) for name, p in m.named_parameters()]
    rows = "".join(f"<TR><TD>{html(name)}</TD><TD>{small(type)}</TD></TR>" for name, type in types)
    return f"<B>{html(type(m).__name__)}</B>, {m.num_parameters():,} parameters<TABLE>{rows}</TABLE>"
