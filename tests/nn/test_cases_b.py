"""Attention and network operations at the points where engines have been reported to go wrong.

Every value was computed by hand or in float64 elsewhere. A warning is a failure (see pyproject.toml).
"""

import numpy as np
import pytest
from hypothesis import given, strategies as st
from numpy.testing import assert_allclose, assert_array_equal

import tinygrad_attn as ta
from tinygrad_attn.nn.attention import merge_heads, split_heads
from tinygrad_attn.ops.nn import attention_weights


def T(values, dtype=np.float64):
    return ta.Tensor(np.array(values, dtype), requires_grad=True)


def C(values, dtype=np.float64):
    return ta.Tensor(np.array(values, dtype))


def close(actual, wanted, atol=5e-9):
    assert_allclose(getattr(actual, "data", actual), wanted, rtol=1e-7, atol=atol)


def weights(scores, keep):
    """The package's own attention weights of given scores: queries are the scores, keys the identity."""
    scores = np.asarray(scores)
    return attention_weights(C(scores, scores.dtype), C(np.eye(scores.shape[-1]), scores.dtype), ~keep, 1.0)


# -- masks --


def test_B03_masking_in_half_precision_selects():
    out = weights(np.array([[1.0, 2.0]], np.float16), np.array([[True, False]]))
    assert out.dtype == np.float16
    assert_array_equal(out.data, [[1, 0]])


def test_B03_a_very_negative_score_stays_above_a_blocked_one():
    out = weights(np.array([[-65504.0, 0.0]], np.float16), np.array([[True, False]]))
    assert_array_equal(out.data, [[1, 0]])


KEEP = np.array([[True, True], [True, False]])  # (B, Tk): sample 1 has a padded key
PADDED = [[[[0.5, 0.5]] * 2] * 2, [[[1, 0]] * 2] * 2]  # (B, H, Tq, Tk)


def attend(mask, shape=(2, 2, 2, 2)):
    """Weights of queries and keys that are all zero."""
    q = C(np.zeros(shape))
    return ta.nn.scaled_dot_product_attention(q, q, q, mask=mask, return_weights=True)[1].data


def test_B15_padding_follows_its_sample_through_the_heads():
    assert_array_equal(attend(~KEEP[:, None, None, :]), PADDED)


def test_B15_a_mask_per_head_and_pair_is_used_as_it_is():
    mask = np.zeros((2, 2, 2, 2), bool)
    mask[0, 1, 1, 0] = True
    out = attend(mask)
    assert_array_equal(out[0, 1, 1], [0, 1])
    out[0, 1, 1] = 0.5
    assert_array_equal(out, np.full((2, 2, 2, 2), 0.5))


def test_B15_two_axes_are_refused_where_they_could_mean_either():
    with pytest.raises(ValueError, match=r"mask\[None, None\] or mask\[:, None, None, :\]"):
        attend(~KEEP)


def test_B15_two_axes_work_where_they_can_only_mean_one():
    pairs = np.array([[False, True], [False, False]])
    assert_array_equal(attend(pairs, (3, 2, 2, 2)), [[[[1, 0], [0.5, 0.5]]] * 2] * 3)
    q, k = C(np.zeros((2, 2, 3, 2))), C(np.zeros((2, 2, 2, 2)))
    out = ta.nn.scaled_dot_product_attention(q, k, k, mask=~KEEP, return_weights=True)[1].data
    assert_array_equal(out, np.repeat(PADDED, [3, 0], axis=2))


@pytest.mark.parametrize("shape", [(2,), (3, 2), (2, 2, 2), (2, 2, 2, 1), (2, 1, 1, 3), (1, 2, 2, 2, 2)])
def test_B15_other_shapes_are_refused(shape):
    with pytest.raises(ValueError, match="doesn't fit scores"):
        attend(np.zeros(shape, bool))


FORMS = {
    "(Tq, Tk)": lambda B, H, Tq, Tk: ((Tq, Tk), (1, 1, Tq, Tk)),
    "(B, Tk)": lambda B, H, Tq, Tk: ((B, Tk), (B, 1, 1, Tk)),
    "(B, 1, 1, Tk)": lambda B, H, Tq, Tk: ((B, 1, 1, Tk),) * 2,
    "(B, 1, Tq, Tk)": lambda B, H, Tq, Tk: ((B, 1, Tq, Tk),) * 2,
    "(1, H, Tq, Tk)": lambda B, H, Tq, Tk: ((1, H, Tq, Tk),) * 2,
    "(B, H, Tq, Tk)": lambda B, H, Tq, Tk: ((B, H, Tq, Tk),) * 2,
}
small = st.integers(1, 3)


