"""A GPT: token and position embeddings, a stack of pre-norm blocks, and the embedding again as the way out.

GPT-2's architecture and names (Radford et al., 2019), with nanoGPT's configuration and initialisation.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import ArrayLike

from ..modes import no_grad
from ..ops.nn import cross_entropy, softmax
from ..tensor import Tensor
from .attention import KeyValueCache, Mask, MultiHeadAttention
from .layers import MLP, Dropout, Embedding, LayerNorm, positive
from .module import Module, Rng, generator

if TYPE_CHECKING:
    from ..data import CharTokenizer


@dataclass(frozen=True)
class GPTConfig:
    """The size of a `GPT`; the defaults are those of the smallest GPT-2. Refuses what can't be built.

    >>> ta.nn.GPTConfig(n_head=5)
    Traceback (most recent call last):
        ...
    ValueError: GPTConfig: n_head=5 heads don't divide n_embd=768
    """

    block_size: int = 1024  # the longest sequence, in tokens
    vocab_size: int = 50257
    n_layer: int = 12
    n_head: int = 12
    n_embd: int = 768
    dropout: float = 0.0
    bias: bool = True  # in the Linears and the LayerNorms

    def __post_init__(self) -> None:
        sizes = {field.name: getattr(self, field.name) for field in fields(self) if field.type == "int"}
        positive("GPTConfig", **sizes)
        for name, size in sizes.items():
            object.__setattr__(self, name, int(size))
        if self.n_embd % self.n_head:
            raise ValueError(f"GPTConfig: n_head={self.n_head} heads don't divide n_embd={self.n_embd}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"GPTConfig: dropout must be at least 0 and below 1, got {self.dropout}")


class Block(Module):
    """One layer of a transformer: attention, then the MLP, each on the normed stream and added to it."""

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
        rng = generator(rng)
        self.ln_1 = LayerNorm(d_model, bias=bias)
        self.attn = MultiHeadAttention(d_model, n_head, causal=causal, dropout=dropout, bias=bias, rng=rng)
        self.ln_2 = LayerNorm(d_model, bias=bias)
        self.mlp = MLP(d_model, dropout=dropout, bias=bias, rng=rng)

    def forward(
        self, x: Tensor, mask: Mask | None = None, return_weights: bool = False, past: KeyValueCache | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        """(B, T, C) -> (B, T, C), with `return_weights` also (B, H, T, T)."""
        attended = self.attn(self.ln_1(x), mask, return_weights, past)
        y, weights = attended if return_weights else (attended, None)
        x = x + y  # tokens look at each other
        x = x + self.mlp(self.ln_2(x))  # each thinks for itself
        return x if weights is None else (x, weights)


class GPT(Module):
    """A causal language model. Its state dict has GPT-2's names; the output layer is `wte` transposed.

    Weights start normal with standard deviation 0.02, those of the layers that end in the residual stream
    (`c_proj`) 0.02/sqrt(2 n_layer), biases 0 and gains 1. `rng` draws them, and then the dropout; where it is
    missing it is `np.random.default_rng(0)`.

    >>> config = ta.nn.GPTConfig(block_size=8, vocab_size=5, n_layer=1, n_head=2, n_embd=4)
    >>> model = ta.nn.GPT(config, rng=np.random.default_rng(0))
    >>> logits, loss = model([[0, 1, 2]], targets=[[1, 2, 3]])
    >>> logits.shape, loss.shape
    ((1, 3, 5), ())
    >>> model.generate([0, 1], 3, temperature=0).shape
    (5,)
    """

    _past: Sequence[KeyValueCache] | None = None

    def __init__(self, config: GPTConfig, *, rng: Rng = None):
        rng = generator(rng)
        width, bias, drop = config.n_embd, config.bias, config.dropout
        self.config = config
        self.wte = Embedding(config.vocab_size, width, rng=rng)
        self.wpe = Embedding(config.block_size, width, rng=rng)
        self.dropout = Dropout(drop, rng=rng)
        self.h = [Block(width, config.n_head, dropout=drop, bias=bias, rng=rng) for _ in range(config.n_layer)]
        self.ln_f = LayerNorm(width, bias=bias)
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                parameter.data = np.zeros_like(parameter.data)
            elif parameter.ndim == 2:
                std = 0.02 / math.sqrt(2 * config.n_layer) if name.endswith("c_proj.weight") else 0.02
                parameter.data = (std * rng.standard_normal(parameter.shape)).astype(parameter.dtype)

    def forward(self, ids: ArrayLike, targets: ArrayLike | None = None) -> tuple[Tensor, Tensor | None]:
        """ids (B, T) -> logits (B, T, V), and the mean cross entropy with targets (B, T), else None.

        Both also without B. More than `block_size` tokens are a ValueError. Inside `remembering` the ids
        continue the tokens of the calls before.
        """
        past: Sequence[KeyValueCache | None] = self._past or [None] * len(self.h)
        x = self.embed(ids, start=len(past[0] or ()))
        for block, cache in zip(self.h, past):
            x = block(x, past=cache)
        logits = self.ln_f(x) @ self.wte.weight.mT  # (B, T, C) @ (C, V) -> (B, T, V)
        return logits, None if targets is None else cross_entropy(logits, targets)

    def embed(self, ids: ArrayLike, start: int = 0) -> Tensor:
        """What goes into the first block, of tokens at positions `start` and on: (B, T) -> (B, T, C)."""
        ids = np.asarray(ids)
        T = start + ids.shape[-1] if ids.ndim else 0
        if ids.ndim not in (1, 2) or not start < T <= self.config.block_size:
            raise ValueError(
                f"GPT: ids must be (T,) or (B, T) with at least 1 token and at most "
                f"block_size={self.config.block_size}, got {ids.shape}, {T} tokens"
            )
        x: Tensor = self.dropout(self.wte(ids) + self.wpe.weight[start:T])  # (B, T, C) + (T, C)
        return x

    @contextmanager
    def remembering(self, past: Sequence[KeyValueCache]) -> Iterator[Self]:
        """For a `with` block, calls continue the tokens whose keys and values are in `past`, and add theirs.

        `past` holds one cache for each layer.

        >>> model = ta.nn.GPT(ta.nn.GPTConfig(block_size=8, vocab_size=5, n_layer=1, n_head=2, n_embd=4))
        >>> whole, _ = model([0, 1, 2])
        >>> with model.remembering([ta.nn.KeyValueCache()]):
        ...     first, _ = model([0, 1])
        ...     last, _ = model([2])
        >>> np.allclose(last.numpy(), whole.numpy()[2:])
        True
        """
        self._past = past
        try:
            yield self
        finally:
            self._past = None

    @no_grad()
    def attention_weights(self, ids: ArrayLike) -> np.ndarray:
        """Who attends to whom, without dropout: ids (B, T) -> (n_layer, B, H, T, T); both also without B."""
        layers = []
        with self.evaluating():
            x = self.embed(ids)
            for block in self.h:
                x, weights = block(x, return_weights=True)
                layers.append(weights.data)
        return np.stack(layers)

    def generate(
        self,
        ids: ArrayLike,
        max_new_tokens: int,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        rng: Rng = None,
    ) -> np.ndarray:
        """Continue a prompt: ids (B, T) -> (B, T + max_new_tokens); both also without B.

        Each next token is drawn by `rng` from `token_probabilities(logits, temperature, top_k)`. The model
        sees the last `block_size` tokens, in evaluation mode, and builds no graph. An empty prompt is a
        ValueError.
        """
        with self.evaluating():
            drawn = self.stream(ids, max_new_tokens, temperature=temperature, top_k=top_k, rng=rng)
            return np.concatenate([ids, *drawn], axis=-1)

    def stream(
        self,
        ids: ArrayLike,
        max_new_tokens: int,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        rng: Rng = None,
    ) -> Iterator[np.ndarray]:
        """The new tokens of `generate` one after another as they are drawn, (B, 1) each; (1,) without B.

        While all tokens fit into a block, their keys and values are kept and only the newest is computed.
        Beyond that the block slides: every token changes its position, and nothing that was kept would hold.
        """
        ids = np.asarray(ids)
        if ids.ndim not in (1, 2) or ids.shape[-1] == 0:
            raise ValueError(f"generate: the prompt must be (T,) or (B, T) with T >= 1, got {ids.shape}")
        if operator.index(max_new_tokens) < 0:
            raise ValueError(f"generate: max_new_tokens must be 0 or more, got {max_new_tokens}")
        if rng is None and temperature != 0:
            raise TypeError("generate: drawing tokens needs rng=np.random.default_rng(seed), or temperature=0")
        past, modules = [KeyValueCache() for _ in self.h], [module for _, module in self.named_modules()]

        def tokens(ids: np.ndarray) -> Iterator[np.ndarray]:
            for _ in range(max_new_tokens):
                training = any(module.training for module in modules)  # it may have been switched between two tokens
                with no_grad(), self.evaluating() if training else nullcontext():
                    if ids.shape[-1] <= self.config.block_size:
                        with self.remembering(past):
                            logits, _ = self(ids[..., len(past[0]) :])  # (B, new) -> (B, new, V)
                    else:
                        logits, _ = self(ids[..., -self.config.block_size :])  # (B, block) -> (B, block, V)
                token = _draw(token_probabilities(logits.data[..., -1, :], temperature, top_k), rng)  # (B, V) -> (B, 1)
                ids = np.concatenate([ids, token], axis=-1)
                yield token

        return tokens(ids)

    def save_pretrained(self, directory: str | Path, tokenizer: CharTokenizer | None = None) -> None:
        """Write the model as `transformers.GPT2LMHeadModel.from_pretrained(directory)` reads it.

        With a tokenizer, `AutoTokenizer` finds one token per character there too.
        """
        from .pretrained import save_pretrained

        save_pretrained(self, directory, tokenizer)

    @staticmethod
    def from_pretrained(directory: str | Path, *, rng: Rng = None) -> GPT:
        """Read a GPT-2 that `transformers` or `save_pretrained` wrote; `rng` draws its dropout."""
        from .pretrained import from_pretrained

        return from_pretrained(directory, rng=rng)

    def describe(self) -> str:
        return f"{self.num_parameters():,} parameters"


def token_probabilities(logits: ArrayLike, temperature: float = 1.0, top_k: int | None = None) -> np.ndarray:
    """The distribution that the next token is drawn from: (..., V) -> (..., V), float64.

    softmax(logits / temperature) over the `top_k` largest logits; temperature 0 is its limit, certainty of
    the largest. Of equal logits the first counts as larger, so that exactly `top_k` tokens can be drawn. A
    `top_k` beyond V is no limit. Logits with NaN or +inf are a ValueError.

    >>> ta.nn.token_probabilities([1.0, 2.0, 3.0, 4.0], top_k=2).round(3)
    array([0.   , 0.   , 0.269, 0.731])
    >>> ta.nn.token_probabilities([1.0, 3.0, 2.0], temperature=0)
    array([0., 1., 0.])
    """
    logits = np.asarray(logits, np.float64)
    if not (logits < np.inf).all() or not np.isfinite(logits.max(axis=-1)).all():
        raise ValueError("token_probabilities: NaN, +inf or nothing but -inf in the logits: nothing can be drawn")
    if not 0 <= temperature < math.inf:
        raise ValueError(f"token_probabilities: temperature must be 0 or more and finite, got {temperature}")
    if top_k is not None and operator.index(top_k) < 1:
        raise ValueError(f"token_probabilities: top_k must be at least 1, or None for no limit, got {top_k}")
    keep = 1 if temperature == 0 else top_k
    below_top = logits - logits.max(axis=-1, keepdims=True)
    if keep is not None:
        order = np.argsort(-below_top, axis=-1, kind="stable")
        np.put_along_axis(below_top, order[..., keep:], -np.inf, axis=-1)
    with np.errstate(over="ignore"):  # a tiny temperature: everything below the top goes to -inf
        probabilities: np.ndarray = softmax.of(below_top / (temperature or 1.0), -1)
    return probabilities


def _draw(probabilities: np.ndarray, rng: Rng) -> np.ndarray:
    """One token per row, (..., V) -> (..., 1): the first whose cumulative probability exceeds a draw."""
    reached = probabilities.cumsum(axis=-1)
    level = 0.0 if rng is None else rng.random((*probabilities.shape[:-1], 1))
    return np.asarray(np.argmax(reached > level * reached[..., -1:], axis=-1, keepdims=True))
