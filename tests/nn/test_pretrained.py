"""The GPT-2 file layout: models go to transformers and come from there, with equal logits and gradients."""

import json

import numpy as np
import pytest

from tinygrad_attn.data import CharTokenizer
from tinygrad_attn.nn import GPT, GPTConfig

tensors = pytest.importorskip("safetensors.numpy")

SIZES = {"block_size": 16, "vocab_size": 11, "n_layer": 2, "n_head": 2, "n_embd": 12}
IDS = np.array([[3, 1, 4, 1, 5, 9, 2, 6], [5, 3, 5, 8, 10, 7, 9, 0]])
NEXT = np.roll(IDS, -1, axis=1)


def random_gpt(rng, **sizes):
    """A model whose every parameter is random, gains and biases too."""
    model = GPT(GPTConfig(**SIZES | sizes), rng=rng)
    for p in model.parameters():
        p.data = p.data + (0.3 * rng.standard_normal(p.shape)).astype(np.float32)
    return model


def edit(directory, **changes):
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


# ---------------------------------------------------------------------------------------------- by itself


@pytest.mark.parametrize("bias", [True, False])
def test_what_is_saved_comes_back_whole(tmp_path, rng, bias):
    model = random_gpt(rng, bias=bias, dropout=0.25)
    model.save_pretrained(tmp_path)
    back = GPT.from_pretrained(tmp_path)
    assert back.config == model.config
    ours, theirs = model.state_dict(), back.state_dict()
    assert list(ours) == list(theirs) and all(np.array_equal(ours[name], theirs[name]) for name in ours)


def test_a_model_without_biases_that_grew_some_elsewhere_has_them_here(tmp_path, rng):
    random_gpt(rng, bias=False).save_pretrained(tmp_path)
    arrays = tensors.load_file(tmp_path / "model.safetensors")
    arrays["transformer.ln_f.bias"] = arrays["transformer.ln_f.bias"] + 1
    tensors.save_file(arrays, tmp_path / "model.safetensors")
    back = GPT.from_pretrained(tmp_path)
    assert back.config.bias and (back.ln_f.bias.data == 1).all()


def test_older_files_without_prefix_and_with_masks_load(tmp_path, rng):
    model = random_gpt(rng)
    model.save_pretrained(tmp_path)
    arrays = {f"h.{i}.attn.bias": np.ones((1, 1, 16, 16), np.float32) for i in range(2)} | model.state_dict()
    tensors.save_file(arrays, tmp_path / "model.safetensors")
    assert np.array_equal(GPT.from_pretrained(tmp_path)(IDS)[0].data, model(IDS)[0].data)


def test_shards_are_put_together(tmp_path, rng):
    model = random_gpt(rng)
    model.save_pretrained(tmp_path)
    arrays = tensors.load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    weight_map = {name: f"model-{i % 2}.safetensors" for i, name in enumerate(arrays)}
    for shard in sorted(set(weight_map.values())):
        tensors.save_file({n: a for n, a in arrays.items() if weight_map[n] == shard}, tmp_path / shard)
    assert np.array_equal(GPT.from_pretrained(tmp_path)(IDS)[0].data, model(IDS)[0].data)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"model_type": "llama"}, "model_type is 'llama'; this GPT has 'gpt2'"),
        ({"activation_function": "relu"}, "activation_function is 'relu'"),
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
        ({"n_layer": 3}, r"missing: h\.2"),
        ({"n_embd": 24}, r"shape \(11, 12\) in the state, \(11, 24\)"),
    ],
)
def test_another_model_than_gpt2_is_refused(tmp_path, rng, changes, message):
    random_gpt(rng).save_pretrained(tmp_path)
    edit(tmp_path, **changes)
    with pytest.raises(ValueError, match=message):
        GPT.from_pretrained(tmp_path)


def test_an_untied_output_layer_is_refused(tmp_path, rng):
    random_gpt(rng).save_pretrained(tmp_path)
    arrays = tensors.load_file(tmp_path / "model.safetensors")
    tensors.save_file(arrays | {"lm_head.weight": arrays["transformer.wte.weight"] + 1}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"lm_head\.weight differs"):
        GPT.from_pretrained(tmp_path)


