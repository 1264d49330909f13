import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import tinygrad_attn as ta
from tinygrad_attn.nn import MultiHeadAttention, SelfAttention, causal_mask, scaled_dot_product_attention

LAYERS = {
    "self": lambda **options: SelfAttention(4, causal=True, **options),
    "multi-head": lambda **options: MultiHeadAttention(4, 2, **options),
}
each_layer = pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)


def reference(q, k, v, blocked):
    """Softmax attention of the unblocked keys, one query at a time."""
    out = np.zeros((*q.shape[:-1], v.shape[-1]))
    blocked = np.broadcast_to(blocked, (*q.shape[:-1], k.shape[-2]))
    for *lead, i in np.ndindex(q.shape[:-1]):
        free = ~blocked[(*lead, i)]
        if free.any():
            scores = k[tuple(lead)][free] @ q[(*lead, i)] / np.sqrt(q.shape[-1])
            e = np.exp(scores - scores.max())
            out[(*lead, i)] = e / e.sum() @ v[tuple(lead)][free]
    return out


# -- causal mask --


def test_a_query_sees_itself_and_what_came_before():
    assert_array_equal(causal_mask(3), [[0, 1, 1], [0, 0, 1], [0, 0, 0]])
    assert causal_mask(3).dtype == bool


def test_fewer_queries_than_keys_are_the_last_ones():
    assert_array_equal(causal_mask(2, 4), [[0, 0, 0, 1], [0, 0, 0, 0]])


def test_more_queries_than_keys_are_refused():
    with pytest.raises(ValueError, match="3 queries on 2 keys"):
        causal_mask(3, 2)
    q, k = ta.Tensor(np.ones((3, 4))), ta.Tensor(np.ones((2, 4)))
    with pytest.raises(ValueError, match="3 queries on 2 keys"):
        scaled_dot_product_attention(q, k, k, causal=True)


# -- values --


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("return_weights", [False, True])
@pytest.mark.parametrize("batch, Tq, Tk", [((), 3, 3), ((3,), 2, 5), ((3, 2), 4, 4), ((3, 2), 1, 6)])
def test_attention_is_the_textbook_formula(batch, Tq, Tk, causal, padded, return_weights, rng):
    q, k, v = (rng.standard_normal((*batch, T, d)) for T, d in ((Tq, 4), (Tk, 4), (Tk, 3)))
    padding = rng.random((*batch[:1], *[1] * len(batch), Tk)) < (0.4 if padded else -1)
    blocked = padding | (causal_mask(Tq, Tk) if causal else False)
    out = scaled_dot_product_attention(
        *map(ta.Tensor, (q, k, v)),
        mask=padding if padded else None,
        causal=causal,
        return_weights=return_weights,
    )
    if return_weights:
        out, weights = out
        assert weights.shape == (*batch, Tq, Tk)
        assert_allclose(weights.data @ v, out.data, rtol=1e-12)
        assert not weights.data[np.broadcast_to(blocked, weights.shape)].any()
    assert_allclose(out.data, reference(q, k, v, blocked), rtol=1e-10, atol=1e-12)


def test_the_three_tokens_of_the_chapter():
    q, k = ta.Tensor([[1.0, 0], [0, 1], [1, 1]]), ta.Tensor([[0.0, 1], [1, 0], [1, 1]])
    v = ta.Tensor([[1.0, 0], [0, 1], [1, 1]])
    out, weights = scaled_dot_product_attention(q, k, v, scale=1.0, return_weights=True)
    assert_allclose(weights.data[2], [0.21, 0.21, 0.58], atol=5e-3)
    assert_allclose(out.data[2], [0.79, 0.79], atol=5e-3)


def test_self_attention_without_scale_leaves_the_scores_alone():
    plain, scaled = SelfAttention(4, scale=False), SelfAttention(4)
    x = np.eye(4, dtype=np.float32)
    raw = (x @ plain.W_Q.data) @ (x @ plain.W_K.data).T
    for layer, factor in ((plain, 1), (scaled, 0.5)):
        weights = layer(x, return_weights=True)[1].data
        assert_allclose(weights, ta.softmax(ta.Tensor(raw * factor), axis=-1).data, rtol=1e-5)


