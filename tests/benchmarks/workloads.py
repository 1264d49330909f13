"""What is measured: the sizes, and the same weights and the same batch for every subject.

A subject is a module (`ours`, `peer_torch`, ...) with a class per kind of job. A job is built from the
arrays below, names its `phases` (methods that together are one step), and gives `result()`: arrays
that every subject must agree on before anything is timed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

Array = np.ndarray


@dataclass(frozen=True)
class Size:
    """A GPT and its batch: B sequences of T tokens, width C = n_embd."""

    T: int
    B: int
    n_layer: int
    n_head: int
    n_embd: int
    vocab: int = 65

    @property
    def n_params(self) -> int:
        return sum(w.size for w in weights(self).values())


SIZES = {
    "S": Size(T=16, B=8, n_layer=1, n_head=2, n_embd=32),
    "M": Size(T=32, B=16, n_layer=2, n_head=4, n_embd=64),
    "L": Size(T=64, B=12, n_layer=4, n_head=4, n_embd=128),  # nanoGPT's CPU recipe
    "XL": Size(T=256, B=16, n_layer=6, n_head=6, n_embd=384),  # its GPU recipe, with a smaller batch
}

# The optimizer of every subject: AdamW, decay on matrices only, gradients clipped to norm 1.
LR, BETA1, BETA2, EPS, WEIGHT_DECAY, MAX_NORM = 1e-3, 0.9, 0.99, 1e-8, 0.1, 1.0


def size(name: str) -> Size:
    """A size by its name, or by its numbers: "L" or "T,B,n_layer,n_head,n_embd"."""
    return SIZES[name] if name in SIZES else Size(*map(int, name.split(",")))


def weights(s: Size) -> dict[str, Array]:
    """GPT-2's names; matrices are (d_in, d_out); no biases; the head is wte (tied)."""
    rng = np.random.default_rng(0)

    def normal(*shape: int, std: float = 0.02) -> Array:
        return (std * rng.standard_normal(shape)).astype(np.float32)

    C, out_std = s.n_embd, 0.02 / (2 * s.n_layer) ** 0.5
    w = {"wte.weight": normal(s.vocab, C), "wpe.weight": normal(s.T, C)}
    for i in range(s.n_layer):
        w |= {
            f"h.{i}.ln_1.weight": np.ones(C, np.float32),
            f"h.{i}.attn.c_attn.weight": normal(C, 3 * C),
            f"h.{i}.attn.c_proj.weight": normal(C, C, std=out_std),
            f"h.{i}.ln_2.weight": np.ones(C, np.float32),
            f"h.{i}.mlp.c_fc.weight": normal(C, 4 * C),
            f"h.{i}.mlp.c_proj.weight": normal(4 * C, C, std=out_std),
        }
    return w | {"ln_f.weight": np.ones(C, np.float32)}


def batch(s: Size) -> tuple[Array, Array]:
    """Token ids (B, T) and the targets (B, T)."""
    ids = np.random.default_rng(1).integers(0, s.vocab, (s.B, s.T + 1))
    return np.ascontiguousarray(ids[:, :-1]), np.ascontiguousarray(ids[:, 1:])


def attention(T: int, heads: int = 4, width: int = 64) -> list[Array]:
    """q, k, v and the incoming gradient, each (1, heads, T, width)."""
    rng = np.random.default_rng(2)
    return [rng.standard_normal((1, heads, T, width), dtype=np.float32) for _ in range(4)]


def by_hand(T: int = 5, C: int = 1536) -> list[Array]:
    """The chapter's full size: X (5, 1536), W_Q, W_K, W_V (1536, 1536), the incoming gradient (5, 1536)."""
    rng = np.random.default_rng(3)
    std = C**-0.5
    W = [(std * rng.standard_normal((C, C))).astype(np.float32) for _ in range(3)]
    return [rng.standard_normal((T, C), dtype=np.float32), *W, rng.standard_normal((T, C), dtype=np.float32)]
