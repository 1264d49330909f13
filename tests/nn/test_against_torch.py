"""The same weights in PyTorch, by PyTorch's own functions, give the same logits, loss and gradients."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

import tinygrad_attn as ta
from tinygrad_attn.nn import GPT, GPTConfig, MultiHeadAttention, SelfAttention

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
F = torch.nn.functional

TOLERANCES = {np.float64: 1e-5, np.float32: 1e-4}
each_dtype = pytest.mark.parametrize("dtype", TOLERANCES)


def leaves(module):
    """A torch leaf for every parameter."""
    return {name: torch.tensor(array, requires_grad=True) for name, array in module.state_dict().items()}


def linear(w, name, x):
    y = x @ w[f"{name}.weight"]
    return y + w[f"{name}.bias"] if f"{name}.bias" in w else y


def norm(w, name, x):
    return F.layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w.get(f"{name}.bias"), 1e-5)


def multi_head(w, prefix, x, n_head, blocked=None):
    B, T, C = x.shape
    q, k, v = (
        t.view(B, T, n_head, C // n_head).transpose(1, 2) for t in linear(w, f"{prefix}c_attn", x).split(C, dim=2)
    )
    future = torch.triu(torch.ones(T, T, dtype=torch.bool), 1)
    keep = ~(future if blocked is None else future | torch.tensor(blocked))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=keep)
    return linear(w, f"{prefix}c_proj", out.transpose(1, 2).reshape(B, T, C))


def gpt(w, config, ids, targets):
    ids = torch.tensor(ids)
    x = w["wte.weight"][ids] + w["wpe.weight"][: ids.shape[1]]
    for i in range(config.n_layer):
        x = x + multi_head(w, f"h.{i}.attn.", norm(w, f"h.{i}.ln_1", x), config.n_head)
        hidden = F.gelu(linear(w, f"h.{i}.mlp.c_fc", norm(w, f"h.{i}.ln_2", x)), approximate="tanh")
        x = x + linear(w, f"h.{i}.mlp.c_proj", hidden)
    logits = norm(w, "ln_f", x) @ w["wte.weight"].T
    return logits, F.cross_entropy(logits.flatten(0, 1), torch.tensor(targets).flatten())


def assert_same(ours, theirs, tolerance, name=""):
    theirs = theirs.detach().numpy()
    assert_allclose(ours.data, theirs, rtol=tolerance, atol=tolerance * np.abs(theirs).max(), err_msg=name)


@each_dtype
@pytest.mark.parametrize("bias", [True, False])
def test_gpt(dtype, bias, rng):
    config = GPTConfig(block_size=16, vocab_size=11, n_layer=2, n_head=4, n_embd=32, bias=bias)
    model = GPT(config, rng=rng).to(dtype)
    for p in model.parameters():  # far from the initial values, so that every part matters
        p.data = (p.data + 0.1 * rng.standard_normal(p.shape)).astype(dtype)
    ids, targets = rng.integers(0, 11, (2, 3, 13))
    w = leaves(model)
    logits, loss = model(ids, targets)
    torch_logits, torch_loss = gpt(w, config, ids, targets)
    assert_same(logits, torch_logits, TOLERANCES[dtype], "logits")
    assert_same(loss, torch_loss, TOLERANCES[dtype], "loss")
    loss.backward()
    torch_loss.backward()
    for name, p in model.named_parameters():
        assert p.grad.dtype == dtype
        assert_same(p.grad, w[name].grad, TOLERANCES[dtype], name)


@each_dtype
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("return_weights", [False, True])
def test_multi_head_attention(dtype, padded, return_weights, rng):
    layer = MultiHeadAttention(12, 3, rng=rng).to(dtype)
    w, x = leaves(layer), ta.Tensor(rng.standard_normal((2, 7, 12)).astype(dtype), requires_grad=True)
    torch_x = torch.tensor(x.data, requires_grad=True)
    blocked = np.zeros((2, 1, 1, 7), bool)
    blocked[0, ..., 5:] = blocked[1, ..., 3] = True
    out = layer(x, blocked if padded else None, return_weights)
    out = out[0] if return_weights else out
    torch_out = multi_head(w, "", torch_x, 3, blocked if padded else None)
    assert_same(out, torch_out, TOLERANCES[dtype], "output")
    (out**2).sum().backward()
    (torch_out**2).sum().backward()
    assert_same(x.grad, torch_x.grad, TOLERANCES[dtype], "x")
    for name, p in layer.named_parameters():
        assert_same(p.grad, w[name].grad, TOLERANCES[dtype], name)


@each_dtype
def test_self_attention(dtype, rng):
    layer = SelfAttention(6, 4, causal=True, rng=rng).to(dtype)
    w, x = leaves(layer), rng.standard_normal((5, 6)).astype(dtype)
    out = layer(x)
    q, k, v = (torch.tensor(x) @ w[name] for name in ("W_Q", "W_K", "W_V"))
    torch_out = F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]
    assert_same(out, torch_out, TOLERANCES[dtype], "output")
    (out**2).sum().backward()
    (torch_out**2).sum().backward()
    for name, p in layer.named_parameters():
        assert_same(p.grad, w[name].grad, TOLERANCES[dtype], name)
