"""The fused operations of neural networks, stable at the extremes, with closed-form rules."""

import functools
from typing import Any

import numpy as np

from ..autograd import Array, constant, derived, primitive
from .elementwise import masked_fill, multiply
from .linear import matmul, rows
from .reduce import Axis, spread, sum, total


def _peak(x: Array, axis: Axis) -> Array:
    """The largest along ``axis``: where it is and a look-up there, half the time of NumPy's maximum on short rows."""
    if axis not in (-1, x.ndim - 1) or 0 in (x.ndim, x.size):
        return np.maximum.reduce(x, axis=axis, keepdims=True, initial=-np.inf)
    flat = rows(x)
    return flat[np.arange(len(flat)), flat.argmax(-1)].reshape(*x.shape[:-1], 1)


def _shifted(x: Array, axis: Axis) -> tuple[Array, Array]:
    """The peak along ``axis``, and ``x`` minus it; a peak of -inf (all blocked) counts as the least finite number."""
    x = x if x.dtype.kind == "f" else x.astype(np.result_type(x, np.float16))
    peak = np.maximum(_peak(x, axis), np.finfo(x.dtype).min)
    return peak, np.asarray(x - peak)


@primitive()
def softmax(x: Array, axis: Axis = -1) -> Array:
    """``exp(x) / sum(exp(x))`` along ``axis``: numbers from 0 to 1 that sum to 1.

    Shapes: any, kept; so is a float dtype, integers become floats.
    Rule:   dx = out * (g - sum(g * out, axis=-1))

    Computed from ``x - max(x)``, so that nothing overflows.  A row of -inf alone, everything blocked, gives zeros.

    >>> ta.softmax(ta.Tensor([1.0, 1.0, 2.0]))
    Tensor([0.21194157, 0.21194157, 0.57611686])
    """
    _, e = _shifted(x, axis)
    np.exp(e, out=e)
    return np.divide(e, np.maximum(total(e, axis), 1), out=e)  # the peak alone adds 1; a row of -inf sums to 0


softmax.gradients(x=lambda g, out, x, axis: out * (g - (g * out).sum(axis, keepdims=True)))


@primitive()
def logsumexp(x: Array, axis: Axis = None, keepdims: bool = False) -> Array:
    """``log(sum(exp(x)))`` along ``axis`` (None: of all), without overflow.

    Shapes: any, without the axes, or with length 1 there (keepdims); a float dtype is kept.
    Rule:   dx = g * softmax(x)
    Raises: ValueError where there is nothing to sum.

    A row of -inf alone gives -inf, with gradient 0.

    >>> ta.logsumexp(ta.Tensor([1000.0, 1000.0]))
    Tensor(1000.6931)
    """
    if x.size == 0:
        raise ValueError(f"logsumexp: nothing to sum in shape {x.shape}")
    peak, shifted = _shifted(x, axis)
    with np.errstate(divide="ignore"):
        out = np.log(total(np.exp(shifted), axis)) + peak
    return out if keepdims else out.squeeze(axis)


logsumexp.gradients(x=lambda g, out, x, axis, keepdims: spread(g, axis, keepdims) * softmax.of(x, axis))


@primitive()
def log_softmax(x: Array, axis: Axis = -1) -> Array:
    """``x - logsumexp(x)`` along ``axis``: the logarithm of `softmax`, without its underflow.

    Shapes: any, kept; so is a float dtype, integers become floats.
    Rule:   dx = g - exp(out) * sum(g, axis=-1)

    >>> ta.log_softmax(ta.Tensor([0.0, 0.0]))
    Tensor([-0.6931472, -0.6931472])
    """
    _, shifted = _shifted(x, axis)
    return shifted - np.log(np.maximum(total(np.exp(shifted), axis), 1))


log_softmax.gradients(x=lambda g, out, x, axis: g - np.exp(out) * g.sum(axis, keepdims=True))


def _log_probabilities(logits: Array, targets: Array, ignore_index: int, reduction: str) -> tuple[Array, ...]:
    """Log-probabilities, targets that can be looked up, and how much the loss of each counts."""
    targets, shape, classes = np.asarray(targets), logits.shape[:-1], logits.shape[-1]
    if targets.dtype.kind not in "iu":
        raise TypeError(f"cross_entropy: targets are class numbers, integers, not {targets.dtype}")
    if targets.shape != shape:
        raise ValueError(f"cross_entropy: logits {logits.shape} need targets of shape {shape}, got {targets.shape}")
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f'cross_entropy: reduction must be "mean", "sum" or "none", not {reduction!r}')
    used = targets != ignore_index
    wrong = targets[used & ((targets < 0) | (targets >= classes))]
    if wrong.size:
        raise IndexError(f"cross_entropy: target {wrong[0]} is outside the {classes} classes 0 .. {classes - 1}")
    count = max(np.count_nonzero(used), 1) if reduction == "mean" else 1
    return log_softmax.of(logits, -1), np.where(used, targets, 0), (used / count).astype(logits.dtype)


