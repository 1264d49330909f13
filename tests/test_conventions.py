"""What this package has decided where libraries differ: one test for each decision."""

import numpy as np
import pytest

import tinygrad_attn as ta
from tinygrad_attn import nn


def T(data, name=None):
    return ta.Tensor(np.asarray(data, dtype=np.float64), requires_grad=True, name=name)


def test_names_are_numpys_for_arrays_pytorchs_for_autograd_and_nanogpts_for_the_model():
    x = T([[1.0, 2.0]])
    assert x.sum(axis=0, keepdims=True).shape == (1, 2) and x.swapaxes(0, 1).shape == (2, 1)
    assert ta.concatenate([x, x], axis=0).shape == (2, 2)
    assert x.requires_grad and x.detach().requires_grad is False and callable(x.backward) and ta.no_grad
    config = nn.GPTConfig(block_size=4, vocab_size=5, n_layer=1, n_head=1, n_embd=4, dropout=0.0, bias=True)
    assert "wte.weight" in nn.GPT(config, rng=np.random.default_rng(0)).state_dict()


def test_python_floats_are_float32_and_arrays_keep_their_dtype():
    assert ta.Tensor(1.0).dtype == ta.Tensor([[1.0]]).dtype == np.float32
    assert ta.Tensor(np.array([1.0])).dtype == np.float64


def test_scalars_of_any_kind_and_0d_constants_are_weak():
    x = ta.Tensor([1.0, 2.0], requires_grad=True)
    for scalar in (2, 2.0, np.float64(2), np.array(2.0), np.sqrt(np.float64(4)), ta.Tensor(np.float64(2))):
        for y in (x * scalar, x / scalar, scalar - x, x**scalar, ta.maximum(x, scalar)):
            assert y.dtype == np.float32


def test_where_and_clip_keep_float32_too():
    x, two, whole = ta.Tensor([1.0, 2.0], requires_grad=True), ta.Tensor(np.float64(2)), ta.Tensor([3, 4])
    for weak in (two, whole):
        for result in (ta.where([True, False], x, weak), ta.where([True, False], weak, x), x.clip(0, weak)):
            assert result.dtype == np.float32, weak


def test_integers_follow_the_floats_beside_them():
    x, whole = ta.Tensor([[1.0, 2.0]], requires_grad=True), np.array([[3], [4]])
    assert (x + whole).dtype == (x @ whole).dtype == (whole @ x).dtype == np.float32
    (x @ whole).sum().backward()
    assert x.grad.dtype == np.float32 and x.grad.tolist() == [[3.0, 4.0]]


def test_a_gradient_has_the_dtype_and_the_shape_of_its_tensor():
    for dtype in (np.float16, np.float32, np.float64):
        x = ta.Tensor(np.ones((2, 1), dtype), requires_grad=True)
        (x * np.ones((2, 3))).sum().backward()
        assert x.grad.dtype == dtype and x.grad.shape == (2, 1)


def test_integers_have_no_gradients():
    with pytest.raises(TypeError, match="float"):
        ta.Tensor([1, 2], requires_grad=True)


def test_an_array_is_copied_and_what_a_graph_needs_is_read_only():
    array = np.array([1.0, 2.0])
    x = ta.Tensor(array, requires_grad=True)
    array[0] = 9
    assert x.tolist() == [1, 2]
    y = (x * x).sum()
    with pytest.raises(ValueError, match="read-only"):
        x.data[0] = 9
    y.backward()
    x.data[0] = 9


def test_only_leaves_keep_grad_which_is_none_before_and_accumulates():
    x = T(3.0)
    y = x * x
    assert x.grad is None
    y.backward(retain_graph=True)
    y.backward()
    assert isinstance(x.grad, ta.Tensor) and x.grad.item() == 12 and y.grad is None
    y = x * x
    y.retain_grad()
    y.backward()
    assert y.grad.item() == 1


def test_the_graph_is_freed_unless_it_is_retained_and_a_second_pass_says_what_to_do():
    y = T(3.0) * 2
    y.backward()
    with pytest.raises(RuntimeError, match="retain_graph=True"):
        y.backward()