@pytest.mark.parametrize("form", FORMS)
@given(small, small, small, small, st.integers(0, 2**32 - 1))
def test_B15_each_form_means_what_it_says_or_is_refused(form, B, H, Tq, Tk, seed):
    rng = np.random.default_rng(seed)
    shape, meaning = FORMS[form](B, H, Tq, Tk)
    q, k = (C(rng.standard_normal((B, H, T, 2))) for T in (Tq, Tk))
    mask = rng.random(shape) < 0.5
    if len(shape) == 2 and B == Tq > 1:
        with pytest.raises(ValueError, match="could mean"):
            ta.nn.scaled_dot_product_attention(q, k, k, mask=mask)
        return
    out = ta.nn.scaled_dot_product_attention(q, k, k, mask=mask)
    blocked = np.broadcast_to(mask.reshape(meaning), (B, H, Tq, Tk))
    e = np.where(blocked, 0, np.exp(q.data @ k.data.mT / np.sqrt(2)))
    total = e.sum(-1, keepdims=True)
    assert_allclose(out.data, e / np.where(total == 0, 1, total) @ k.data, rtol=1e-10, atol=1e-12)


THIRDS = [[1, 0, 0], [0.5, 0.5, 0], [1 / 3, 1 / 3, 1 / 3]]


def test_B17_true_means_blocked():
    close(weights(np.zeros((3, 3)), np.tri(3, dtype=bool)), THIRDS)


@pytest.mark.parametrize("mask", [np.where(np.tri(3), 0, -np.inf), np.tri(3), np.tri(3, dtype=int)])
def test_B17_a_mask_of_numbers_is_refused(mask):
    with pytest.raises(TypeError, match="boolean and True means blocked"):
        attend(mask, (3, 3))


def test_B17_the_advice_of_the_refusal_is_right():
    keep = np.tri(3)
    close(attend(keep == 0, (3, 3)), THIRDS)
    close(attend(np.where(keep, 0, -np.inf) < 0, (3, 3)), THIRDS)


def test_B20_rows_sum_to_one_because_the_mask_comes_before_the_softmax():
    close(weights(np.zeros((3, 3)), np.tri(3, dtype=bool)).data.sum(-1), [1, 1, 1])


# -- heads and scale --


def test_B14_splitting_into_heads_keeps_positions_apart():
    x = C(np.arange(8.0).reshape(1, 2, 4))
    assert_array_equal(split_heads(x, 2).data[0, 0], [[0, 1], [4, 5]])
    assert_array_equal(merge_heads(split_heads(x, 2), x.shape).data, x.data)


def test_B14_merging_puts_the_heads_of_a_token_side_by_side():
    v = C([[[[0, 1], [10, 11]], [[100, 101], [110, 111]]]])  # (B, H, T, d), number = 100 h + 10 t + a
    assert_array_equal(merge_heads(v, (1, 2, 4)).data, [[[0, 1, 100, 101], [10, 11, 110, 111]]])


def test_B14_B16_a_whole_block_by_hand():
    layer = ta.nn.MultiHeadAttention(4, 2, bias=False).to(np.float64)
    layer.load_state_dict({"c_attn.weight": np.tile(np.eye(4), 3), "c_proj.weight": np.eye(4)})
    x = C(np.arange(8.0).reshape(1, 2, 4) / 4)
    close(layer(x), [[[0, 0.25, 0.5, 0.75], [0.83075538, 1.08075538, 1.40871931, 1.65871931]]])


def test_B16_the_scale_is_that_of_the_head_width():
    q, k = C([[[[1.0, 1.0]]]]), C([[[[1.0, 1.0], [0.0, 0.0]]]])  # raw scores [2, 0], head width 2
    _, w = ta.nn.scaled_dot_product_attention(q, k, k, return_weights=True)
    close(w, [[[[0.80442968, 0.19557032]]]])


# -- softmax and cross entropy --


def test_B04_large_logits():
    close(ta.softmax(T([1000, 1001, 1002])), [0.09003057, 0.24472847, 0.66524096])
    close(ta.log_softmax(T([1000, 1001, 1002])), [-2.40760596, -1.40760596, -0.40760596])
    z = T([-431, 279, 427])
    loss = ta.cross_entropy(z[None], [0])
    loss.backward()
    assert loss.item() == 858
    close(z.grad, [-1, np.exp(279 - 427), 1], atol=1e-70)
    u = T([-1047, -981, 1891])
    s = ta.softmax(u)
    s[2].backward()
    assert_array_equal(s.data, [0, 0, 1])
    assert_array_equal(u.grad.data, [0, 0, 0])


