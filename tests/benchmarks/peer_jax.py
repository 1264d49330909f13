"""JAX as its users run it: pure functions, one jitted step with its buffers donated."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import workloads as wl
from jax import nn


def layer_norm(x, weight):
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * weight


def attend(q, k, v, causal):
    """(B, T, H, d) each."""
    return nn.dot_product_attention(q, k, v, is_causal=causal)


def loss_of(w, ids, targets, n_layer, n_head):
    x = w["wte.weight"][ids] + w["wpe.weight"][: ids.shape[1]]
    B, T, C = x.shape
    for i in range(n_layer):
        qkv = layer_norm(x, w[f"h.{i}.ln_1.weight"]) @ w[f"h.{i}.attn.c_attn.weight"]
        q, k, v = (t.reshape(B, T, n_head, -1) for t in jnp.split(qkv, 3, axis=-1))
        x = x + attend(q, k, v, causal=True).reshape(B, T, C) @ w[f"h.{i}.attn.c_proj.weight"]
        hidden = nn.gelu(layer_norm(x, w[f"h.{i}.ln_2.weight"]) @ w[f"h.{i}.mlp.c_fc.weight"], approximate=True)
        x = x + hidden @ w[f"h.{i}.mlp.c_proj.weight"]
    log_p = nn.log_softmax(layer_norm(x, w["ln_f.weight"]) @ w["wte.weight"].T)
    return -jnp.take_along_axis(log_p, targets[..., None], axis=-1).mean()


def adamw(w, grads, m, v, t):
    norm = jnp.sqrt(sum((g**2).sum() for g in grads.values()))
    grads = {n: g * jnp.minimum(1.0, wl.MAX_NORM / (norm + 1e-6)) for n, g in grads.items()}
    m = {n: wl.BETA1 * m[n] + (1 - wl.BETA1) * g for n, g in grads.items()}
    v = {n: wl.BETA2 * v[n] + (1 - wl.BETA2) * g**2 for n, g in grads.items()}
    c1, c2 = 1 - wl.BETA1**t, 1 - wl.BETA2**t

    def moved(n):
        decayed = w[n] * (1 - wl.LR * wl.WEIGHT_DECAY * (w[n].ndim >= 2))
        return decayed - wl.LR * (m[n] / c1) / (jnp.sqrt(v[n] / c2) + wl.EPS)

    return {n: moved(n) for n in w}, m, v


class Train:
    phases = ("step",)

    def __init__(self, size: str):
        s = wl.size(size)
        self.batch = [jnp.asarray(a) for a in wl.batch(s)]
        self.w = {n: jnp.array(w) for n, w in wl.weights(s).items()}
        self.m, self.v = ({n: jnp.zeros_like(w) for n, w in self.w.items()} for _ in range(2))
        self.t = 0

        def update(w, m, v, t, ids, targets):
            loss, grads = jax.value_and_grad(loss_of)(w, ids, targets, s.n_layer, s.n_head)
            return loss, *adamw(w, grads, m, v, t)

        self.update = jax.jit(update, donate_argnums=(0, 1, 2))

    def step(self):
        self.t += 1
        self.loss, self.w, self.m, self.v = self.update(self.w, self.m, self.v, float(self.t), *self.batch)
        jax.block_until_ready(self.w)

    def result(self):
        return [np.asarray(self.loss)]


class Attention:
    phases = ("step",)

    def __init__(self, T: str):
        self.given = [jnp.asarray(a) for a in wl.attention(int(T))]

        def forward_backward(q, k, v, g):
            def f(*qkv):
                return attend(*(t.swapaxes(1, 2) for t in qkv), causal=True).swapaxes(1, 2)

            out, pull = jax.vjp(f, q, k, v)
            return out, *pull(g)

        self.f = jax.jit(forward_backward)

    def step(self):
        self.outputs = jax.block_until_ready(self.f(*self.given))

    def result(self):
        return [np.asarray(a) for a in self.outputs]


class ByHand:
    phases = ("step",)

    def __init__(self):
        self.given = [jnp.asarray(a) for a in wl.by_hand()]

        def forward_backward(X, W_Q, W_K, W_V, g):
            def f(X, *weights):
                return attend(*((X @ W)[None, :, None] for W in weights), causal=False)[0, :, 0]

            out, pull = jax.vjp(f, X, W_Q, W_K, W_V)
            return out, *pull(g)

        self.f = jax.jit(forward_backward)

    def step(self):
        self.outputs = jax.block_until_ready(self.f(*self.given))

    def result(self):
        return [np.asarray(a) for a in self.outputs]


class Chain:
    def __init__(self, n: str):
        raise NotImplementedError("a compiler would fold the chain away")
