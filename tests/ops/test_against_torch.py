"""Values, gradients and second derivatives beside PyTorch's, in float64 and in float32."""

import numpy as np
import pytest

import tinygrad_attn as ta

torch = pytest.importorskip("torch")
F = torch.nn.functional

rng = np.random.default_rng(7)
X, Y, W = rng.standard_normal((2, 3, 4)), rng.standard_normal((2, 3, 4)), rng.standard_normal((4, 5))
P, V = rng.uniform(0.3, 2.0, (2, 3, 4)), rng.standard_normal(4)
MASK = rng.random((2, 3, 4)) < 0.3
IDS = np.array([[0, 2, 2], [1, 1, 0]])
STEPS = np.array([-2.0, -1.0, 0.0, 1.0, 2.0])
ZEROS = np.array([[0.0, 2.0, 3.0], [0.0, 0.0, 3.0]])
TIES = np.array([[1.0, 3.0, 3.0, 2.0], [5.0, 5.0, 5.0, 5.0], [0.0, -1.0, -2.0, 0.0]])
CAUSAL = ~np.tri(3, dtype=bool)
Q, K = rng.standard_normal((2, 2, 3, 4)), rng.standard_normal((2, 2, 3, 4))

# What both should compute, ours on the left. `t` makes a tensor of integers or booleans.
t = torch.tensor
# fmt: off
PAIRS = {
    "exp": (ta.exp, torch.exp, X),
    "log": (ta.log, torch.log, P),
    "sqrt": (ta.sqrt, torch.sqrt, P),
    "tanh": (ta.tanh, torch.tanh, X),
    "sin": (ta.sin, torch.sin, X),
    "cos": (ta.cos, torch.cos, X),
    "abs": (ta.abs, torch.abs, np.array([-2.0, 0.0, 3.0])),
    "relu": (ta.relu, torch.relu, np.array([-2.0, 0.0, 3.0])),
    "sigmoid": (ta.sigmoid, torch.sigmoid, X * 20),
    "silu": (ta.silu, F.silu, X * 5),
    "gelu": (ta.gelu, lambda x: F.gelu(x, approximate="tanh"), X * 3),
    "clip": (lambda x: ta.clip(x, -1, 1), lambda x: torch.clamp(x, -1, 1), STEPS),
    "multiply": (lambda a, b: a * b, lambda a, b: a * b, X, V),
    "divide": (lambda a, b: a / b, lambda a, b: a / b, X, P),
    "power": (lambda a, b: a**b, lambda a, b: a**b, P, Y),
    "power, at zero": (lambda a: a**2 + a**3 + a**1, lambda a: a**2 + a**3 + a**1, STEPS),
    "maximum": (ta.maximum, torch.maximum, np.array([1.0, 2.0, 2.0]), np.array([1.0, 3.0, 1.0])),
    "minimum": (ta.minimum, torch.minimum, np.array([1.0, 2.0, 2.0]), np.array([1.0, 3.0, 1.0])),
    "where": (lambda a, b: ta.where(MASK, a, b), lambda a, b: torch.where(t(MASK), a, b), X, Y),
    "masked_fill": (lambda x: x.masked_fill(MASK, 3.0), lambda x: x.masked_fill(t(MASK), 3.0), X),
    "sum": (lambda x: x.sum(axis=(0, -1)), lambda x: x.sum((0, -1)), X),
    "mean": (lambda x: x.mean(axis=1, keepdims=True), lambda x: x.mean(1, keepdim=True), X),
    "var": (lambda x: x.var(axis=(0, 2), ddof=1), lambda x: x.var((0, 2)), X),
    "amax": (lambda x: x.max(axis=-1), lambda x: x.amax(-1), TIES),
    "amin": (lambda x: x.min(axis=0), lambda x: x.amin(0), TIES),
    "max of all": (lambda x: x.max(), lambda x: x.max(), TIES),
    "prod": (lambda x: x.prod(axis=1), lambda x: x.prod(1), X),
    "prod with zeros": (lambda x: x.prod(axis=1), lambda x: x.prod(1), ZEROS),
    "norm": (lambda x: ta.norm(x, axis=-1), lambda x: torch.linalg.vector_norm(x, dim=-1), X),
    "cumsum": (lambda x: x.cumsum(axis=1), lambda x: x.cumsum(1), X),
    "logsumexp": (lambda x: x.logsumexp(axis=-1), lambda x: x.logsumexp(-1), X * 50),
    "softmax": (lambda x: x.softmax(axis=1), lambda x: x.softmax(1), X * 50),
    "log_softmax": (lambda x: x.log_softmax(axis=-1), lambda x: x.log_softmax(-1), X * 50),
    "matmul": (lambda a, b: a @ b, lambda a, b: a @ b, X, W),
    "matmul, broadcast": (lambda a, b: a @ b.mT, lambda a, b: a @ b.mT, X[:, None], Y[:1]),
    "matmul, vector": (lambda a, b: a @ b, lambda a, b: a @ b, X, V),
    "einsum": (
        lambda a, b: ta.einsum("bij,bkj->kbi", a, b), lambda a, b: torch.einsum("bij,bkj->kbi", a, b), X, Y
    ),
    "transpose": (lambda x: x.transpose(-1, 0, 1), lambda x: x.permute(-1, 0, 1), X),
    "reshape": (lambda x: x.mT.reshape(6, -1), lambda x: x.mT.reshape(6, -1), X),
    "broadcast_to": (lambda x: x.broadcast_to((3, 4)), lambda x: x.broadcast_to((3, 4)), V),
    "concatenate": (lambda a, b: ta.concatenate([a, b, a], 1), lambda a, b: torch.cat([a, b, a], 1), X, Y),
    "stack": (lambda a, b: ta.stack([a, b], -1), lambda a, b: torch.stack([a, b], -1), X, Y),
    "split": (lambda x: ta.split(x, [1, 3], -1)[1], lambda x: torch.tensor_split(x, (1, 3), -1)[1], X),
    "tril": (lambda x: x.tril(-1), lambda x: x.tril(-1), X),
    "triu": (lambda x: x.triu(1), lambda x: x.triu(1), X),
    "flip": (lambda x: x.flip((0, 2)), lambda x: x.flip((0, 2)), X),
    "roll": (lambda x: x.roll(3, 1), lambda x: x.roll(3, 1), X),
    "getitem": (lambda x: x[:, [0, 0, 2], 1:], lambda x: x[:, [0, 0, 2], 1:], X),
    "getitem, mask": (lambda x: x[MASK], lambda x: x[t(MASK)], X),
    "take_along_axis": (
        lambda x: ta.take_along_axis(x, IDS[..., None], 1),
        lambda x: x.take_along_dim(t(IDS[..., None]), 1), X
    ),
    "embedding": (lambda w: ta.embedding(w, IDS), lambda w: F.embedding(t(IDS), w), W),
    "cross_entropy": (
        lambda z: ta.cross_entropy(z, [1, -100, 4, 0]),
        lambda z: F.cross_entropy(z, t([1, -100, 4, 0])), W * 30
    ),
    "cross_entropy, sum": (
        lambda z: ta.cross_entropy(z, IDS, reduction="sum"),
        lambda z: F.cross_entropy(z.reshape(-1, 4), t(IDS).reshape(-1), reduction="sum"), X
    ),
    "layer_norm": (
        lambda x, w, b: ta.layer_norm(x, w, b, eps=1e-5),
        lambda x, w, b: F.layer_norm(x, (4,), w, b, 1e-5), X, V, P[0, 0]
    ),
    "layer_norm, constant row": (
        lambda x: ta.layer_norm(x, eps=1e-5), lambda x: F.layer_norm(x, (4,), eps=1e-5), np.full((1, 4), 3.0)
    ),
    "attention": (
        lambda q, k, v: ta.nn.scaled_dot_product_attention(q, k, v, causal=True),
        lambda q, k, v: (q @ k.mT / 2).masked_fill(t(CAUSAL), -torch.inf).softmax(-1) @ v, Q, K, Q + K
    ),
}
# fmt: on
every = pytest.mark.parametrize("ours, theirs, inputs", [(a, b, x) for a, b, *x in PAIRS.values()], ids=PAIRS)


