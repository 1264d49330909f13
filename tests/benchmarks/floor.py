"""The floor: nothing but the matrix products of a step, forward and backward, in NumPy into ready buffers.

A product Y = A B costs two more backward: dA = dY B^T and dB = A^T dY. A framework on this NumPy cannot be
faster than this (one that never computes the masked half of causal attention can).
"""

from __future__ import annotations

import numpy as np
import workloads as wl


class Products:
    """(A, B) pairs; each is multiplied forward, and twice backward."""

    phases = ("forward", "backward")

    def __init__(self, pairs):
        pairs = list(pairs)
        self.pairs = [(A, B, np.ones(A.shape[:-1] + B.shape[-1:], np.float32)) for A, B in pairs]
        self.grads = [(np.empty_like(A), np.empty_like(B)) for A, B in pairs]

    def forward(self):
        for A, B, Y in self.pairs:
            np.matmul(A, B, out=Y)

    def backward(self):
        for (A, B, dY), (dA, dB) in zip(reversed(self.pairs), reversed(self.grads), strict=True):
            np.matmul(dY, B.mT, out=dA)
            np.matmul(A.mT, dY, out=dB)

    def result(self):
        return []


def random(*shape: int):
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


def attention_pairs(B: int, H: int, T: int, d: int):
    yield random(B, H, T, d), random(B, H, T, d).mT  # scores = Q K^T
    yield random(B, H, T, T), random(B, H, T, d)  # output = weights V


class Train(Products):
    def __init__(self, size: str):
        s = wl.size(size)
        C, N = s.n_embd, s.B * s.T
        pairs = []
        for _ in range(s.n_layer):
            pairs.append((random(N, C), random(C, 3 * C)))
            pairs.extend(attention_pairs(s.B, s.n_head, s.T, C // s.n_head))
            pairs.append((random(N, C), random(C, C)))
            pairs.append((random(N, C), random(C, 4 * C)))
            pairs.append((random(N, 4 * C), random(4 * C, C)))
        super().__init__([*pairs, (random(N, C), random(s.vocab, C).T)])


class Attention(Products):
    def __init__(self, T: str):
        super().__init__(attention_pairs(1, 4, int(T), 64))


class ByHand(Products):
    def __init__(self):
        X, *weights, _ = wl.by_hand()
        super().__init__([*((X, W) for W in weights), *attention_pairs(1, 1, *X.shape)])
