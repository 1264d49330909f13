"""The fused operations of neural networks, stable at the extremes, with closed-form rules."""

from __future__ import annotations

import functools
import operator
from typing import Any

import numpy as np

from ..autograd import Array, constant, derived, primitive
from .elementwise import masked_fill, multiply
from .reduce import Axis, spread


def _peak(x: Array, axis: Axis) -> Array:
    """The largest along ``axis``: where it is and a look-up there, half the time of NumPy's maximum on short rows."""
    if not isinstance(axis, int) or not x.ndim:
        return np.maximum.reduce(x, axis=axis, keepdims=True)
    return np.take_along_axis(x, np.argmax(x, axis, keepdims=True), axis)


def _total(x: Array, axis: Axis) -> Array:
    """The sum along ``axis``: by einsum over the last one, a quarter of the time of NumPy's sum on short rows."""
    if axis not in (-1, x.ndim - 1):
        return np.add.reduce(x, axis=axis, keepdims=True)
    return np.einsum("...i->...", x)[..., None]


def _shifted(x: Array, axis: Axis) -> tuple[Array, Array]:
    """The peak along ``axis``, and ``x`` minus it; a peak of -inf (all blocked) or inf counts as finite."""
    if x.size == 0:
        return np.zeros_like(x), x.copy()
    peak = _peak(x, axis)
    if not np.isfinite(peak).all():
        peak = np.where(np.isneginf(peak), 0, peak)
    return peak, np.asarray(np.subtract(x, peak))


@primitive()
def softmax(x: Array, axis: Axis = -1) -> Array:
    """``exp(x) / sum(exp(x))`` along ``axis``: non-negative and summing to 1; an all -inf row gives zeros.

    >>> ta.softmax(ta.Tensor([1.0, 1.0, 2.0]))
    Tensor([0.21194157, 0.21194157, 0.57611686])
    """
    _, e = _shifted(x, axis)
    e = np.exp(e, out=e if e.dtype.kind == "f" else None)  # integers make a float array of their own
    total = _total(e, axis)
    if not total.all():
        total = np.where(total == 0, 1, total)
    return np.divide(e, total, out=e)


softmax.gradients(x=lambda g, out, x, axis: out * (g - (g * out).sum(axis, keepdims=True)))


@primitive()
def logsumexp(x: Array, axis: Axis = None, keepdims: bool = False) -> Array:
    """``log(sum(exp(x)))`` along ``axis``; an all -inf row gives -inf, with gradient 0.

    >>> ta.logsumexp(ta.Tensor([1000.0, 1000.0]))
    Tensor(1000.6931)
    """
    if x.size == 0:
        raise ValueError(f"logsumexp: nothing to sum in shape {x.shape}")
    peak, e = _shifted(x, axis)
    with np.errstate(divide="ignore"):
        total = np.log(_total(np.exp(e), axis)) + peak
    return total if keepdims else total.squeeze(axis)


logsumexp.gradients(x=lambda g, out, x, axis, keepdims: spread(g, x, axis, keepdims) * softmax.of(x, axis))


@primitive()
def log_softmax(x: Array, axis: Axis = -1) -> Array:
    """``x - logsumexp(x)`` along ``axis``, the logarithm of `softmax` without its underflow.

    >>> ta.log_softmax(ta.Tensor([0.0, 0.0]))
    Tensor([-0.6931472, -0.6931472])
    """
    _, shifted = _shifted(x, axis)
    total = _total(np.exp(shifted), axis)
    return shifted - np.log(np.where(total == 0, 1, total))


log_softmax.gradients(x=lambda g, out, x, axis: g - np.exp(out) * g.sum(axis, keepdims=True))


def _log_probabilities(logits: Array, targets: Array, ignore_index: int, reduction: str) -> tuple[Array, ...]:
    """Log-probabilities, targets that can be looked up, and how much the loss of each counts."""
    targets = np.asarray(targets)
    *shape, classes = logits.shape
    if targets.dtype.kind not in "iu":
        raise TypeError(f"cross_entropy: targets are class numbers, integers, not {targets.dtype}")
    if targets.shape != tuple(shape):
        raise ValueError(
            f"cross_entropy: logits {logits.shape} need targets of shape {tuple(shape)}, got {targets.shape}"
        )
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f'cross_entropy: reduction must be "mean", "sum" or "none", not {reduction!r}')
    used = targets != ignore_index
    wrong = used & ((targets < 0) | (targets >= classes))
    if wrong.any():
        raise IndexError(
            f"cross_entropy: target {targets[wrong][0]} is outside the {classes} classes 0 .. {classes - 1}"
        )
    count = max(np.count_nonzero(used), 1) if reduction == "mean" else 1
    return log_softmax.of(logits, -1), np.where(used, targets, 0), (used / count).astype(logits.dtype)


