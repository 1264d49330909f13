"""Layers, attention and a GPT, on the operations of the package."""

from .attention import (
    KeyValueCache,
    MultiHeadAttention,
    SelfAttention,
    causal_mask,
    scaled_dot_product_attention,
)
from .gpt import GPT, Block, GPTConfig, token_probabilities
from .layers import MLP, Dropout, Embedding, LayerNorm, Linear
from .module import Module, Parameter

__all__ = [
    "GPT",
    "MLP",
    "Block",
    "Dropout",
    "Embedding",
    "GPTConfig",
    "KeyValueCache",
    "LayerNorm",
    "Linear",
    "Module",
    "MultiHeadAttention",
    "Parameter",
    "SelfAttention",
    "causal_mask",
    "scaled_dot_product_attention",
    "token_probabilities",
]