def both(ours, theirs, inputs, dtype):
    """Value, gradients and, of a random contraction of these, the second derivatives, from both libraries."""
    rng = np.random.default_rng(0)
    xs = [ta.Tensor(x.astype(dtype), requires_grad=True) for x in inputs]
    ts = [torch.tensor(x.astype(dtype), requires_grad=True) for x in inputs]
    y, u = ours(*xs), theirs(*ts)
    seed = rng.standard_normal(u.shape).astype(dtype)
    first = ta.grad(y, xs, seed, create_graph=True)
    first_t = torch.autograd.grad(u, ts, torch.tensor(seed), create_graph=True)
    weights = [rng.standard_normal(x.shape).astype(dtype) for x in inputs]
    total = sum((g * w).sum() for g, w in zip(first, weights))
    total_t = sum((g * torch.tensor(w)).sum() for g, w in zip(first_t, weights))
    second = [np.zeros(x.shape, dtype) for x in inputs]
    second_t = list(second)
    if total.requires_grad:
        found = ta.grad(total, xs, allow_unused=True)
        second = [z if g is None else g.data for g, z in zip(found, second)]
    if total_t.requires_grad:
        found = torch.autograd.grad(total_t, ts, allow_unused=True)
        second_t = [z if g is None else g.numpy(force=True) for g, z in zip(found, second_t)]
    mine = [y.data, *(g.data for g in first), *second]
    return mine, [u.numpy(force=True), *(g.numpy(force=True) for g in first_t), *second_t]


@every
@pytest.mark.parametrize("dtype, tolerance", [(np.float64, 1e-9), (np.float32, 2e-4)], ids=["float64", "float32"])
def test_value_gradients_and_second_derivatives(ours, theirs, inputs, dtype, tolerance):
    for mine, other in zip(*both(ours, theirs, inputs, dtype)):
        assert mine.dtype == other.dtype and mine.shape == other.shape
        scale = max(1.0, np.abs(other).max(initial=0))
        np.testing.assert_allclose(mine, other, rtol=tolerance, atol=tolerance * scale)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_higher_derivatives_of_a_composition(order):
    def f(x, m):
        return m.exp(-(x * x)) * m.sin(3 * x) + x**4

    x, u = (
        ta.Tensor(np.float64(0.7), requires_grad=True),
        torch.tensor(0.7, dtype=torch.float64, requires_grad=True),
    )
    y, v = f(x, ta), f(u, torch)
    for _ in range(order):
        y = ta.grad(y, x, create_graph=True)
        (v,) = torch.autograd.grad(v, u, create_graph=True)
    assert np.isclose(y.item(), v.item(), rtol=1e-10)


def test_the_hessian_of_cross_entropy():
    z = rng.standard_normal((2, 3))
    mine = ta.hessian(lambda z: ta.cross_entropy(z, [2, 0]), z)
    other = torch.autograd.functional.hessian(lambda z: F.cross_entropy(z, t([2, 0])), torch.tensor(z))
    np.testing.assert_allclose(mine.data, other.numpy(), rtol=1e-10, atol=1e-12)