@pytest.mark.parametrize("dtype, tolerance", [(np.float32, 1e-6), (np.float16, 1e-3)])
def test_B04_large_logits_in_small_types(dtype, tolerance):
    three = {np.float32: [88, 89, 90], np.float16: [10, 11, 12]}[dtype]
    s = ta.softmax(T(three, dtype))
    assert s.dtype == dtype
    close(s, [0.09003057, 0.24472847, 0.66524096], atol=tolerance)


def test_B05_log_softmax_gradient():
    x = T([0.1, 0.9])
    y = ta.log_softmax(x)
    y.backward(np.array([1.0, 1.0]))
    close(y, [-1.17110067, -0.37110067])
    close(x.grad, [0.37994896, -0.37994896])


def test_B05_log_softmax_ignores_a_common_constant():
    x = T([1000.1, 1000.9])
    y = ta.log_softmax(x)
    y.backward(np.array([1.0, 1.0]))
    close(y, [-1.17110067, -0.37110067])
    close(x.grad, [0.37994896, -0.37994896])


def test_B07_the_mean_divides_by_the_targets_used():
    z = T([[1, 2, 3], [3, 2, 1], [0, 0, 0]])
    loss = ta.cross_entropy(z, [2, -100, 0], ignore_index=-100)
    loss.backward()
    close(loss, 0.75310913)
    close(z.grad, [[0.04501529, 0.12236424, -0.16737952], [0, 0, 0], [-1 / 3, 1 / 6, 1 / 6]])


def test_B07_all_ignored_is_zero_with_gradient_zero():
    y = T([[1, 2, 3], [3, 2, 1]])
    loss = ta.cross_entropy(y, [-100, -100], ignore_index=-100)
    loss.backward()
    assert loss.item() == 0
    assert_array_equal(y.grad.data, np.zeros((2, 3)))


# -- layers --


@pytest.mark.parametrize("ids, error", [([-1], IndexError), ([3], IndexError), ([1.0], TypeError)])
def test_B09_embedding_refuses_what_is_not_in_the_table(ids, error):
    with pytest.raises(error, match="embedding"):
        ta.nn.Embedding(3, 2)(ids)


def test_B09_embedding_shapes():
    table = ta.nn.Embedding(3, 2)
    assert table([[0, 2], [2, 0]]).shape == (2, 2, 2)
    assert table([]).shape == (0, 2)


def test_B10_layer_norm_of_a_constant_row():
    x, w, b = T([[3, 3, 3]]), T([1, 1, 1]), T([0.1, 0.2, 0.3])
    y = ta.layer_norm(x, w, b, eps=1e-5)
    y.backward(np.array([[1.0, 2.0, 3.0]]))
    close(y, [[0.1, 0.2, 0.3]])
    close(x.grad, [[-316.22776602, 0, 316.22776602]])
    close(w.grad, [0, 0, 0])
    close(b.grad, [1, 2, 3])


def test_B11_layer_norm_has_eps_inside_the_root_and_the_population_variance():
    one, zero = np.ones, np.zeros
    y = ta.layer_norm(C([[1, 2, 3, 4]]), one(4), zero(4), eps=1e-5)
    close(y, [[-1.34163542, -0.44721181, 0.44721181, 1.34163542]])
    y = ta.layer_norm(C([[1e-3, -1e-3]]), one(2), zero(2), eps=1e-5)
    close(y, [[0.30151134, -0.30151134]])


class KeepsTheSecond(np.random.Generator):
    def random(self, size=None, dtype=np.float64, out=None):
        return np.array([0.0, 0.999], dtype)


def test_B21_the_gradient_follows_what_was_kept_not_what_is_zero():
    z = T([0, 2])
    y = ta.nn.Dropout(0.5, rng=KeepsTheSecond(np.random.PCG64()))(z)
    y.sum().backward()
    assert_array_equal(y.data, [0, 4])
    assert_array_equal(z.grad.data, [0, 2])


@pytest.mark.parametrize("p, value, gradient", [(0.0, [1, 2], [1, 1]), (1.0, [0, 0], [0, 0])])
def test_B21_dropout_at_the_ends(p, value, gradient, rng):
    x = T([1, 2])
    layer = ta.nn.Dropout(p, rng=rng)
    y = layer(x)
    y.sum().backward()
    assert_array_equal(y.data, value)
    assert_array_equal(x.grad.data, gradient)


