"""Pictures of a computation: the forward graph, and the backward pass as a graph of the same primitives."""

from .trace import Trace, trace

__all__ = ["Trace", "trace"]
