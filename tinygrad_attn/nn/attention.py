"""Attention: every token asks (Q), every token offers a label (K) and a content (V); softmax of QKᵀ says how
much of which content each token takes.

Vaswani et al., "Attention Is All You Need", 2017, section 3.2.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from ..ops import nn as F
from ..ops.shape import concatenate, split
from ..tensor import Tensor
from .layers import Dropout, Linear, positive
from .module import Module, Parameter, Rng, generator

Mask = ArrayLike | Tensor


def causal_mask(Tq: int, Tk: int | None = None) -> np.ndarray:
    """Boolean (Tq, Tk), True = blocked: a query sees its own position and those before it.

    Where there are more keys than queries the queries are the last ones, so the last query sees every key.
    More queries than keys is a ValueError: some of them would see nothing.

    >>> ta.nn.causal_mask(3)
    array([[False,  True,  True],
           [False, False,  True],
           [False, False, False]])
    >>> ta.nn.causal_mask(1, 3)
    array([[False, False, False]])
    """
    Tk = Tq if Tk is None else Tk
    if not 0 <= Tq <= Tk:
        raise ValueError(f"causal_mask: {Tq} queries on {Tk} keys, but each query must see a key: Tq <= Tk")
    mask: np.ndarray = np.arange(Tk) > np.arange(Tk - Tq, Tk)[:, None]  # the key comes after the query
    return mask


def scaled_dot_product_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Mask | None = None,
    causal: bool = False,
    scale: float | None = None,
    dropout: float = 0.0,
    rng: Rng = None,
    return_weights: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """softmax(q kᵀ * scale) v: (..., Tq, d), (..., Tk, d), (..., Tk, dv) -> (..., Tq, dv).

    `scale` is 1/sqrt(d) where nothing is said. `mask` is boolean, True = blocked, and comes on top of
    `causal`. It has one of the shapes

    - (Tq, Tk): the same for all samples and heads;
    - (B, Tk): padding, the keys of each sample that are blocked, B being the first axis of q; without
      batch (Tk,);
    - as many axes as the scores (..., Tq, Tk), each as long as theirs or 1, for example (B, 1, 1, Tk).

    Where B = Tq a mask of two axes could mean either and is refused: give it all its axes then.

    `dropout` acts on the weights, with draws from `rng`. With `return_weights` the result is
    (output, weights), where weights (..., Tq, Tk) are those before dropout.

    >>> q = k = v = ta.Tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> out, weights = ta.nn.scaled_dot_product_attention(q, k, v, causal=True, return_weights=True)
    >>> weights.numpy().round(2)
    array([[1.  , 0.  ],
           [0.33, 0.67]], dtype=float32)
    """
    q, k, v = (x if isinstance(x, Tensor) else Tensor(x) for x in (q, k, v))
    batch, d = q.shape[:-2], q.shape[-1:]
    if q.ndim < 2 or k.ndim < 2 or k.shape != (*batch, k.shape[-2], *d) or v.shape[:-1] != k.shape[:-1]:
        raise ValueError(
            "scaled_dot_product_attention: needs q (..., Tq, d), k (..., Tk, d), v (..., Tk, dv), "
            f"got q {q.shape}, k {k.shape}, v {v.shape}"
        )
    scale = 1 / math.sqrt(d[0]) if scale is None else scale
    blocked = _blocked(mask, (*q.shape[:-1], k.shape[-2]), causal)
    if not (return_weights or dropout):
        out: Tensor = F.attention(q, k, v, blocked, scale)  # one operation, in blocks
        return out
    weights = F.attention_weights(q, k, blocked, scale).named("weights")  # (..., Tq, Tk)
    out = F.dropout(weights, dropout, rng=rng) @ v  # (..., Tq, Tk) @ (..., Tk, dv) -> (..., Tq, dv)
    return (out, weights) if return_weights else out


class SelfAttention(Module):
    """One head of self-attention, step by step and with every intermediate named.

    Q = X W_Q, K = X W_K, V = X W_V with three weights (d_model, d_k), `d_k` being d_model where nothing is
    said; scores = QKᵀ, divided by sqrt(d_k) if `scale`; output = softmax(scores) V. With `causal` no token
    sees a later one. The weights start normal with standard deviation 1/sqrt(d_model), drawn from `rng`, by
    default from `np.random.default_rng(0)`.

    >>> layer = ta.nn.SelfAttention(4, causal=True)
    >>> output, weights = layer(np.ones((3, 4), np.float32), return_weights=True)
    >>> weights.numpy().round(2)
    array([[1.  , 0.  , 0.  ],
           [0.5 , 0.5 , 0.  ],
           [0.33, 0.33, 0.33]], dtype=float32)
    """

    def __init__(
        self, d_model: int, d_k: int | None = None, *, causal: bool = False, scale: bool = True, rng: Rng = None
    ):
        d_k, rng = d_model if d_k is None else d_k, generator(rng)
        positive("SelfAttention", d_model=d_model, d_k=d_k)
        W_Q, W_K, W_V = rng.standard_normal((3, d_model, d_k), np.float32) / np.float32(math.sqrt(d_model))
        self.W_Q, self.W_K, self.W_V = Parameter(W_Q), Parameter(W_K), Parameter(W_V)
        self.causal, self.scale = causal, scale

    def forward(
        self, x: Tensor, mask: Mask | None = None, return_weights: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """(T, d_model) or (B, T, d_model) -> (..., T, d_k), with `return_weights` also (..., T, T).

        `mask` as in `scaled_dot_product_attention`.
        """
        d_model, d_k = self.W_Q.shape
        _check_tokens("SelfAttention", x.shape, d_model)
        Q = (x @ self.W_Q).named("Q")  # (..., T, d_model) @ (d_model, d_k) -> (..., T, d_k)
        K = (x @ self.W_K).named("K")  # (..., T, d_model) @ (d_model, d_k) -> (..., T, d_k)
        V = (x @ self.W_V).named("V")  # (..., T, d_model) @ (d_model, d_k) -> (..., T, d_k)
        scores = Q @ K.mT  # (..., T, d_k) @ (..., d_k, T) -> (..., T, T)
        if self.scale:
            scores = scores / Tensor(math.sqrt(d_k), dtype=scores.dtype, name="√d")  # (..., T, T), as large at any d_k
        scores.name = "scores"
        blocked = _blocked(mask, scores.shape, self.causal)  # (T, T), or (B, 1, T), or (B, T, T)
        if blocked is not None:
            scores = scores.masked_fill(blocked, -np.inf).named("masked")  # (..., T, T), whose softmax is 0
        weights = scores.softmax(axis=-1).named("weights")  # (..., T, T), each row (a query) sums to 1
        output = (weights @ V).named("output")  # (..., T, T) @ (..., T, d_k) -> (..., T, d_k)
        return (output, weights) if return_weights else output

    def describe(self) -> str:
        return "{}, {}, causal={}, scale={}".format(*self.W_Q.shape, self.causal, self.scale)


class KeyValueCache:
    """The keys and values of the tokens so far, (B, H, T, d): a new token then costs one row of attention."""

    def __init__(self) -> None:
        self.k: Tensor | None = None
        self.v: Tensor | None = None

    def __len__(self) -> int:
        return 0 if self.k is None else self.k.shape[-2]

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Add those of new tokens, (B, H, new, d), and give all of them, (B, H, T + new, d)."""
        self.k = k if self.k is None else concatenate([self.k, k], -2)
        self.v = v if self.v is None else concatenate([self.v, v], -2)
        return self.k, self.v