def test_B21_the_gradient_of_a_kept_zero_is_that_of_a_kept_element(rng):
    z = T(np.zeros(1000))
    y = ta.nn.Dropout(0.5, rng=rng)(z)
    y.sum().backward()
    assert set(z.grad.data) == {0.0, 2.0}
    assert 400 < np.count_nonzero(z.grad.data) < 600
    assert_array_equal(y.data, np.zeros(1000))


@pytest.mark.parametrize("p", [1.5, -0.1, float("nan")])
def test_B21_dropout_refuses_what_is_no_probability(p, rng):
    with pytest.raises(ValueError, match="probability"):
        ta.nn.Dropout(p, rng=rng)


def test_B21_evaluation_is_the_identity_and_draws_nothing(rng):
    layer, x = ta.nn.Dropout(0.5, rng=rng).eval(), T([1, 2])
    before = rng.bit_generator.state
    assert_array_equal(layer(x).data, x.data)
    assert rng.bit_generator.state == before


# -- activations far from zero --

TANH_GELU = {
    -1e200: (0, 0),
    -20.0: (0, 0),
    -6.0: (-8.4396467e-11, None),
    0.0: (0, 0.5),
    1.0: (0.8411919906082768, 1.0829640838457826),
    20.0: (20, 1),
    1e200: (1e200, 1),
}


@pytest.mark.parametrize("v", TANH_GELU)
def test_B22_gelu_far_from_zero(v):
    value, gradient = TANH_GELU[v]
    x = T(v)
    y = ta.gelu(x)
    y.backward()
    assert_allclose(y.data, value, rtol=1e-6, atol=1e-80)
    if gradient is not None:
        assert_allclose(x.grad.data, gradient, rtol=1e-12, atol=1e-80)


SIGMOID = {
    -1000.0: (0, 0),
    -548.3162: (7.40116e-239, 7.40116e-239),
    0.0: (0.5, 0.25),
    1000.0: (1, 0),
}


@pytest.mark.parametrize("v", SIGMOID)
def test_B23_sigmoid_far_from_zero(v):
    x = T(v)
    y = ta.sigmoid(x)
    y.backward()
    assert_allclose([y.data, x.grad.data], SIGMOID[v], rtol=1e-4, atol=0)


@pytest.mark.parametrize("v, value", [(-1000.0, -1), (0.0, 0), (1000.0, 1)])
def test_B23_tanh_far_from_zero(v, value):
    x = T(v)
    y = ta.tanh(x)
    y.backward()
    assert (y.item(), x.grad.item()) == (value, 1 - value**2)


# -- second derivatives --


def test_B24_hessian_of_softmax():
    wanted = [
        [0.06717355, -0.01806575, -0.0491078],
        [-0.01806575, -0.01124882, 0.02931457],
        [-0.0491078, 0.02931457, 0.01979323],
    ]
    close(ta.hessian(lambda x: ta.softmax(x)[0], T([0, 1, 2])), wanted)


def test_B24_hessian_of_cross_entropy():
    wanted = [[0.109375, -0.03125, -0.078125], [-0.03125, 0.1875, -0.15625], [-0.078125, -0.15625, 0.234375]]
    z = T(np.log([1.0, 2.0, 5.0]))  # p = [1/8, 2/8, 5/8]
    close(ta.hessian(lambda z: ta.cross_entropy(z[None], [0]), z), wanted, atol=1e-15)


def derivatives(f, x, order):
    y, found = f(x), []
    for _ in range(order):
        (y,) = ta.grad(y, [x], create_graph=True)
        found.append(y.item())
    return found


def test_B24_three_derivatives_of_gelu():
    wanted = [1.0829640838457826, 0.24214819798377295, -0.72172039178848643]
    assert_allclose(derivatives(ta.gelu, T(1.0), 3), wanted, rtol=1e-12)
    wanted = [0.5, 0.79788456080286536, 0]
    assert_allclose(derivatives(ta.gelu, T(0.0), 3), wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("return_weights", [False, True])
def test_B24_two_derivatives_through_attention(return_weights):
    def output(a):
        q = ta.stack([a, C(1.0)])[None]  # (1, 2)
        out = ta.nn.scaled_dot_product_attention(
            q, C(np.eye(2)), C([[0], [1]]), scale=1.0, return_weights=return_weights
        )
        return (out[0] if return_weights else out).sum()

    assert_allclose(derivatives(output, T(0.3), 2), [-0.22171287329310904, -0.07457878844034183], rtol=1e-12)
