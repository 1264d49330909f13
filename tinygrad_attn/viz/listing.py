"""A computation as text: one line per value, typed and named, for a terminal or an answer to a question."""

from __future__ import annotations

from typing import Any

import numpy as np

from .backward import Backward
from .picture import array_type
from .trace import Node, Operand, Trace, trace


def listing(outputs: Any, *inputs: Any, names: Any = None) -> str:
    """One line per value in recording order, or per step of a backward pass (from `trace_backward`).

    Arguments as in `trace`; a Trace or a Backward that is already there will do.

    >>> import tinygrad_attn as ta
    >>> x = ta.Tensor([[1.0, 2.0]], requires_grad=True, name="x")
    >>> loss = (x @ x.mT).sum().named("loss")
    >>> print(listing(loss))
    x:f32[1,2]  leaf
    xᵀ:f32[2,1] = swapaxes x axis1=-1 axis2=-2
    matmul:f32[1,1] = matmul x xᵀ
    loss:f32[] = sum matmul  -> output
    >>> from tinygrad_attn.viz import trace_backward
    >>> print(listing(trace_backward(loss)))
    dloss:f32[] = 1
    dmatmul:f32[1,1] = broadcast(dloss)
    dx₁:f32[1,2] = dmatmul @ x
    dxᵀ:f32[2,1] = xᵀ @ dmatmul
    dx₂:f32[1,2] = (dxᵀ)ᵀ
    dx:f32[1,2] = dx₁ + dx₂
    """
    if isinstance(outputs, Backward):
        return "\n".join(
            f"{s.name}:{array_type(s.tensor.data.dtype.name, s.tensor.data.shape)} = {s.formula}" for s in outputs.steps
        )
    graph = outputs if isinstance(outputs, Trace) else trace(outputs, *inputs, names=names)
    called = graph.unique_names()
    return "\n".join(_line(graph, node, called) for node in graph.nodes)


def _line(graph: Trace, node: Node, called: list[str]) -> str:
    left = f"{called[node.id]}:{array_type(node.dtype, node.shape)}"
    if node.op is None:
        number = f" {node.tensor.data.item():.6g}" if node.shape == () else ""
        return f"{left}  {node.kind}{number}"
    op = node.tensor.op
    assert op is not None
    words = [node.op]
    for argument, name, default in zip(node.arguments, op.params, op.defaults):
        if isinstance(argument, Operand):
            words.append(called[argument.id])
        elif isinstance(argument, tuple) and any(isinstance(a, Operand) for a in argument):
            words += [called[a.id] for a in argument]
        elif isinstance(argument, np.ndarray):
            words.append(f"{name}={array_type(argument.dtype.name, argument.shape)}")
        elif argument is not default:
            words.append(f"{name}={argument}")
    return f"{left} = {' '.join(words)}" + ("  -> output" if node.is_output else "")