class MultiHeadAttention(Module):
    """`n_head` heads of self-attention side by side, each d = d_model / n_head wide, then mixed by a Linear.

    As in GPT-2: one Linear `c_attn` makes Q, K and V of all heads, `c_proj` mixes their outputs; the scale is
    1/sqrt(d). `dropout` acts on the weights and on the output.

    >>> layer = ta.nn.MultiHeadAttention(8, 2)
    >>> layer(np.ones((5, 3, 8), np.float32)).shape
    (5, 3, 8)
    """

    def __init__(
        self,
        d_model: int,
        n_head: int,
        *,
        causal: bool = True,
        dropout: float = 0.0,
        bias: bool = True,
        rng: Rng = None,
    ):
        positive("MultiHeadAttention", d_model=d_model, n_head=n_head)
        if d_model % n_head:
            raise ValueError(f"MultiHeadAttention: {n_head} heads don't divide a width of {d_model}")
        rng = generator(rng)
        self.c_attn = Linear(d_model, 3 * d_model, bias=bias, rng=rng)
        self.c_proj = Linear(d_model, d_model, bias=bias, rng=rng)
        self.dropout = Dropout(dropout, rng=rng)
        self.n_head, self.causal = n_head, causal

    def forward(
        self, x: Tensor, mask: Mask | None = None, return_weights: bool = False, past: KeyValueCache | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        """(B, T, C) -> (B, T, C), with `return_weights` also (B, H, T, T); or the same without B.

        `mask` as in `scaled_dot_product_attention`. With `past` x continues the tokens in it, and joins them.
        """
        _check_tokens("MultiHeadAttention", x.shape, self.c_proj.weight.shape[0])
        qkv = split_heads(self.c_attn(x), 3 * self.n_head)  # (B, T, C) -> (B, T, 3C) -> (B, 3H, T, d)
        q, k, v = split(qkv, 3, 1)  # (B, 3H, T, d) -> 3 of (B, H, T, d)
        q, k, v = q.named("Q"), k.named("K"), v.named("V")  # (B, H, T, d) each
        if past is not None:
            k, v = past.append(k, v)  # (B, H, T, d) -> (B, H, past + T, d)
        p, rng = self.dropout.p if self.training else 0.0, self.dropout.rng
        attended = scaled_dot_product_attention(
            q, k, v, mask=mask, causal=self.causal, dropout=p, rng=rng, return_weights=return_weights
        )
        out, weights = attended if isinstance(attended, tuple) else (attended, None)  # (B, H, T, d), (B, H, T, T)
        y: Tensor = self.dropout(self.c_proj(merge_heads(out, x.shape)))  # (B, H, T, d) -> (B, T, C)
        return y if weights is None else (y, weights if x.ndim == 3 else weights[0])

    def describe(self) -> str:
        return f"{self.c_proj.weight.shape[0]}, n_head={self.n_head}, causal={self.causal}"


def split_heads(x: Tensor, n_head: int) -> Tensor:
    """(B, T, C) -> (B, H, T, d): head h of a token is the h-th stretch of its C numbers.

    The swap of axes is essential: reshaping straight to (B, H, T, d) would mix positions with heads.

    >>> ta.nn.attention.split_heads(ta.Tensor(np.arange(8.0).reshape(1, 2, 4)), 2).numpy()[0, 0]
    array([[0., 1.],
           [4., 5.]])
    """
    B, (T, C) = (x.shape[0] if x.ndim == 3 else 1), x.shape[-2:]
    tokens = x.reshape(B, T, n_head, C // n_head)  # (B, T, C) -> (B, T, H, d)
    heads: Tensor = tokens.swapaxes(1, 2)  # (B, T, H, d) -> (B, H, T, d)
    return heads


def merge_heads(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """(B, H, T, d) -> `shape`, (B, T, C): undoes `split_heads`."""
    tokens: Tensor = x.swapaxes(1, 2).reshape(shape)  # (B, H, T, d) -> (B, T, H, d) -> (B, T, C)
    return tokens


def _blocked(mask: Mask | None, scores: tuple[int, ...], causal: bool) -> np.ndarray | None:
    """What is blocked in scores of this shape (..., Tq, Tk), or None."""
    future = causal_mask(*scores[-2:]) if causal and scores[-2] != 1 else None  # a single query is the last one
    if mask is None:
        return future
    blocked = _aligned(np.asarray(mask), scores)
    return blocked if future is None else blocked | future


def _aligned(mask: np.ndarray, scores: tuple[int, ...]) -> np.ndarray:
    """The mask with axes that line up with those of the scores; never one that can be read in two ways."""
    if mask.dtype != bool:
        raise TypeError(
            f"attention: a mask is boolean and True means blocked, got {mask.dtype}; "
            "write `keep == 0` for one that marks what to keep, `mask < 0` for one that would be added"
        )
    *batch, Tq, Tk = scores
    pairs, padding = mask.shape == (Tq, Tk), mask.shape == (*batch[:1], Tk)
    if pairs and padding and Tq > 1:
        raise ValueError(
            f"attention: a mask {mask.shape} could mean (Tq, Tk) or (B, Tk) for scores {scores}; give it all "
            f"{len(scores)} axes: mask{[None] * len(batch)} or mask[:, {'None, ' * len(batch)}:]"
        )
    if padding:
        return mask.reshape(*batch[:1], *[1] * len(batch), Tk)  # (B, Tk) -> (B, 1, 1, Tk)
    same_axes = mask.ndim == len(scores) and mask.shape[-1] == Tk
    if pairs or (same_axes and all(n in (1, m) for n, m in zip(mask.shape, scores))):
        return mask
    raise ValueError(
        f"attention: a mask {mask.shape} doesn't fit scores {scores}; it can be (Tq, Tk) = {(Tq, Tk)}, "
        f"(B, Tk) for padding, or have {len(scores)} axes, each as long as those of the scores or 1"
    )


def _check_tokens(layer: str, shape: tuple[int, ...], width: int) -> None:
    if len(shape) not in (2, 3) or shape[-1] != width:
        raise ValueError(f"{layer}: the input must be (T, {width}) or (B, T, {width}), got {shape}")