@primitive(saves=_log_probabilities)
def cross_entropy(
    logits: Array, targets: Array, ignore_index: int = -100, reduction: str = "mean", saved: Any = None
) -> Array:
    """``-log softmax(logits)[target]``, averaged over the targets that are used.

    Args:
        logits: (..., V).
        targets: integers (...) in ``0 .. V - 1``, or ``ignore_index`` for those to leave out.
        ignore_index: the target that is left out; with all left out the loss is 0 and so is its gradient.
        reduction: "mean" over the used targets, "sum", or "none" for one loss each.

    Raises:
        TypeError: targets that are not integers.
        IndexError: a target out of range.
        ValueError: shapes that do not belong together.

    >>> ta.cross_entropy(ta.Tensor([[0.0, 0.0]]), [1]).numpy().round(4)
    np.float32(0.6931)
    """
    logp, targets, weight = saved
    flat = logp.reshape(-1, logp.shape[-1])
    picked = flat[np.arange(len(flat)), targets.ravel()].reshape(targets.shape)
    losses = np.where(weight != 0, -picked * weight, 0)
    return losses if reduction == "none" else np.add.reduce(losses, axis=None)


def _cross_entropy_rule(
    g: Array, out: Array, logits: Array, targets: Array, ignore_index: int, reduction: str, saved: Any
) -> Array:
    logp, targets, weight = saved
    one_hot = (targets[..., None] == np.arange(logits.shape[-1])).astype(weight.dtype)
    return np.expand_dims(g * weight, -1) * (np.exp(logp) - one_hot)


cross_entropy.gradients(logits=_cross_entropy_rule)


def _standardized(x: Array, weight: Array, bias: Array, eps: float) -> tuple[Array, Array]:
    n = x.shape[-1]
    centred = x - x.sum(-1, keepdims=True) / n  # sum / n, since NumPy's mean costs three times as much here
    scale = 1 / np.sqrt(np.vecdot(centred, centred)[..., None] / n + eps)
    return centred * scale, scale


@primitive(saves=_standardized)
def layer_norm(x: Array, weight: Array = None, bias: Array = None, eps: float = 1e-5, saved: Any = None) -> Array:
    """Each row with mean 0 and variance 1, then times ``weight`` plus ``bias``.

    ``(x - mean) / sqrt(var + eps) * weight + bias``, over the last axis, with the population variance.
    Source: Ba, Kiros and Hinton, "Layer Normalization", 2016.

    Shapes: ``x`` (..., D); ``weight`` and ``bias`` (D,) or None.

    >>> ta.layer_norm(ta.Tensor([[1.0, 3.0]]))
    Tensor([[-0.999995,  0.999995]])
    """
    normal, _ = saved
    if not all(p is None or np.shape(p) == x.shape[-1:] for p in (weight, bias)):
        raise ValueError(f"weight and bias are as long as a row, {x.shape[-1:]}")
    out = normal * weight if weight is not None else normal.copy()
    return np.add(out, bias, out=out) if bias is not None else out


@layer_norm.joint_gradients
def _layer_norm_rule(
    g: Array, out: Array, x: Array, weight: Array, bias: Array, eps: float, saved: Any
) -> tuple[Array, ...]:
    normal, scale = saved
    dn = g if weight is None else g * weight
    n = x.shape[-1]
    dx = scale * (dn - dn.sum(-1, keepdims=True) / n - normal * (np.vecdot(dn, normal)[..., None] / n))
    return dx, g * normal, g


layer_norm.operands = (0, 1, 2)


@derived()
def dropout(x: Array, p: float = 0.5, *, rng: np.random.Generator | None = None, training: bool = True) -> Array:
    """Each element set to 0 with probability ``p`` and the others scaled by ``1 / (1 - p)``.

    With ``p = 0`` or outside training it is the identity and uses no random numbers.

    >>> ta.dropout(ta.Tensor([1.0, 2.0]), 1.0, rng=np.random.default_rng(0))
    Tensor([0., 0.])
    """
    if not 0 <= p <= 1:
        raise ValueError(f"dropout: p is a probability between 0 and 1, got {p}")
    if p == 0 or not training:
        return x
    if p == 1:
        return masked_fill(x, True, 0)
    if not hasattr(rng, "random"):
        raise TypeError(f"dropout: needs rng=np.random.default_rng(seed) to draw from, got {rng!r}")
    keep = (rng.random(x.shape, dtype=np.float32) >= p) / np.asarray(1 - p, x.dtype)
    return multiply(x, constant(keep.astype(x.dtype, copy=False)))