def test_a_result_that_is_no_scalar_needs_a_seed_of_exactly_its_shape():
    y = T([1.0, 2.0]) * 2
    for seed in (None, np.ones(1), np.ones((1, 2)), 1.0):
        with pytest.raises(ValueError, match=r"\(2,\)"):
            y.backward(seed)


@pytest.mark.slow
def test_a_chain_of_a_million_operations_works_and_so_does_deleting_it():
    x = y = T(1.0)
    for _ in range(1_000_000):
        y = y + 1.0
    y.backward()
    assert x.grad.item() == 1


def slope(f, *values):
    xs = [T(v) for v in values]
    gradients = ta.grad(f(*xs), xs)
    return [g.tolist() for g in gradients]


def test_ties_split_evenly():
    assert slope(lambda x: x.max(), [5.0, 5.0, 1.0, 5.0, 5.0]) == [[0.25, 0.25, 0, 0.25, 0.25]]
    assert slope(lambda x: x.min(), [1.0, 1.0]) == [[0.5, 0.5]]
    assert slope(ta.maximum, 2.0, 2.0) == [0.5, 0.5] and slope(ta.minimum, 2.0, 2.0) == [0.5, 0.5]


def test_kinks_have_gradient_zero():
    assert slope(ta.relu, 0.0) == [0] and slope(ta.abs, 0.0) == [0] and slope(ta.norm, [0.0, 0.0]) == [[0, 0]]


def test_a_power_of_zero_has_gradient_zero_in_its_exponent():
    assert slope(lambda q: 0.0**q, 2.0) == [0] and slope(lambda q: 0.0**q, 0.0) == [0]
    assert slope(lambda a, q: a**q, 0.0, 3.0) == [0, 0]


def test_true_in_a_mask_is_blocked_and_masks_are_boolean():
    x = T([1.0, 2.0])
    assert x.masked_fill(np.array([False, True]), -np.inf).tolist() == [1, -np.inf]
    q = T(np.ones((1, 2, 4)))
    _, weights = nn.scaled_dot_product_attention(q, q, q, mask=np.array([[False, True]] * 2), return_weights=True)
    assert weights.tolist() == [[[1, 0], [1, 0]]]
    for mask in (np.array([0.0, 1.0]), np.array([0, 1]), [0, -np.inf]):
        with pytest.raises(TypeError, match="blocked"):
            x.masked_fill(mask, 0.0)
        with pytest.raises(TypeError, match="blocked"):
            nn.scaled_dot_product_attention(q, q, q, mask=np.broadcast_to(mask, (2, 2)))


def test_masking_selects_and_never_adds_a_large_number():
    scores = T([[1e30, -1e30, 5.0]])
    weights = scores.masked_fill(np.array([[True, False, True]]), -np.inf).softmax(axis=-1)
    assert weights.tolist() == [[0, 1, 0]]


def test_a_row_with_everything_blocked_is_zero_and_reaches_nothing_else():
    q, k, v = (T(np.random.default_rng(i).standard_normal((2, 3))) for i in range(3))
    mask = np.array([[True, True], [False, False]])
    output, weights = nn.scaled_dot_product_attention(q, k, v, mask=mask, return_weights=True)
    assert not output.data[0].any() and not weights.data[0].any()
    (output * output).sum().backward()
    assert not q.grad.data[0].any() and q.grad.data[1].any()
    assert all(np.isfinite(x.grad.data).all() for x in (q, k, v))


def test_causal_attention_is_aligned_at_the_end():
    assert nn.causal_mask(2, 4).tolist() == [[False, False, False, True], [False] * 4]
    with pytest.raises(ValueError, match="queries"):
        nn.causal_mask(3, 2)


def test_the_scale_is_one_over_the_root_of_the_head_width():
    q, k = np.array([[1.0, 1.0, 1.0, 1.0]]), np.array([[1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0]])
    _, weights = nn.scaled_dot_product_attention(T(q), T(k), T(k), return_weights=True)
    np.testing.assert_allclose(weights.data, [np.exp([2.0, 0.0]) / np.exp([2.0, 0.0]).sum()])


