"""HIPS autograd: the same model in plain NumPy calls, and AdamW in NumPy (the library has none in float32).

Its rules for `mean`, `var` and powers divide by NumPy integers or 0-d arrays, which would turn everything
into float64; sums and products written out keep float32.
"""

from __future__ import annotations

import autograd.numpy as np
import workloads as wl
from autograd import make_vjp, value_and_grad


def mean(x):
    return np.sum(x, axis=-1, keepdims=True) * (1.0 / x.shape[-1])


def layer_norm(x, weight):
    centred = x - mean(x)
    return centred / np.sqrt(mean(centred * centred) + 1e-5) * weight


def softmax(x):
    e = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return e / np.sum(e, axis=-1, keepdims=True)


def gelu(x):
    return 0.5 * x * (1.0 + np.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))


def attend(q, k, v, causal):
    """(..., T, d) each."""
    scores = np.matmul(q, np.swapaxes(k, -1, -2)) * q.shape[-1] ** -0.5
    if causal:
        T = q.shape[-2]
        scores = np.where(np.triu(np.ones((T, T), bool), 1), np.float32(-np.inf), scores)
    return np.matmul(softmax(scores), v)


def loss_of(w, ids, targets, n_layer, n_head):
    B, T = ids.shape
    x = w["wte.weight"][ids] + w["wpe.weight"][:T]
    C = x.shape[-1]
    for i in range(n_layer):
        qkv = np.dot(layer_norm(x, w[f"h.{i}.ln_1.weight"]), w[f"h.{i}.attn.c_attn.weight"])
        q, k, v = (np.swapaxes(np.reshape(t, (B, T, n_head, -1)), 1, 2) for t in np.split(qkv, 3, axis=-1))
        y = np.reshape(np.swapaxes(attend(q, k, v, causal=True), 1, 2), (B, T, C))
        x = x + np.dot(y, w[f"h.{i}.attn.c_proj.weight"])
        hidden = gelu(np.dot(layer_norm(x, w[f"h.{i}.ln_2.weight"]), w[f"h.{i}.mlp.c_fc.weight"]))
        x = x + np.dot(hidden, w[f"h.{i}.mlp.c_proj.weight"])
    logits = np.reshape(np.dot(layer_norm(x, w["ln_f.weight"]), w["wte.weight"].T), (B * T, -1))
    shifted = logits - np.max(logits, axis=-1, keepdims=True)
    log_p = shifted - np.log(np.sum(np.exp(shifted), axis=-1, keepdims=True))
    return -np.sum(log_p[np.arange(B * T), targets.reshape(-1)]) * (1.0 / (B * T))


class Train:
    phases = ("step", "optimizer")

    def __init__(self, size: str):
        s = wl.size(size)
        ids, targets = wl.batch(s)
        self.w = wl.weights(s)
        self.m, self.v = ({n: np.zeros_like(w) for n, w in self.w.items()} for _ in range(2))
        self.t = 0
        self.f = value_and_grad(lambda w: loss_of(w, ids, targets, s.n_layer, s.n_head))

    def step(self):
        self.loss, self.grads = self.f(self.w)

    def optimizer(self):
        self.t += 1
        norm = sum(float(np.vdot(g, g)) for g in self.grads.values()) ** 0.5
        shrink = min(1.0, wl.MAX_NORM / (norm + 1e-6))
        c1, c2 = 1 - wl.BETA1**self.t, 1 - wl.BETA2**self.t
        for n, w in self.w.items():
            g, m, v = self.grads[n], self.m[n], self.v[n]
            g *= shrink
            m += (1 - wl.BETA1) * (g - m)
            v += (1 - wl.BETA2) * (g * g - v)
            if w.ndim >= 2:
                w *= 1 - wl.LR * wl.WEIGHT_DECAY
            w -= wl.LR / c1 * m / (np.sqrt(v / c2) + wl.EPS)

    def result(self):
        assert all(g.dtype == np.float32 for g in self.grads.values())
        return [self.loss]


class Attention:
    phases = ("forward", "backward")

    def __init__(self, T: str):
        *qkv, self.g = wl.attention(int(T))
        self.qkv = tuple(qkv)

    def forward(self):
        self.pull, self.out = make_vjp(lambda qkv: attend(*qkv, causal=True))(self.qkv)

    def backward(self):
        self.grads = self.pull(self.g)

    def result(self):
        return [self.out, *self.grads]


class ByHand:
    phases = ("forward", "backward")

    def __init__(self):
        *given, self.g = wl.by_hand()
        self.given = tuple(given)

    @staticmethod
    def attend(given):
        X, *weights = given
        return attend(*(np.dot(X, W) for W in weights), causal=False)

    def forward(self):
        self.pull, self.out = make_vjp(self.attend)(self.given)

    def backward(self):
        self.grads = self.pull(self.g)

    def result(self):
        return [self.out, *self.grads]


class Chain:
    phases = ("forward", "backward")

    def __init__(self, n: str):
        self.n = int(n)
        self.x = np.ones(1, np.float32)

    def chain(self, y):
        for _ in range(self.n // 2):
            y = y * 0.999
            y = y + 0.001
        return np.sum(y)

    def forward(self):
        self.pull, self.y = make_vjp(self.chain)(self.x)

    def backward(self):
        self.grad = self.pull(np.float32(1.0))

    def result(self):
        return [self.y, self.grad]