def test_a_missing_file_is_named(tmp_path, rng):
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        GPT.from_pretrained(tmp_path)
    random_gpt(rng).save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "model-00001-of-00002.safetensors")
    assert GPT.from_pretrained(tmp_path)
    (tmp_path / "model-00001-of-00002.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"model\.safetensors is missing"):
        GPT.from_pretrained(tmp_path)


def test_a_missing_shard_and_another_width_inside_are_reported_by_what_they_lack(tmp_path, rng):
    random_gpt(rng).save_pretrained(tmp_path)
    arrays = tensors.load_file(tmp_path / "model.safetensors")
    tensors.save_file({n: a for n, a in arrays.items() if "wte" not in n}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"missing: wte\.weight"):
        GPT.from_pretrained(tmp_path)
    narrow = {n: a[:, :7] if n.endswith("c_fc.weight") else a for n, a in arrays.items()}
    tensors.save_file({n: np.ascontiguousarray(a) for n, a in narrow.items()}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"c_fc\.weight: shape \(12, 7\) in the state, \(12, 48\)"):
        GPT.from_pretrained(tmp_path)


# ---------------------------------------------------------------------------------------------- transformers


@pytest.fixture(scope="module")
def transformers():
    pytest.importorskip("torch")
    return pytest.importorskip("transformers")


def theirs_on(model, ids, targets):
    import torch

    model.eval()
    logits = model(torch.tensor(ids)).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.tensor(targets).flatten())
    loss.backward()
    return logits.detach().numpy(), loss.item()


def assert_equal(ours, theirs):
    """Logits, loss and every gradient, of our model and theirs."""
    logits, loss = ours(IDS, NEXT)
    loss.backward()
    right_logits, right_loss = theirs_on(theirs, IDS, NEXT)
    assert np.abs(logits.data - right_logits).max() < 1e-4
    assert loss.item() == pytest.approx(right_loss, abs=1e-5)
    gradients = {name.removeprefix("transformer."): p.grad.numpy() for name, p in theirs.named_parameters()}
    for name, p in ours.named_parameters():
        assert np.allclose(p.grad.data, gradients[name], rtol=1e-3, atol=1e-5), name


@pytest.mark.parametrize("bias", [True, False])
def test_a_model_trained_here_runs_in_transformers(tmp_path, rng, transformers, bias):
    model = random_gpt(rng, bias=bias)
    model.save_pretrained(tmp_path)
    theirs, info = transformers.GPT2LMHeadModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    assert_equal(model, theirs)


@pytest.mark.parametrize(
    "sizes",
    [
        {"n_layer": 2, "n_head": 2, "n_embd": 12},
        {"n_layer": 1, "n_head": 3, "n_embd": 24, "layer_norm_epsilon": 1e-3},
        {"n_layer": 3, "n_head": 1, "n_embd": 8, "n_inner": 32},
    ],
)
def test_a_gpt2_saved_by_transformers_runs_here(tmp_path, transformers, sizes):
    import torch

    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=11, n_positions=16, bos_token_id=0, eos_token_id=0, initializer_range=0.3, **sizes
    )
    theirs = transformers.GPT2LMHeadModel(config)
    for p in theirs.parameters():
        p.data += 0.1 * torch.randn_like(p)
    theirs.save_pretrained(tmp_path)
    ours = GPT.from_pretrained(tmp_path)
    assert ours.config.dropout == 0.1
    assert_equal(ours.eval(), theirs)


def test_shards_of_transformers_load(tmp_path, transformers):
    config = transformers.GPT2Config(
        vocab_size=11, n_positions=16, n_layer=2, n_head=2, n_embd=12, bos_token_id=0, eos_token_id=0
    )
    theirs = transformers.GPT2LMHeadModel(config)
    theirs.save_pretrained(tmp_path, max_shard_size="8KB")
    assert (tmp_path / "model.safetensors.index.json").exists()
    assert_equal(GPT.from_pretrained(tmp_path).eval(), theirs)


def test_the_character_vocabulary_comes_along(tmp_path, rng, transformers):
    tok = CharTokenizer("ab \n\"'\\她é😀")
    random_gpt(rng, vocab_size=len(tok)).save_pretrained(tmp_path, tok)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    text = "a  b\n\n\"她' \\é😀 "
    assert theirs(text)["input_ids"] == tok.encode(text)
    assert theirs.decode(tok.encode(text)) == text
    with pytest.raises(Exception, match="UNK"):
        theirs("z")