def test_self_attention_names_its_parameters_and_every_intermediate():
    layer = SelfAttention(4, causal=True)
    assert [(name, p.name) for name, p in layer.named_parameters()] == [(w, w) for w in ("W_Q", "W_K", "W_V")]
    seen, names = [layer(np.ones((3, 4), np.float32))], []
    while seen:
        t = seen.pop()
        names.append(t.name)
        seen += [a for a in t.args or () if isinstance(a, ta.Tensor)]
    assert {"Q", "K", "V", "scores", "masked", "weights", "output", "W_Q", "W_K", "W_V"} <= set(names)


def test_self_attention_can_be_narrower_than_the_model():
    out, weights = SelfAttention(4, 2)(np.ones((5, 3, 4), np.float32), return_weights=True)
    assert (out.shape, weights.shape) == ((5, 3, 2), (5, 3, 3))


@each_layer
def test_one_sequence_and_a_batch_of_it_agree(make, rng):
    layer, x = make().to(np.float64), rng.standard_normal((3, 5, 4))
    out, weights = layer(x, return_weights=True)
    for i in range(3):
        out_i, weights_i = layer(x[i], return_weights=True)
        assert_allclose(out_i.data, out.data[i], rtol=1e-12)
        assert_allclose(weights_i.data, weights.data[i], rtol=1e-12)


@each_layer
def test_the_output_does_not_depend_on_whether_weights_are_returned(make, rng):
    layer, x = make(), rng.standard_normal((3, 5, 4)).astype(np.float32)
    assert_allclose(layer(x).data, layer(x, return_weights=True)[0].data, rtol=1e-5, atol=1e-7)