@primitive(saves=_log_probabilities)
def cross_entropy(
    logits: Array, targets: Array, ignore_index: int = -100, reduction: str = "mean", saved: Any = None
) -> Array:
    """``-log softmax(logits)[target]``: how surprising each target is, in nats; the mean over those that are used.

    Args:
        logits: (..., V).
        targets: integers (...) in ``0 .. V - 1``, or ``ignore_index`` for those to leave out.
        ignore_index: the target that is left out; with all left out the loss is 0 and so is its gradient.
        reduction: "mean" over the used targets, "sum", or "none" for one loss each.

    Shapes: (..., V) and (...) give one number, or (...) with reduction "none"; the dtype of logits.
    Rule:   dlogits = expand_dims(g * (1/3), axis=-1) * (exp(log_softmax(logits, axis=-1)) - one_hot)
    Raises: TypeError for targets that are not integers, IndexError for one out of range, ValueError for shapes
            that do not belong together.

    (The rule is that of three targets: softmax minus the truth, times the share of each loss in the mean.)

    >>> ta.cross_entropy(ta.Tensor([[0.0, 0.0]]), [1]).numpy().round(4)
    np.float32(0.6931)
    """
    logp, targets, share = saved
    flat = logp.reshape(-1, logp.shape[-1])
    picked = flat[np.arange(len(flat)), targets.ravel()].reshape(targets.shape)
    losses = np.where(share != 0, -picked * share, 0)
    return losses if reduction == "none" else np.add.reduce(losses, axis=None)


def _cross_entropy_rule(g: Array, out: Array, logits: Array, *arguments: Any) -> Array:
    *_, (logp, targets, share) = arguments
    one_hot = targets[..., None] == np.arange(logits.shape[-1])
    return np.expand_dims(g * share, -1) * (np.exp(logp) - one_hot)


cross_entropy.gradients(logits=_cross_entropy_rule)


def _standardized(x: Array, weight: Array, bias: Array, eps: float) -> tuple[Array, Array]:
    n = x.shape[-1]
    centred = x - sum.of(x, -1, True) / n  # the operation's sum: on short rows an array's own is three times slower
    scale = 1 / np.sqrt(np.vecdot(centred, centred)[..., None] / n + eps)
    return centred * scale, scale


@primitive(saves=_standardized, operands=(0, 1, 2))
def layer_norm(x: Array, weight: Array = None, bias: Array = None, eps: float = 1e-5, saved: Any = None) -> Array:
    """Each row with mean 0 and variance 1, then times ``weight`` plus ``bias``.

    ``(x - mean) / sqrt(var + eps) * weight + bias``, over the last axis, with the population variance.
    Source: Ba, Kiros and Hinton, "Layer Normalization", 2016.

    Shapes: x (..., D), kept; weight and bias (D,) or None; the wider dtype.
    Rule:   dx = v * (g * weight - sum(g * weight, axis=-1) / n - w * (vecdot(g * weight, w)[..., None] / n)),
                 where u = x - sum(x, axis=-1) / n, v = 1 / sqrt(vecdot(u, u)[..., None] / n + 1e-05), w = u * v
            dweight = g * (u * (1 / sqrt(vecdot(u, u)[..., None] / n + 1e-05))), where u = x - sum(x, axis=-1) / n
            dbias = g

    (w is the row with mean 0 and variance 1, v the factor that made it so.)

    >>> ta.layer_norm(ta.Tensor([[1.0, 3.0]]))
    Tensor([[-0.999995,  0.999995]])
    """
    normal, _ = saved
    out = normal * weight if weight is not None else normal.copy()
    return np.add(out, bias, out=out) if bias is not None else out


@layer_norm.joint_gradients
def _layer_norm_rule(g: Array, out: Array, x: Array, weight: Array, bias: Array, eps: float, saved: Any) -> Any:
    normal, scale = saved
    dn = g if weight is None else g * weight
    n = x.shape[-1]
    dx = scale * (dn - sum.of(dn, -1, True) / n - normal * (np.vecdot(dn, normal)[..., None] / n))
    return dx, g * normal, g


def _one_row(x: Array, weight: Array, bias: Array, eps: float) -> None:
    """Refuse other lengths when called; the forward itself takes a copy per row, to test gradients not yet summed."""
    for p in (weight, bias):
        if p is not None and (shape := getattr(p, "shape", ())) != x.shape[-1:]:
            raise ValueError(f"layer_norm: the rows of {x.shape} take weights of shape {x.shape[-1:]}, not {shape}")


