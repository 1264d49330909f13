"""This project, through its public names only."""

from __future__ import annotations

import numpy as np
import workloads as wl

import tinygrad_attn as ta


def gpt(s: wl.Size) -> ta.nn.GPT:
    config = ta.nn.GPTConfig(
        block_size=s.T,
        vocab_size=s.vocab,
        n_layer=s.n_layer,
        n_head=s.n_head,
        n_embd=s.n_embd,
        dropout=0.0,
        bias=False,
    )
    model = ta.nn.GPT(config, rng=np.random.default_rng(0))
    model.load_state_dict(wl.weights(s))
    return model


class Train:
    phases = ("forward", "backward", "clip", "optimizer")

    def __init__(self, size: str):
        s = wl.size(size)
        self.model = gpt(s)
        self.params = list(self.model.parameters())
        self.adamw = ta.optim.AdamW(
            self.params, lr=wl.LR, betas=(wl.BETA1, wl.BETA2), eps=wl.EPS, weight_decay=wl.WEIGHT_DECAY
        )
        self.ids, self.targets = wl.batch(s)

    def forward(self):
        _, self.loss = self.model(self.ids, self.targets)

    def backward(self):
        self.loss.backward()

    def clip(self):
        ta.optim.clip_grad_norm(self.params, wl.MAX_NORM)

    def optimizer(self):
        self.adamw.step()
        self.adamw.zero_grad()

    def result(self):
        return [self.loss.numpy()]


class Attention:
    phases = ("forward", "backward")

    def __init__(self, T: str):
        *qkv, self.g = wl.attention(int(T))
        self.qkv = [ta.Tensor(a, requires_grad=True) for a in qkv]

    def forward(self):
        for t in self.qkv:
            t.grad = None
        self.out = ta.nn.scaled_dot_product_attention(*self.qkv, causal=True)

    def backward(self):
        self.out.backward(self.g)

    def result(self):
        return [self.out.numpy(), *(t.grad.numpy() for t in self.qkv)]


class ByHand:
    phases = ("forward", "backward")

    def __init__(self):
        *given, self.g = wl.by_hand()
        self.leaves = [ta.Tensor(a, requires_grad=True) for a in given]

    def forward(self):
        for t in self.leaves:
            t.grad = None
        X, W_Q, W_K, W_V = self.leaves
        self.out = ta.nn.scaled_dot_product_attention(X @ W_Q, X @ W_K, X @ W_V)

    def backward(self):
        self.out.backward(self.g)

    def result(self):
        return [self.out.numpy(), *(t.grad.numpy() for t in self.leaves)]


class Chain:
    phases = ("forward", "backward")

    def __init__(self, n: str):
        self.n = int(n)
        self.x = ta.Tensor(np.ones(1, np.float32), requires_grad=True)

    def forward(self):
        self.x.grad = None
        y = self.x
        for _ in range(self.n // 2):
            y = y * 0.999
            y = y + 0.001
        self.y = y.sum()

    def backward(self):
        self.y.backward()

    def result(self):
        return [self.y.numpy(), self.x.grad.numpy()]


class Generate:
    phases = ("step",)

    def __init__(self, size: str, tokens: str):
        self.model = gpt(wl.size(size))
        self.tokens, self.rng = int(tokens), np.random.default_rng(0)

    def step(self):
        self.ids = self.model.generate(np.zeros((1, 1), int), self.tokens, rng=self.rng)

    def result(self):
        return [float(np.shape(self.ids)[1])]
