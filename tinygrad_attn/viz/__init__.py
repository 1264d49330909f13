"""Pictures of a computation: the forward graph, and the backward pass as a graph of the same primitives.

`draw_graph` and `draw_backward` give a `graphviz.Digraph`; `listing` and `formula` give text; `trace` and
`trace_backward` give the plain data that all of them read. Graphviz and matplotlib are loaded when a picture
is made.
"""

from importlib import import_module
from typing import Any

from .backward import Backward, Step, trace_backward
from .dot import draw_backward, draw_graph, to_dot
from .formula import Symbol, formula
from .heatmap import attention_heatmap
from .listing import listing
from .trace import Edge, Module, Node, Trace, trace

__all__ = ["Backward", "Drawing", "Edge", "Module", "Node", "Step", "Symbol", "Trace"]
__all__ += ["attention_heatmap", "draw_backward", "draw_graph", "explain", "save", "to_dot"]
__all__ += ["formula", "listing", "trace", "trace_backward"]

LAZY = {"Drawing": ".drawing", "save": ".drawing", "explain": ".explorer"}  # the first two load graphviz


def __getattr__(name: str) -> Any:
    if name in LAZY:
        return getattr(import_module(LAZY[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
