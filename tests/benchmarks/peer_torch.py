"""PyTorch as its users run it: nanoGPT's model, fused attention kernel, AdamW and clipping at their defaults.

On a CPU the defaults of `AdamW` and `clip_grad_norm_` are the loop over tensors (neither foreach nor fused);
`tuned=True` asks for the fused AdamW instead. `compiled=True` compiles the model, as nanoGPT does.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
import workloads as wl
from torch import nn


class Block(nn.Module):
    def __init__(self, C: int, n_head: int):
        super().__init__()
        self.n_head = n_head
        self.ln_1, self.ln_2 = nn.LayerNorm(C, bias=False), nn.LayerNorm(C, bias=False)
        self.attn = nn.ModuleDict({"c_attn": nn.Linear(C, 3 * C, bias=False), "c_proj": nn.Linear(C, C, bias=False)})
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(C, 4 * C, bias=False), "c_proj": nn.Linear(4 * C, C, bias=False)})

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (
            t.view(B, T, self.n_head, -1).transpose(1, 2) for t in self.attn.c_attn(self.ln_1(x)).split(C, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))
        return x + self.mlp.c_proj(F.gelu(self.mlp.c_fc(self.ln_2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, s: wl.Size):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(s.vocab, s.n_embd), nn.Embedding(s.T, s.n_embd)
        self.h = nn.ModuleList(Block(s.n_embd, s.n_head) for _ in range(s.n_layer))
        self.ln_f = nn.LayerNorm(s.n_embd, bias=False)
        linear = {f"{name}.weight" for name, m in self.named_modules() if isinstance(m, nn.Linear)}
        given = wl.weights(s).items()
        self.load_state_dict({n: torch.from_numpy(w.T.copy() if n in linear else w) for n, w in given})

    def forward(self, ids, targets=None):
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for block in self.h:
            x = block(x)
        if targets is None:  # generating: only the last position matters
            return F.linear(self.ln_f(x[:, [-1], :]), self.wte.weight), None
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return logits, F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


class Train:
    phases = ("forward", "backward", "clip", "optimizer")

    def __init__(self, size: str, compiled: bool = False, tuned: bool = False):
        s = wl.size(size)
        model = GPT(s)
        self.params = list(model.parameters())
        groups = [
            {"params": [p for p in self.params if p.ndim >= 2], "weight_decay": wl.WEIGHT_DECAY},
            {"params": [p for p in self.params if p.ndim < 2], "weight_decay": 0.0},
        ]
        self.adamw = torch.optim.AdamW(
            groups, lr=wl.LR, betas=(wl.BETA1, wl.BETA2), eps=wl.EPS, fused=True if tuned else None
        )
        self.model = torch.compile(model) if compiled else model
        self.ids, self.targets = map(torch.from_numpy, wl.batch(s))

    def forward(self):
        _, self.loss = self.model(self.ids, self.targets)

    def backward(self):
        self.loss.backward()

    def clip(self):
        nn.utils.clip_grad_norm_(self.params, wl.MAX_NORM)

    def optimizer(self):
        self.adamw.step()
        self.adamw.zero_grad(set_to_none=True)

    def result(self):
        return [self.loss.detach().numpy()]


class Attention:
    phases = ("forward", "backward")

    def __init__(self, T: str, compiled: bool = False, tuned: bool = False):
        *qkv, self.g = map(torch.from_numpy, wl.attention(int(T)))
        self.qkv = [t.requires_grad_() for t in qkv]
        self.f = torch.compile(self.attend) if compiled else self.attend

    @staticmethod
    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def forward(self):
        for t in self.qkv:
            t.grad = None
        self.out = self.f(*self.qkv)

    def backward(self):
        self.out.backward(self.g)

    def result(self):
        return [self.out.detach().numpy(), *(t.grad.numpy() for t in self.qkv)]


class ByHand:
    phases = ("forward", "backward")

    def __init__(self, compiled: bool = False, tuned: bool = False):
        *given, self.g = map(torch.from_numpy, wl.by_hand())
        self.leaves = [t.requires_grad_() for t in given]
        self.f = torch.compile(self.attend) if compiled else self.attend

    @staticmethod
    def attend(X, W_Q, W_K, W_V):
        return F.scaled_dot_product_attention(*((X @ W)[None] for W in (W_Q, W_K, W_V)))[0]

    def forward(self):
        for t in self.leaves:
            t.grad = None
        self.out = self.f(*self.leaves)

    def backward(self):
        self.out.backward(self.g)

    def result(self):
        return [self.out.detach().numpy(), *(t.grad.numpy() for t in self.leaves)]


class Chain:
    phases = ("forward", "backward")

    def __init__(self, n: str, compiled: bool = False, tuned: bool = False):
        if compiled:
            raise NotImplementedError("a compiler would fold the chain away")
        self.n = int(n)
        self.x = torch.ones(1, requires_grad=True)

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
        return [self.y.detach().numpy(), self.x.grad.numpy()]


class Generate:
    """nanoGPT's loop: no cache, the context cropped to the block, one token drawn at a time."""

    phases = ("step",)

    def __init__(self, size: str, tokens: str, compiled: bool = False, tuned: bool = False):
        if compiled:
            raise NotImplementedError("every length would be compiled anew")
        self.s, self.tokens = wl.size(size), int(tokens)
        self.model = GPT(self.s).eval()

    @torch.no_grad()
    def step(self):
        ids = torch.zeros((1, 1), dtype=torch.long)
        for _ in range(self.tokens):
            logits, _ = self.model(ids[:, -self.s.T :])
            ids = torch.cat((ids, torch.multinomial(F.softmax(logits[:, -1], dim=-1), 1)), dim=1)
        self.ids = ids

    def result(self):
        return [float(self.ids.shape[1])]