def test_cross_entropy_wants_classes_in_range_and_divides_by_those_used():
    z = T([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]])
    for bad in ([0, 3], [0, -1], [-101, 0]):
        with pytest.raises(IndexError, match=r"target -?\d+"):
            ta.cross_entropy(z, bad)
    assert ta.cross_entropy(z, [0, -100]).item() == ta.cross_entropy(z[:1], [0]).item()
    assert ta.cross_entropy(z, [7, 0], ignore_index=7).item() == ta.cross_entropy(z[1:], [0]).item()
    nothing = ta.cross_entropy(z, [-100, -100])
    nothing.backward()
    assert nothing.item() == 0 and not z.grad.data.any()


def test_gelu_is_the_tanh_form():
    assert np.isclose(ta.gelu(T(1.0)).item(), 0.8411919906082768, rtol=1e-14)


def test_logsumexp_of_nothing_but_minus_infinity():
    x = T([-np.inf, -np.inf])
    y = x.logsumexp()
    y.backward()
    assert y.item() == -np.inf and x.grad.tolist() == [0, 0]


def test_linear_computes_x_weight_plus_bias_with_weight_as_d_in_by_d_out():
    layer = nn.Linear(2, 3, rng=np.random.default_rng(0))
    x = ta.Tensor([[1.0, 2.0]])
    assert layer.weight.shape == (2, 3) and layer.bias.shape == (3,)
    np.testing.assert_allclose(layer(x).data, x.data @ layer.weight.data + layer.bias.data, rtol=1e-6)


def test_clip_grad_norm():
    p, q, unused = T([3.0]), T([4.0]), T([1.0])
    (p * 3 + q * 4).sum().backward()
    for bad in (0, -1.0, float("nan")):
        with pytest.raises(ValueError):
            ta.optim.clip_grad_norm([p, q], bad)
    assert np.isclose(float(ta.optim.clip_grad_norm([p, q, unused, p], 1.0)), 5.0)  # a tied one counts once
    np.testing.assert_allclose([p.grad.item(), q.grad.item()], [0.6, 0.8], rtol=1e-5)
    p.name, p.grad = "W_Q", np.array([np.inf])
    with pytest.raises((ValueError, FloatingPointError), match="W_Q"):
        ta.optim.clip_grad_norm([p, q], 1.0)
    assert np.isclose(q.grad.item(), 0.8, rtol=1e-5)


def test_randomness_comes_from_an_explicit_generator():
    x = ta.Tensor(np.ones(100))
    one, two = (ta.dropout(x, 0.5, rng=np.random.default_rng(4)) for _ in range(2))
    assert np.array_equal(one.data, two.data)
    for seed in (None, 0):
        with pytest.raises(TypeError, match=r"^dropout: .*default_rng"):
            ta.dropout(x, 0.5, rng=seed)
    assert np.array_equal(ta.dropout(x, 0.0).data, x.data)  # nothing to draw
    assert np.array_equal(ta.dropout(x * np.inf, 1.0).data, np.zeros(100))


def test_errors_come_before_numpys_and_say_operation_shapes_axis_and_remedy():
    x = T(np.ones((2, 3)))
    with pytest.raises(ValueError, match=r"^matmul: .*\(2, 3\) and \(2, 3\).*\.mT"):
        x @ x
    with pytest.raises(ValueError, match=r"^matmul: .*\(3,\) and \(2, 3\).*\(3\).*\(2\)"):
        x[0] @ x
    for weight in (np.ones(1), np.ones(2), np.ones((2, 3))):
        with pytest.raises(ValueError, match=r"^layer_norm: .*\(2, 3\).*\(3,\)"):
            ta.layer_norm(x, weight)
    with pytest.raises(ValueError, match=r"^sum: .*\(2, 3\).*axis.*2"):
        x.sum(axis=2)
