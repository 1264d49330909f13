"""Every operation, one line each: its value against NumPy's, its gradients at order 1 and 2, its dtypes.

A new operation needs a line in CASES; the last test of this file fails without one.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp

import tinygrad_attn as ta
from tinygrad_attn.autograd import PRIMITIVES


def numbers(*shape: int, low: float = -2.0, high: float = 2.0) -> np.ndarray:
    """Distinct numbers, shuffled, between low and high: no ties, and nothing near 0 or a round number."""
    n = math.prod(shape)
    values = low + (high - low) * (np.arange(n) + 0.43) / n
    return np.random.default_rng(n).permutation(values).reshape(shape)


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def layer_norm(x, w=1.0, b=0.0, eps=1e-5):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps) * w + b


def cross_entropy(z, targets):
    return -np.mean(np.log(softmax(z))[np.arange(len(z)), targets])


def gelu(x):
    return x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2


def attention(q, k, v, mask, scale):
    scores = q @ np.swapaxes(k, -1, -2) * scale
    return softmax(scores if mask is None else np.where(mask, -np.inf, scores)) @ v


class Case(NamedTuple):
    ours: Callable[..., Any]
    numpys: Callable[..., Any]
    inputs: tuple[np.ndarray, ...]


def case(ours: Callable[..., Any], numpys: Callable[..., Any], *inputs: np.ndarray) -> Case:
    return Case(ours, numpys, inputs)


X, Y, V = numbers(2, 3), numbers(2, 3, low=-1.7, high=2.3), numbers(3, low=-1.1, high=1.3)
P = numbers(2, 3, low=0.2, high=3)
X3, S = numbers(2, 3, 4), np.array(0.7)
A, B = numbers(2, 3, 4), numbers(2, 4, 2)
MASK = np.array([[True, False, False], [False, True, False]])
IDS = np.array([[2, 0, 2], [1, 1, 1]])
CAUSAL = ~np.tri(3, dtype=bool)
Q, K, W = numbers(2, 3, 2), numbers(2, 3, 2, low=-1.5), numbers(2, 3, 4, low=-1.2)

# fmt: off
CASES = {
    # elementwise
    "add": case(ta.add, np.add, X, Y),
    "subtract": case(ta.subtract, np.subtract, X, Y),
    "multiply": case(ta.multiply, np.multiply, X, Y),
    "divide": case(ta.divide, np.divide, X, Y),
    "power": case(ta.power, np.power, P, Y),
    "power, zeroth": case(ta.power, np.power, P, 0 * Y),
    "power, number": case(lambda x: x**3, lambda x: x**3, X),
    "power, of a number": case(lambda x: 2**x, lambda x: 2**x, X),
    "power, negative": case(lambda x: x**-2, lambda x: x**-2.0, X),
    "power, broken": case(lambda x: x**1.5, lambda x: x**1.5, P),
    "negative": case(ta.negative, np.negative, X),
    "exp": case(ta.exp, np.exp, X),
    "log": case(ta.log, np.log, P),
    "sqrt": case(ta.sqrt, np.sqrt, P),
    "tanh": case(ta.tanh, np.tanh, X),
    "sin": case(ta.sin, np.sin, X),
    "cos": case(ta.cos, np.cos, X),
    "abs": case(ta.abs, np.abs, X),
    "relu": case(ta.relu, lambda x: np.where(x > 0, x, 0), X),
    "sigmoid": case(ta.sigmoid, lambda x: 1 / (1 + np.exp(-x)), X),
    "silu": case(ta.silu, lambda x: x / (1 + np.exp(-x)), X),
    "gelu": case(ta.gelu, gelu, X),
    "maximum": case(ta.maximum, np.maximum, X, Y),
    "minimum": case(ta.minimum, np.minimum, X, Y),
    "where": case(lambda a, b: ta.where(MASK, a, b), lambda a, b: np.where(MASK, a, b), X, Y),
    "masked_fill": case(lambda x: ta.masked_fill(x, MASK, 7.0), lambda x: np.where(MASK, 7.0, x), X),
    "clip": case(lambda x: ta.clip(x, -1, 1.1), lambda x: np.clip(x, -1, 1.1), X),
    "clip, below": case(lambda x: ta.clip(x, min=0.1), lambda x: np.clip(x, 0.1, None), X),
    "clip, above": case(lambda x: ta.clip(x, max=0.1), lambda x: np.clip(x, None, 0.1), X),
    # reductions
    "sum": case(ta.sum, np.sum, X3),
    "sum, axes": case(lambda x: x.sum(axis=(0, -1)), lambda x: x.sum(axis=(0, -1)), X3),
    "sum, keepdims": case(lambda x: x.sum(1, keepdims=True), lambda x: x.sum(1, keepdims=True), X3),
    "mean": case(ta.mean, np.mean, X3),
    "mean, axes": case(lambda x: x.mean(axis=(0, 2)), lambda x: x.mean(axis=(0, 2)), X3),
    "max": case(ta.max, np.max, X3),
    "max, axis": case(lambda x: x.max(axis=-1), lambda x: x.max(axis=-1), X3),
    "max, axes": case(lambda x: x.max(axis=(0, -1)), lambda x: x.max(axis=(0, -1)), X3),
    "min": case(ta.min, np.min, X3),
    "min, keepdims": case(lambda x: x.min(1, keepdims=True), lambda x: x.min(1, keepdims=True), X3),
    "var": case(ta.var, np.var, X3),
    "var, axes, ddof": case(lambda x: x.var((0, -1), ddof=1), lambda x: x.var((0, -1), ddof=1), X3),
    "prod": case(ta.prod, np.prod, X),
    "prod, axis": case(lambda x: x.prod(axis=1), lambda x: x.prod(axis=1), X3),
    "prod, axes": case(lambda x: x.prod((0, -1)), lambda x: x.prod((0, -1)), X3),
    "norm": case(ta.norm, np.linalg.norm, X),
    "norm, axis": case(lambda x: ta.norm(x, -1), lambda x: np.linalg.norm(x, axis=-1), X3),
    "cumsum": case(ta.cumsum, np.cumsum, X3),
    "cumsum, axis": case(lambda x: x.cumsum(axis=-2), lambda x: x.cumsum(axis=-2), X3),
    "logsumexp": case(ta.logsumexp, lambda x: np.log(np.exp(x).sum()), X),
    "logsumexp, axes": case(lambda x: x.logsumexp((0, -1)), lambda x: np.log(np.exp(x).sum((0, -1))), X3),
    # products
    "matmul": case(ta.matmul, np.matmul, X, P.T),
    "matmul, stacks": case(ta.matmul, np.matmul, A, B),
    "matmul, one matrix": case(ta.matmul, np.matmul, A, B[0]),
    "matmul, one matrix left": case(ta.matmul, np.matmul, A[0], B),
    "matmul, broadcast": case(ta.matmul, np.matmul, A[:, None], B[0][None, None]),
    "matmul, vector left": case(ta.matmul, np.matmul, V[:2], X),
    "matmul, vector right": case(ta.matmul, np.matmul, A, numbers(4)),
    "matmul, stack by vector": case(ta.matmul, np.matmul, numbers(4), B),
    "matmul, vectors": case(ta.matmul, np.matmul, V, V[::-1].copy()),
    "einsum": case(lambda a, b: ta.einsum("bij,bjk->bik", a, b), np.matmul, A, B),
    "einsum, implicit": case(lambda a, b: ta.einsum("ij,jk", a, b), np.matmul, X, P.T),
    "einsum, one": case(lambda a: ta.einsum("ij->j", a), lambda a: a.sum(0), X),
    "einsum, three": case(
        lambda a, b, c: ta.einsum("i,ij,j->", a, b, c), lambda a, b, c: a @ b @ c, V[:2], X, V
    ),
    "einsum, dots": case(lambda a, b: ta.einsum("...ij,jk->...ik", a, b), np.matmul, A, B[0]),
    "einsum, sums of one alone": case(
        lambda a, b: ta.einsum("ij,kl->ik", a, b), lambda a, b: np.outer(a.sum(1), b.sum(1)), X, P
    ),
    "einsum, dots in the middle": case(
        lambda a, b: ta.einsum("i...j,...->...i", a, b), lambda a, b: (a.sum(-1) * b).T, A, A[0, :, 0]
    ),
    "einsum, stretched": case(lambda a, b: ta.einsum("ij,ij->j", a, b), lambda a, b: (a * b).sum(0), X[:1], P),
    # shapes
    "transpose": case(ta.transpose, np.transpose, X3),
    "transpose, axes": case(lambda x: x.transpose(-1, 0, 1), lambda x: x.transpose(-1, 0, 1), X3),
    "T": case(lambda x: x.T, lambda x: x.T, X3),
    "mT": case(lambda x: x.mT, lambda x: x.swapaxes(-1, -2), X3),
    "swapaxes": case(lambda x: x.swapaxes(0, -1), lambda x: x.swapaxes(0, -1), X3),
    "reshape": case(lambda x: x.reshape(4, -1), lambda x: x.reshape(4, -1), X3),
    "squeeze": case(lambda x: x.squeeze(), lambda x: x.squeeze(), X[None, :, None]),
    "squeeze, axis": case(lambda x: x.squeeze(-2), lambda x: x.squeeze(-2), X[None, :, None]),
    "expand_dims": case(lambda x: x.expand_dims((0, -1)), lambda x: np.expand_dims(x, (0, -1)), X),
    "broadcast_to": case(lambda x: x.broadcast_to((4, 2, 3)), lambda x: 0 * numbers(4, 2, 3) + x, X[:, :1]),
    "concatenate": case(lambda a, b: ta.concatenate([a, b]), lambda a, b: np.concatenate([a, b]), X, P),
    "concatenate, axis": case(
        lambda a, b: ta.concatenate((a, b, a), axis=1), lambda a, b: np.concatenate((a, b, a), 1), X, P[:, 1:]
    ),
    "stack": case(lambda a, b: ta.stack([a, b], axis=-1), lambda a, b: np.stack([a, b], axis=-1), X, P),
    "split": case(lambda x: ta.split(x, 2, axis=-1)[1], lambda x: np.split(x, 2, axis=-1)[1], X3),
    "split, all": case(
        lambda x: ta.concatenate(ta.split(x, [1, 3], axis=2)[::-1], 2),
        lambda x: np.concatenate(np.split(x, [1, 3], axis=2)[::-1], 2), X3
    ),
    "tril": case(lambda x: x.tril(-1), lambda x: np.tril(x, -1), X3),
    "triu": case(lambda x: x.triu(), np.triu, X3),
    "flip": case(lambda x: x.flip(), np.flip, X3),
    "flip, axis": case(lambda x: x.flip(-1), lambda x: np.flip(x, -1), X3),
    "roll": case(lambda x: x.roll(4), lambda x: np.roll(x, 4), X),
    "roll, axes": case(lambda x: x.roll((1, -2), (0, -1)), lambda x: np.roll(x, (1, -2), (0, -1)), X3),
    # reading by index
    "getitem, number": case(lambda x: x[1], lambda x: x[1], X3),
    "getitem, slices": case(lambda x: x[::-1, 1:, ::2], lambda x: x[::-1, 1:, ::2], X3),
    "getitem, None and dots": case(lambda x: x[None, ..., -1], lambda x: x[None, ..., -1], X3),
    "getitem, repeated": case(lambda x: x[[0, 0, 1, 0]], lambda x: x[[0, 0, 1, 0]], X3),
    "getitem, pairs": case(lambda x: x[[0, 0, 1], [2, 2, 1]], lambda x: x[[0, 0, 1], [2, 2, 1]], X),
    "getitem, mixed": case(lambda x: x[:, [2, 2], 1:], lambda x: x[:, [2, 2], 1:], X3),
    "getitem, mask": case(lambda x: x[MASK], lambda x: x[MASK], X),
    "take_along_axis": case(
        lambda x: ta.take_along_axis(x, IDS, axis=1), lambda x: np.take_along_axis(x, IDS, axis=1), X
    ),
    "take_along_axis, broadcast": case(
        lambda x: ta.take_along_axis(x, IDS[:1], -1), lambda x: np.take_along_axis(x, IDS[:1], -1), X
    ),
    "embedding": case(lambda w: ta.embedding(w, IDS), lambda w: w[IDS], numbers(4, 2)),
    # networks
    "softmax": case(ta.softmax, softmax, X),
    "softmax, axis": case(lambda x: x.softmax(axis=1), lambda x: softmax(x, 1), X3),
    "log_softmax": case(ta.log_softmax, lambda x: np.log(softmax(x)), X),
    "log_softmax, axis": case(lambda x: x.log_softmax(0), lambda x: np.log(softmax(x, 0)), X3),
    "cross_entropy": case(lambda z: ta.cross_entropy(z, [2, 0]), lambda z: cross_entropy(z, [2, 0]), X),
    "layer_norm": case(ta.layer_norm, layer_norm, X, P[0], V),
    "layer_norm, no weight": case(ta.layer_norm, layer_norm, X3),
    "dropout": case(
        lambda x: ta.dropout(x, 0.5, rng=np.random.default_rng(3)),
        lambda x: x * (np.random.default_rng(3).random(x.shape, np.float32) >= 0.5) * 2, X3
    ),
    "attention": case(
        lambda q, k, v: PRIMITIVES["attention"](q, k, v, CAUSAL, 0.5),
        lambda q, k, v: attention(q, k, v, CAUSAL, 0.5), Q, K, W
    ),
    "astype": case(lambda x: x.astype(x.dtype), lambda x: x, X),
}
# fmt: on

every = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def leaves(inputs, dtype=np.float64):
    return [ta.Tensor(x.astype(dtype), requires_grad=True) for x in inputs]


@every
def test_value(case):
    ours, numpys = case.ours(*leaves(case.inputs)), case.numpys(*case.inputs)
    assert isinstance(ours, ta.Tensor) and ours.shape == np.shape(numpys)
    np.testing.assert_allclose(ours.data, numpys, rtol=1e-12, atol=1e-14)


@every
def test_gradient_and_gradient_of_the_gradient(case):
    ta.gradcheck(case.ours, case.inputs, order=2)


@every
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_dtype_is_kept_in_result_and_gradients(case, dtype):
    xs = leaves(case.inputs, dtype)
    y = case.ours(*xs)
    assert y.dtype == dtype
    gradients = ta.grad(y, xs, np.ones(y.shape), create_graph=True)
    y.backward(np.ones(y.shape))
    for x, g in zip(xs, gradients):
        assert x.grad.dtype == g.dtype == dtype
        assert x.grad.shape == g.shape == x.shape
        np.testing.assert_allclose(x.grad.data, g.data, rtol=2e-2 if dtype == np.float16 else 1e-5, atol=1e-3)


@every
def test_inputs_and_seed_are_left_alone(case):
    xs = leaves(case.inputs)
    y = case.ours(*xs)
    seed = numbers(*y.shape)
    before = seed.copy()
    y.backward(seed)
    assert np.array_equal(seed, before)
    assert all(np.array_equal(x.data, given) for x, given in zip(xs, case.inputs))
    for x in xs:  # and .grad is an array of its own
        assert x.grad.data.flags.writeable
        assert not np.shares_memory(x.grad.data, seed)
        assert not any(np.shares_memory(x.grad.data, other.data) for other in xs)


@every
def test_constants_give_a_constant(case):
    y = case.ours(*map(ta.Tensor, case.inputs))
    assert isinstance(y, ta.Tensor) and not y.requires_grad and y.is_leaf


@every
def test_nothing_is_recorded_under_no_grad(case):
    xs = leaves(case.inputs)
    with ta.no_grad():
        y = case.ours(*xs)
    assert not y.requires_grad


# ---------------------------------------------------------------------------------------------- broadcasting

PAIRS = [
    ((2, 3), (3,)),
    ((2, 1), (1, 3)),
    ((2, 3), ()),
    ((2, 3), (1,)),
    ((1,), ()),
    ((2, 1, 4), (3, 1)),
    ((1, 1), (2, 3, 4)),
    ((2, 0), (1,)),
    ((0,), (3, 1)),
]
BINARY = {
    "add": (ta.add, np.add),
    "subtract": (ta.subtract, np.subtract),
    "multiply": (ta.multiply, np.multiply),
    "divide": (ta.divide, np.divide),
    "power": (ta.power, np.power),
    "maximum": (ta.maximum, np.maximum),
    "minimum": (ta.minimum, np.minimum),
    "where": (lambda a, b: ta.where(a.data > b.data, a, b), np.maximum),
    "where, by condition": (lambda a, b: ta.where(True, a, b), lambda a, b: a + 0 * b),
}


@pytest.mark.parametrize("ours, numpys", BINARY.values(), ids=BINARY)
@pytest.mark.parametrize("shapes", [*PAIRS, *(pair[::-1] for pair in PAIRS)], ids=str)
def test_broadcasting(ours, numpys, shapes):
    a, b = numbers(*shapes[0], low=0.3, high=2), numbers(*shapes[1], low=0.41, high=1.9)
    np.testing.assert_allclose(ours(ta.Tensor(a), ta.Tensor(b)).data, numpys(a, b))
    x, y = leaves([a, b])
    out = ours(x, y)
    out.backward(np.ones(out.shape))
    assert x.grad.shape == a.shape and y.grad.shape == b.shape
    if out.size:
        ta.gradcheck(ours, [a, b], order=2)
    else:
        assert not x.grad.data.any() and not y.grad.data.any()


@given(hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=3, max_side=3), st.sampled_from(sorted(BINARY)))
@settings(max_examples=100)
def test_any_two_shapes_that_broadcast(shapes, name):
    ours, numpys = BINARY[name]
    a, b = (numbers(*s, low=0.3 + 0.01 * i, high=2) for i, s in enumerate(shapes.input_shapes))
    out = ours(ta.Tensor(a), ta.Tensor(b))
    assert out.shape == shapes.result_shape
    np.testing.assert_allclose(out.data, numpys(a, b))
    ta.gradcheck(ours, [a, b])


# -------------------------------------------------------------------------------------- shapes by hypothesis

SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, max_side=3)


@given(SHAPES, st.data())
@settings(max_examples=100)
def test_reductions_over_any_axes(shape, data):
    axes = (
        st.lists(st.integers(-len(shape), len(shape) - 1), unique_by=lambda a: a % len(shape)) if shape else st.just([])
    )
    axis = data.draw(st.one_of(st.none(), axes.map(tuple)))
    keepdims = data.draw(st.booleans())
    name = data.draw(st.sampled_from(["sum", "mean", "max", "min", "var", "prod", "logsumexp", "norm"]))
    x = numbers(*shape, low=0.3)
    oracle = {
        "logsumexp": lambda x, **kw: np.log(np.exp(x).sum(**kw)),
        "norm": lambda x, **kw: np.sqrt((x * x).sum(**kw)),
    }.get(name, getattr(np, name, None))
    ours = getattr(ta, name)
    np.testing.assert_allclose(
        ours(ta.Tensor(x), axis=axis, keepdims=keepdims).data,
        oracle(x, axis=axis, keepdims=keepdims),
        atol=1e-14,
    )
    if name != "var" or math.prod(shape[a] for a in (range(len(shape)) if axis is None else axis)) > 1:
        ta.gradcheck(lambda x: ours(x, axis=axis, keepdims=keepdims), x)


@given(SHAPES, st.data())
@settings(max_examples=60)
def test_transposes_and_reshapes_of_any_shape(shape, data):
    axes = tuple(data.draw(st.permutations(range(len(shape)))))
    axes = tuple(a - len(shape) if data.draw(st.booleans()) else a for a in axes)
    x = numbers(*shape)
    f = lambda x: x.transpose(axes).reshape(-1).reshape(shape)  # noqa: E731
    assert np.array_equal(f(ta.Tensor(x)).data, f(x))
    ta.gradcheck(f, x)


@given(hnp.array_shapes(min_dims=1, max_dims=3, max_side=4), st.data())
@settings(max_examples=100)
def test_indexing_by_anything(shape, data):
    index = data.draw(
        st.one_of(
            hnp.basic_indices(shape, allow_newaxis=True),
            hnp.integer_array_indices(shape),
            hnp.arrays(bool, shape),
        )
    )
    x = numbers(*shape)
    picked = ta.Tensor(x)[index]
    assert np.array_equal(picked.data, x[index])
    if picked.size:
        ta.gradcheck(lambda x: x[index], x)


@given(hnp.mutually_broadcastable_shapes(signature=np.matmul.signature, max_dims=2, max_side=3))
@settings(max_examples=60)
def test_matmul_of_any_shapes(shapes):
    a, b = (numbers(*s, low=0.3) for s in shapes.input_shapes)
    np.testing.assert_allclose((ta.Tensor(a) @ b).data, a @ b, atol=1e-14)
    ta.gradcheck(ta.matmul, [a, b])


@pytest.mark.parametrize("index", [[0, 0], np.array([0, 0]), (np.array([0, 0]),), ([0, 0], slice(None))], ids=repr)
def test_an_index_that_changes_afterwards_changes_no_gradient(index):
    x = ta.Tensor(np.zeros((3, 2)), requires_grad=True)
    y = x[index]
    (index[0] if isinstance(index, tuple) else index)[0] = 2
    y.sum().backward()
    assert x.grad.tolist() == [[2, 2], [0, 0], [0, 0]]


def test_positions_from_the_end_and_from_the_start_are_the_same_row():
    x = ta.Tensor(np.zeros(3), requires_grad=True)
    x[np.array([-1, 2, 0], np.int8)].backward(np.array([1.0, 10.0, 100.0]))
    assert x.grad.tolist() == [100, 0, 11]


@pytest.mark.parametrize("axis", [None, 0, 1, (0, 2), ()])
@pytest.mark.parametrize("keepdims", [False, True])
def test_the_product_of_nothing_is_one(axis, keepdims):
    x = np.ones((3, 0, 2))
    np.testing.assert_array_equal(ta.prod(ta.Tensor(x), axis, keepdims).data, x.prod(axis, keepdims=keepdims))


# ------------------------------------------------------------------------------- NumPy's names, completeness


NAMES = """exp log sqrt tanh sin cos abs negative square sum mean max min var prod cumsum transpose flip
    squeeze tril triu""".split()


@pytest.mark.parametrize("name", NAMES)
def test_numpys_function_on_a_tensor_is_ours(name):
    x = ta.Tensor(P, requires_grad=True)
    y = getattr(np, name)(x)
    assert isinstance(y, ta.Tensor) and y.requires_grad
    np.testing.assert_allclose(y.data, getattr(np, name)(P))


METHODS = """exp log tanh sqrt abs relu sigmoid gelu silu sin cos maximum minimum masked_fill clip sum mean
    max min var prod logsumexp softmax log_softmax cumsum matmul transpose swapaxes reshape squeeze expand_dims
    broadcast_to split tril triu flip roll take_along_axis cross_entropy layer_norm dropout norm""".split()
FUNCTIONS = [*METHODS, "where", "einsum", "concatenate", "stack", "embedding"]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_operation_is_a_function_and_where_it_makes_sense_a_method(name):
    assert callable(getattr(ta, name)) and getattr(ta, name).__doc__
    if name in METHODS:
        assert getattr(ta.Tensor, name).__doc__


def test_shapes_and_axes_may_be_one_argument_several_or_a_keyword():
    x = ta.Tensor(A)
    assert x.reshape(4, 6).shape == x.reshape((4, 6)).shape == x.reshape(shape=(4, 6)).shape == (4, 6)
    assert x.transpose(2, 0, 1).shape == x.transpose((2, 0, 1)).shape == x.transpose(axes=(2, 0, 1)).shape
    assert x.broadcast_to(5, *x.shape).shape == x.broadcast_to(shape=(5, *x.shape)).shape
    with pytest.raises(TypeError, match=r"^reshape.*'shape'"):
        x.reshape()


def test_einsum_of_nothing_has_a_gradient_too():
    x = ta.Tensor(np.ones((0, 3)), requires_grad=True)
    ta.einsum("ij->j", x).sum().backward()
    assert x.grad.shape == (0, 3)


def test_every_operation_with_a_gradient_has_a_line_here():
    seen = set()
    for case in CASES.values():
        xs = leaves(case.inputs)
        y = case.ours(*xs)
        gradients = ta.grad(y, xs, ta.Tensor(np.ones(y.shape), requires_grad=True), create_graph=True)
        waiting, done = [y, *gradients], set()
        while waiting:
            node = waiting.pop()
            if node.op is not None and node not in done:
                done.add(node)
                seen.add(node.op.name)
                operands = [b for a in node.args for b in (a if isinstance(a, tuple) else [a])]
                waiting += [a for a in operands if isinstance(a, ta.Tensor)]
    missing = {name for name, op in PRIMITIVES.items() if op.by_position or op.joint} - seen
    assert not missing


def test_argmax_is_a_position_without_a_gradient():
    x = ta.Tensor([[1.0, 5.0], [3.0, 2.0]], requires_grad=True)
    assert x.argmax(-1).tolist() == [1, 0]
    assert np.argmax(x).item() == 1
    assert not x.argmax().requires_grad


@pytest.mark.parametrize("cuts", [0, -1, [3, 1]])
def test_split_refuses_cuts_that_make_no_pieces(cuts):
    with pytest.raises(ValueError, match="split: "):
        ta.split(ta.Tensor([1.0, 2.0, 3.0, 4.0]), cuts)
