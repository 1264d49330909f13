"""GPT-2's own file layout, as Hugging Face writes it: models leave for `transformers` and come from there.

Arrays need a prefix and no conversion: names and the (d_in, d_out) orientation of weights are GPT-2's here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .gpt import GPT, GPTConfig
from .layers import LayerNorm, Linear

if TYPE_CHECKING:
    from ..data import CharTokenizer

PREFIX = "transformer."
BUFFERS = (".attn.bias", ".attn.masked_bias")  # causal masks that older files carry along
# What this GPT computes; another value in a config means another model.
FIXED: dict[str, Any] = {
    "model_type": "gpt2",
    "activation_function": "gelu_new",
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
}


def save_pretrained(model: GPT, directory: str | Path, tokenizer: CharTokenizer | None = None) -> None:
    """Write `config.json` and `model.safetensors`, and with a tokenizer `tokenizer.json` and its config."""
    c, directory = model.config, Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    config = FIXED | {
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": c.vocab_size,
        "n_positions": c.block_size,
        "n_embd": c.n_embd,
        "n_layer": c.n_layer,
        "n_head": c.n_head,
        "bias": c.bias,  # unknown elsewhere: GPT-2 always has biases, and without them gets zeros
        **dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), c.dropout),
        "layer_norm_epsilon": model.ln_f.eps,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    arrays = {PREFIX + name: np.asarray(array, order="C") for name, array in model.state_dict().items()}
    for name, module in model.named_modules():
        if isinstance(module, Linear | LayerNorm) and module.bias is None:
            arrays[f"{PREFIX}{name}.bias"] = np.zeros(module.weight.shape[-1], module.weight.dtype)
    blob: bytes = require_safetensors().save(arrays, metadata={"format": "pt"})
    (directory / "model.safetensors").write_bytes(blob)
    _write_json(directory / "config.json", config)
    if tokenizer is not None:
        _write_json(directory / "tokenizer.json", _character_tokenizer(tokenizer.vocab))
        kind = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
        _write_json(directory / "tokenizer_config.json", kind | {"model_max_length": c.block_size})


def from_pretrained(directory: str | Path, *, rng: np.random.Generator | None = None) -> GPT:
    """Build a GPT from `config.json` and `model.safetensors` (also in shards); `rng` is for its dropout.

    Raises ValueError where the model is another one than GPT-2's, or the arrays don't fit the config.
    """
    directory = Path(directory)
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    for key, value in FIXED.items():
        if config.get(key, value) != value:
            raise ValueError(f"{directory}: {key} is {config[key]!r}; this GPT has {value!r}")
    state = _read_arrays(directory)
    head = state.pop("lm_head.weight", None)
    if head is not None and not np.array_equal(head, state.get("wte.weight", head)):
        raise ValueError(f"{directory}: lm_head.weight differs from wte.weight; this GPT ties the two")
    biases = {name for name in state if name.endswith(".bias")}
    bias = config.get("bias", True) or any(state[name].any() for name in biases)
    sizes = {key: config[key] for key in ("vocab_size", "n_layer", "n_head", "n_embd")}
    dropout = config.get("resid_pdrop", 0.1)
    model = GPT(GPTConfig(block_size=config["n_positions"], dropout=dropout, bias=bias, **sizes), rng=rng)
    for _, module in model.named_modules():
        if isinstance(module, LayerNorm):
            module.eps = config.get("layer_norm_epsilon", 1e-5)
    model.load_state_dict({name: array for name, array in state.items() if bias or name not in biases})
    return model


def _read_arrays(directory: Path) -> dict[str, np.ndarray]:
    """All arrays by their name in `GPT.state_dict`."""
    files = [*directory.glob("model.safetensors"), *directory.glob("model-*.safetensors")]  # whole, or in shards
    if not files:
        raise FileNotFoundError(f"{directory}: model.safetensors is missing; transformers makes it from older files")
    arrays: dict[str, np.ndarray] = {}
    for path in files:
        arrays |= require_safetensors().load_file(path)
    return {name.removeprefix(PREFIX): array for name, array in arrays.items() if not name.endswith(BUFFERS)}


def _character_tokenizer(vocab: str) -> dict[str, Any]:
    """The `tokenizers` library's description of one token per character; others are errors."""
    return {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": r"[\s\S]"}, "behavior": "Isolated", "invert": False},
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": {c: i for i, c in enumerate(vocab)}, "unk_token": "[UNK]"},
    }


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def require_safetensors() -> Any:
    """The module `safetensors.numpy`, an extra."""
    try:
        import safetensors.numpy
    except ImportError:
        raise ImportError("model files need the safetensors package: pip install 'tinygrad-attn[demos]'") from None
    return safetensors.numpy