# -- causality --


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("return_weights", [False, True])
@pytest.mark.parametrize("T", [7, 64])
@pytest.mark.parametrize("kind, dropout", [("self", 0.0), ("multi-head", 0.0), ("multi-head", 0.3)])
def test_the_past_does_not_change_by_one_bit_when_the_future_does(kind, T, return_weights, padded, dropout, rng):
    x = rng.standard_normal((2, T, 4)).astype(np.float32)
    mask = rng.random((2, 1, 1, T) if kind == "multi-head" else (2, 1, T)) < 0.3 if padded else None
    results = []
    for scale in (1, 1e4):
        options = {"dropout": dropout} if dropout else {}
        layer = LAYERS[kind](rng=np.random.default_rng(1), **options)
        changed = x.copy()
        changed[:, T // 2 :] *= -scale
        out = layer(changed, mask, return_weights=return_weights)
        out = out[0] if return_weights else out
        results.append(out.data[:, : T // 2].tobytes())
    assert results[0] == results[1]


@each_layer
def test_no_gradient_flows_from_the_past_to_the_future(make, rng):
    x = ta.Tensor(rng.standard_normal((2, 5, 4)), requires_grad=True)
    make().to(np.float64)(x)[:, :3].sum().backward()
    assert not x.grad.data[:, 3:].any()
    assert x.grad.data[:, :3].all()


# -- rows with everything blocked --


@each_layer
@pytest.mark.parametrize("return_weights", [False, True])
def test_a_row_with_everything_blocked_is_zero_and_so_is_its_gradient(make, return_weights, rng):
    layer = make().to(np.float64)
    x = ta.Tensor(rng.standard_normal((3, 4)), requires_grad=True)
    mask = np.array([[True, True, True], [False, False, True], [False, False, False]])
    out = layer(x, mask, return_weights=return_weights)
    if return_weights:
        out, weights = out
        assert_array_equal(weights.data[..., 0, :], np.zeros_like(weights.data[..., 0, :]))
    bias = layer.c_proj.bias.data if isinstance(layer, MultiHeadAttention) else 0
    assert_array_equal(out.data[0], np.zeros(4) + bias)
    out.sum().backward()
    for tensor in (x, *layer.parameters()):
        assert np.isfinite(tensor.grad.data).all()
    x.grad = None
    layer(x, mask)[0].sum().backward()
    assert_array_equal(x.grad.data, np.zeros((3, 4)))


# -- gradients --


@each_layer
@pytest.mark.parametrize("mask", [None, np.array([[False, True, False], [False] * 3, [True] * 3])])
def test_gradients_and_their_gradients(make, mask, rng, gradcheck_layer):
    layer = make(rng=rng)
    layer.forward, forward = (lambda x: forward(x, mask)), layer.forward
    gradcheck_layer(layer, rng.standard_normal((3, 4)))


@each_layer
def test_gradients_with_the_weights_returned(make, rng, gradcheck_layer):
    layer = make(rng=rng)
    layer.forward, forward = (lambda x: forward(x, return_weights=True)[0]), layer.forward
    gradcheck_layer(layer, rng.standard_normal((2, 3, 4)), order=1)


def test_both_paths_have_the_same_gradients(rng):
    values = [rng.standard_normal((2, 2, 5, 3)) for _ in range(3)]
    gradients = []
    for return_weights in (False, True):
        q, k, v = (ta.Tensor(value, requires_grad=True) for value in values)
        out = scaled_dot_product_attention(q, k, v, causal=True, return_weights=return_weights)
        ((out[0] if return_weights else out) ** 2).sum().backward()
        gradients.append(np.stack([t.grad.data for t in (q, k, v)]))
    assert_allclose(*gradients, rtol=1e-10, atol=1e-12)


# -- dropout --


@pytest.mark.parametrize("return_weights", [False, True])
def test_arrays_and_lists_are_taken_as_tensors(return_weights):
    x = [[1.0, 0.0], [0.0, 1.0]]
    result = scaled_dot_product_attention(x, np.array(x), ta.Tensor(x), causal=True, return_weights=return_weights)
    out = result[0] if return_weights else result
    assert_array_equal(out.numpy()[0], [1, 0])


def test_dropout_on_the_weights_comes_from_the_generator(rng):
    q = ta.Tensor(rng.standard_normal((2, 50, 4)))
    eye = ta.Tensor(np.broadcast_to(np.eye(50), (2, 50, 50)))
    one, two = (
        scaled_dot_product_attention(q, q, eye, dropout=0.5, rng=np.random.default_rng(3), return_weights=True)
        for _ in range(2)
    )
    assert_array_equal(one[0].data, two[0].data)
    kept, weights = one[0].data, one[1].data
    assert_allclose(kept[kept > 0], 2 * weights[kept > 0], rtol=1e-12)
    assert 0.4 < (kept > 0).mean() < 0.6


def test_evaluation_switches_dropout_off(rng):
    layer, x = MultiHeadAttention(4, 2, dropout=0.5, rng=rng), np.ones((3, 4), np.float32)
    assert not np.array_equal(layer(x).data, layer(x).data)
    layer.eval()
    assert_array_equal(layer(x).data, layer(x).data)


# -- bad input --


@pytest.mark.parametrize(
    "q, k, v",
    [((3, 4), (3, 5), (3, 4)), ((3, 4), (3, 4), (2, 4)), ((4,), (4,), (4,)), ((2, 3, 4), (3, 4), (3, 4))],
)
def test_shapes_that_do_not_meet_are_named(q, k, v):
    with pytest.raises(ValueError) as caught:
        scaled_dot_product_attention(*(ta.Tensor(np.ones(shape)) for shape in (q, k, v)))
    assert all(str(shape) in str(caught.value) for shape in (q, k, v))


@each_layer
@pytest.mark.parametrize("shape", [(4,), (3, 5), (1, 2, 3, 4)])
def test_inputs_of_another_shape_are_refused(make, shape):
    with pytest.raises(ValueError, match=r"must be \(T, 4\) or \(B, T, 4\)"):
        make()(np.ones(shape, np.float32))


def test_heads_must_divide_the_width():
    with pytest.raises(ValueError, match="3 heads don't divide a width of 4"):
        MultiHeadAttention(4, 3)


@pytest.mark.parametrize("p", [-0.1, 1.5])
def test_dropout_is_a_probability(p):
    q = ta.Tensor(np.ones((2, 2)))
    with pytest.raises(ValueError, match="probability"):
        scaled_dot_product_attention(q, q, q, dropout=p)