layer_norm.rewrite = _one_row


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
    if not isinstance(rng, np.random.Generator):
        raise TypeError(f"dropout: needs rng=np.random.default_rng(seed) to draw from, got {rng!r}")
    return multiply(x, constant((rng.random(x.shape, dtype=np.float32) >= p) / x.dtype.type(1 - p)))


def attention_weights(q: Array, k: Array, mask: Array, scale: float) -> Array:
    """``softmax(q kT scale)``, -inf where ``mask`` blocks: (..., Tq, d), (..., Tk, d) -> (..., Tq, Tk)."""
    scores = matmul.of(q * scale, k.mT)  # (..., Tq, d) @ (..., d, Tk) -> (..., Tq, Tk)
    return softmax.of(scores if mask is None else masked_fill.of(scores, mask, -np.inf), -1)


def _block_weights(q: Array, k: Array, v: Array, mask: Array, scale: float) -> list[tuple[Any, Any, Array]]:
    """Blocks of queries, for each the keys that some query in it may see (half of all, if causal) and the weights."""
    n, m = q.shape[-2], k.shape[-2]
    size = max(64 if n < 256 else 128, n // 16)
    if mask is None or mask.shape[-2:] != (n, m) or n < 2 * size:
        return [(..., ..., attention_weights(q, k, mask, scale))]
    seen = ~mask.reshape(-1, n, m).all(axis=0)
    ends = m - seen[:, ::-1].argmax(axis=1)  # one past the last key that a query sees
    ends[-1] = m  # some block reaches every key
    blocks = [(slice(i, i + size), slice(int(ends[i : i + size].max()))) for i in range(0, n, size)]
    return [(i, j, attention_weights(_part(q, i), _part(k, j), mask[..., i, j], scale)) for i, j in blocks]


def _part(x: Array, positions: Any) -> Array:
    return x if positions is ... else x[..., positions, :]


@primitive(method=None, saves=_block_weights, operands=(0, 1, 2))
def attention(q: Array, k: Array, v: Array, mask: Array, scale: float, saved: Any) -> Array:
    """``softmax(q kT scale) v`` in one operation, which passes over the blocks of pairs that ``mask`` blocks.

    Source: Vaswani et al., "Attention Is All You Need", 2017, section 3.2.1.

    Shapes: q (..., Tq, d), k (..., Tk, d), v (..., Tk, e) and mask (..., Tq, Tk), boolean with True = blocked,
            or None, give (..., Tq, e); the wider dtype.
    Rule:   dq = softmax(masked_fill(q * scale @ k.mT, mask, -inf), axis=-1)
                 * (g @ v.mT - vecdot(g, out)[..., None]) @ (k * scale)
            dk = (softmax(masked_fill(q * scale @ k.mT, mask, -inf), axis=-1)
                 * (g @ v.mT - vecdot(g, out)[..., None])).mT @ (q * scale)
            dv = softmax(masked_fill(q * scale @ k.mT, mask, -inf), axis=-1).mT @ g

    >>> q = k = v = ta.Tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> ta.PRIMITIVES["attention"](q, k, v, np.array([[False, True], [False, False]]), 1.0)
    Tensor([[1.        , 0.        ],
            [0.26894143, 0.7310586 ]])
    """
    # laid out in memory as q is, so that heads merge without a copy
    out = np.empty_like(q, np.result_type(saved[0][2], v), shape=(*q.shape[:-1], v.shape[-1]))
    for queries, keys, weights in saved:
        np.matmul(weights, _part(v, keys), out=_part(out, queries))
    return out


@attention.joint_gradients
def _attention_rule(g: Array, out: Array, q: Array, k: Array, v: Array, mask: Array, scale: float, saved: Any) -> Any:
    dq, dk, dv = [], [], []
    for queries, keys, weights in saved:
        dout = _part(g, queries)
        dweights = matmul.of(dout, _part(v, keys).mT)
        dscores = weights * (dweights - np.vecdot(dout, _part(out, queries))[..., None])
        dq.append(dscores @ (_part(k, keys) * scale))
        dk.append(dscores.mT @ (_part(q, queries) * scale))
        dv.append(weights.mT @ dout)
    joined = dq[0] if len(dq) == 1 else np.concatenate(dq, axis=-2)
    return joined, functools.reduce(_overlaid, dk), functools.reduce(_overlaid, dv)


def _overlaid(a: Array, b: Array) -> Array:
    """The sum of two gradients that begin at the first key and may end at different ones."""
    short, long = sorted((a, b), key=lambda x: x.shape[-2])
    return np.concatenate([short + long[..., : short.shape[-2], :], long[..., short.shape[-2] :, :]], axis=-2)