def _attention_blocks(q: Array, k: Array, mask: Array) -> list[tuple[Any, Any]]:
    """Blocks of queries, each with the keys that some query in it may see: half of the pairs, if causal."""
    n, m = q.shape[-2], k.shape[-2]
    size = max(64, n // 8)
    if mask is None or mask.shape[-2:] != (n, m) or n < 2 * size:
        return [(..., ...)]
    seen = ~mask.reshape(-1, n, m).all(axis=0)
    blocks = []
    for start in range(0, n, size):
        last = np.flatnonzero(seen[start : start + size].any(axis=0))
        keys = slice(0, int(last[-1]) + 1 if last.size else 1)
        blocks.append(((..., slice(start, start + size), slice(None)), (..., keys, slice(None))))
    return blocks


def _part(x: Array, index: Any) -> Array:
    return x if index is ... else x[index]


def attention_weights(q: Array, k: Array, mask: Array, scale: float) -> Array:
    """``softmax(q kT scale)``, -inf where ``mask`` blocks: (..., Tq, d), (..., Tk, d) -> (..., Tq, Tk)."""
    scores = (q * scale) @ k.mT  # (..., Tq, d) @ (..., d, Tk) -> (..., Tq, Tk)
    return softmax.of(scores if mask is None else masked_fill.of(scores, mask, -np.inf), -1)


def _block_weights(q: Array, k: Array, v: Array, mask: Array, scale: float) -> list[Array]:
    blocks = _attention_blocks(q, k, mask)
    masks = [mask if rows is ... else mask[..., rows[1], keys[1]] for rows, keys in blocks]
    pairs = zip(blocks, masks, strict=True)
    return [attention_weights(_part(q, rows), _part(k, keys), m, scale) for (rows, keys), m in pairs]


@primitive(method=None, saves=_block_weights)
def attention(q: Array, k: Array, v: Array, mask: Array, scale: float, saved: Any) -> Array:
    """``softmax(q kT scale) v`` in one operation, which passes over the blocks of pairs that ``mask`` blocks.

    Shapes: ``q`` (..., Tq, d), ``k`` (..., Tk, d), ``v`` (..., Tk, e), ``mask`` (..., Tq, Tk), boolean with
    True = blocked, or None; the result is (..., Tq, e).
    """
    blocks = _attention_blocks(q, k, mask)
    return _joined([weights @ _part(v, keys) for weights, (_, keys) in zip(saved, blocks, strict=True)])


@attention.joint_gradients
def _attention_rule(
    g: Array, out: Array, q: Array, k: Array, v: Array, mask: Array, scale: float, saved: Any
) -> tuple[Array, ...]:
    dq, dk, dv = [], [], []
    for weights, (rows, keys) in zip(saved, _attention_blocks(q, k, mask), strict=True):
        dout = _part(g, rows)
        dweights = dout @ _part(v, keys).mT
        dscores = weights * (dweights - np.vecdot(dout, _part(out, rows))[..., None])
        dq.append(dscores @ (_part(k, keys) * scale))
        dk.append(dscores.mT @ (_part(q, rows) * scale))
        dv.append(weights.mT @ dout)
    return _joined(dq), _piled(dk, k.shape), _piled(dv, v.shape)


def _joined(blocks: list[Array]) -> Array:
    return blocks[0] if len(blocks) == 1 else np.concatenate(blocks, axis=-2)


def _piled(parts: list[Array], shape: tuple[int, ...]) -> Array:
    """The sum of gradients that begin at the first key and end at different ones."""
    if len(parts) == 1:
        return parts[0]
    ends = sorted({part.shape[-2] for part in parts})
    pieces = []
    for start, end in zip([0, *ends], ends, strict=False):
        reaching = [part[..., start:end, :] for part in parts if part.shape[-2] >= end]
        pieces.append(functools.reduce(operator.add, reaching))
    if ends[-1] < shape[-2]:
        pieces.append(np.zeros((*shape[:-2], shape[-2] - ends[-1], shape[-1]), pieces[0].dtype))
    return np.concatenate(pieces, axis=-2)


attention.operands = (0, 1, 2)
