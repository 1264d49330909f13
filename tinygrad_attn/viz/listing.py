"""A computation as text: one line per value, typed and named, for a terminal or an answer to a question."""

from __future__ import annotations

from typing import Any

import numpy as np

from .backward import Backward
from .picture import type_of
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
        return "\n".join(f"{s.name}:{type_of(s.tensor.data)} = {s.formula}" for s in outputs.steps)
    graph = outputs if isinstance(outputs, Trace) else trace(outputs, *inputs, names=names)
    called = graph.unique_names()
    return "\n".join(f"{called[n.id]}:{type_of(n.tensor.data)}{_made(n, called)}" for n in graph.nodes)


def _made(node: Node, called: list[str]) -> str:
    """How a value was made: the kind of a leaf, or an operation with operands and what differs from defaults."""
    op = node.tensor.op
    if op is None:
        return f"  {node.kind}" + (f" {node.tensor.data.item():.6g}" if node.shape == () else "")
    words = [op.name]
    for argument, name, default in zip(node.arguments, op.params, op.defaults):
        operands = [a for a in (argument if isinstance(argument, tuple) else (argument,)) if isinstance(a, Operand)]
        words += [called[a.id] for a in operands]
        if not operands and argument is not default:
            words.append(f"{name}={type_of(argument) if isinstance(argument, np.ndarray) else argument}")
    return f" = {' '.join(words)}" + "  -> output" * node.is_output
