"""Optimizers: the arithmetic of PyTorch's, on flat buffers that nobody outside can notice."""

import copy
import math

import numpy as np
import pytest

import tinygrad_attn as ta
from tinygrad_attn.optim import SGD, AdamW, accumulate, clip_grad_norm, warmup_cosine


def T(value, dtype=np.float64):
    return ta.Tensor(np.asarray(value, dtype), requires_grad=True)


def give(p, gradient):
    """Set p's gradient through a backward pass."""
    p.grad = None
    (p * np.asarray(gradient, p.dtype)).sum().backward()


def run(optimizer, p, *gradients):
    for gradient in gradients:
        give(p, gradient)
        optimizer.step()
    return p.item()


# ---------------------------------------------------------------------------------------------- AdamW


def test_D17_adamw_three_steps():
    p = T(1.0)
    adamw = AdamW([p], lr=0.1, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
    for gradient, right in [(0.5, 0.899000002), (-0.2, 0.8635404181145108), (0.1, 0.824737700415581)]:
        assert run(adamw, p, gradient) == pytest.approx(right, abs=1e-14)


def test_D17_a_zero_gradient_still_decays():
    p = T(1.0)
    assert run(AdamW([p], lr=0.1, weight_decay=0.01), p, 0.0) == pytest.approx(0.999, abs=1e-15)


def test_D07_a_parameter_without_a_gradient_is_left_alone():
    p, q = T(1.0), T(1.0)
    adamw = AdamW([p, q], lr=0.1, weight_decay=0.01)
    give(q, 0.5)
    adamw.step()
    assert p.item() == 1.0
    assert q.item() == pytest.approx(0.899000002)
    assert adamw.state_dict()["0.steps"].tolist() == [0, 1]
    give(p, 0.0)
    q.grad = None
    adamw.step()
    assert p.item() == pytest.approx(0.999, abs=1e-15)
    assert q.item() == pytest.approx(0.899000002)


def test_a_late_parameter_starts_its_own_count():
    early, late, alone = T([1.0]), T([1.0]), T([1.0])
    adamw = AdamW([early, late], lr=0.1)
    run(adamw, early, 0.5, 0.5)
    give(early, 0.5), give(late, 0.3)
    adamw.step()
    run(AdamW([alone], lr=0.1), alone, 0.3)
    assert late.item() == alone.item()
    assert adamw.state_dict()["0.steps"].tolist() == [3, 1]


def tiny_gpt():
    config = ta.nn.GPTConfig(block_size=4, vocab_size=7, n_layer=2, n_head=2, n_embd=8, dropout=0.0, bias=True)
    return ta.nn.GPT(config, rng=np.random.default_rng(0))


def test_D06_only_matrices_and_embeddings_decay():
    model = tiny_gpt()
    before = {name: p.data.copy() for name, p in model.named_parameters()}
    adamw = AdamW(model.parameters(), lr=0.1, weight_decay=0.01)
    for p in model.parameters():
        give(p, 0.0)
    adamw.step()
    for name, p in model.named_parameters():
        if p.data.ndim >= 2:
            assert np.allclose(p.data, 0.999 * before[name], rtol=1e-6, atol=0)
        else:
            assert np.array_equal(p.data, before[name]), name


def test_D06_each_parameter_is_in_exactly_one_group_a_tied_one_once():
    model = tiny_gpt()
    params = list(model.parameters())
    adamw = AdamW(params + params, weight_decay=0.1)
    grouped = [p for group in adamw.groups for p in group.params]
    assert len(grouped) == len({id(p) for p in params})
    assert {id(p) for p in grouped} == {id(p) for p in params}
    tied = T([1.0])
    assert run(AdamW([tied, tied], lr=0.1), tied, 0.5) == pytest.approx(0.899000002)


def test_a_frozen_layer_stays_as_it_is():
    model = tiny_gpt()
    model.wpe.weight.requires_grad = False
    before = model.wpe.weight.data.copy()
    adamw = AdamW(model.parameters(), lr=0.1, weight_decay=0.1)
    model([0, 1], [1, 2])[1].backward()
    adamw.step()
    assert np.array_equal(model.wpe.weight.data, before)


def test_D09_resuming_with_the_state_equals_never_having_stopped():
    p = T(1.0)
    adamw = AdamW([p], lr=0.1, weight_decay=0.01)
    run(adamw, p, 0.5, -0.2)
    state = copy.deepcopy(adamw.state_dict())
    q = T(p.data)
    resumed = AdamW([q], lr=7.0, weight_decay=0.01)
    resumed.load_state_dict(state)
    assert resumed.lr == 0.1
    assert run(resumed, q, 0.1) == pytest.approx(0.824737700415581, abs=1e-14)
    r = T(0.8635404181145108)
    assert run(AdamW([r], lr=0.1, weight_decay=0.01), r, 0.1) == pytest.approx(0.7626768876963952)


def test_D09_state_that_does_not_fit_is_refused_whole():
    p, q = T(np.ones(2)), T(np.ones(3))
    adamw, sgd = AdamW([p, q], lr=0.1), SGD([p, q], lr=0.1, momentum=0.9)
    give(p, np.ones(2)), give(q, np.ones(3))
    adamw.step()
    before = adamw.state_dict()
    for other, message in [
        (AdamW([T(np.ones(2))], lr=9.9), r"exp_avg': \(2,\).* this needs .*exp_avg': \(5,\)"),
        (AdamW([p, T(np.ones(3), np.float32)], lr=9.9), r"the state holds .*'1\.exp_avg': \(3,\).* this needs"),
        (sgd, r"the state holds .*momentum.* this needs .*exp_avg_sq"),
    ]:
        with pytest.raises(ValueError, match=message):
            adamw.load_state_dict(other.state_dict())
    after = adamw.state_dict()
    assert after["lr"] == before["lr"]
    assert np.array_equal(after["0.exp_avg"], before["0.exp_avg"])


@pytest.mark.parametrize("dtype, tolerance", [(np.float64, 1e-12), (np.float32, 1e-5)])
@pytest.mark.parametrize("kind", ["AdamW", "SGD", "momentum"])
def test_many_steps_agree_with_pytorch(kind, dtype, tolerance, rng):
    torch = pytest.importorskip("torch")
    shapes = [(3, 4), (200, 300), (5, 5)]  # the second spans several pieces of the flat buffer
    ours = [T(rng.normal(size=shape), dtype) for shape in shapes]
    theirs = [torch.tensor(p.data.copy(), requires_grad=True) for p in ours]
    if kind == "AdamW":
        options = {"lr": 0.01, "betas": (0.9, 0.99), "weight_decay": 0.1}
        a, b = AdamW(ours, **options), torch.optim.AdamW(theirs, **options)
    else:
        options = {"lr": 0.01, "momentum": 0.9 if kind == "momentum" else 0.0, "weight_decay": 0.1}
        a, b = SGD(ours, **options), torch.optim.SGD(theirs, **options)
    for step in range(20):
        for i, (p, q) in enumerate(zip(ours, theirs)):
            if (step + i) % 3 == 0:  # not every parameter has a gradient in every step
                p.grad = q.grad = None
                continue
            gradient = rng.normal(size=p.shape).astype(dtype)
            give(p, gradient)
            q.grad = torch.tensor(gradient)
        a.step()
        b.step()
    for p, q in zip(ours, theirs):
        assert np.allclose(p.data, q.detach().numpy(), rtol=tolerance, atol=tolerance)


# ---------------------------------------------------------------------------------------------- flat buffers


def test_parameters_keep_shape_value_and_dtype_in_the_flat_buffer(rng):
    p, q = T(rng.normal(size=(2, 3)), np.float32), T(rng.normal(size=4))
    values = p.data.copy(), q.data.copy()
    optimizer = SGD([p, q], lr=0.1)
    assert np.array_equal(p.data, values[0]) and np.array_equal(q.data, values[1])
    give(p, np.ones((2, 3))), give(q, np.ones(4))
    optimizer.step()
    assert p.data.dtype == np.float32 and q.data.dtype == np.float64
    assert np.allclose(p.data, values[0] - 0.1) and np.allclose(q.data, values[1] - 0.1)


def test_a_new_array_assigned_to_data_is_noticed():
    p = T(np.ones(3))
    sgd = SGD([p], lr=1.0)
    p.data = np.full(3, 10.0)
    give(p, np.ones(3))
    sgd.step()
    assert p.numpy().tolist() == [9.0, 9.0, 9.0]


def test_a_dtype_changed_behind_the_optimizer_is_an_error():
    p = T(np.ones(3))
    sgd = SGD([p], lr=1.0)
    p.data = np.ones(3, np.float32)
    give(p, np.ones(3))
    with pytest.raises(TypeError, match=r"float64 .* float32"):
        sgd.step()


def test_two_optimizers_may_share_a_parameter():
    p = T(1.0)
    a, b = SGD([p], lr=1.0), SGD([p], lr=10.0)
    assert run(a, p, 1.0) == 0.0
    assert run(b, p, 1.0) == -10.0
    assert run(a, p, 1.0) == -11.0


def test_a_copy_of_the_model_is_independent():
    model = tiny_gpt()
    optimizer = SGD(model.parameters(), lr=1.0)
    twin = copy.deepcopy(model)
    for p in model.parameters():
        give(p, 1.0)
    optimizer.step()
    assert all(np.allclose(p.data, q.data - 1, atol=1e-5) for p, q in zip(model.parameters(), twin.parameters()))


def test_a_step_while_a_graph_still_needs_the_values_is_refused():
    p = T(2.0)
    sgd = SGD([p], lr=0.1)
    give(p, 1.0)
    loss = p * p
    with pytest.raises(RuntimeError, match=r"backward\(\)"):
        sgd.step()
    assert p.item() == 2.0
    loss.backward()
    sgd.step()
    assert p.item() == pytest.approx(2.0 - 0.1 * 5.0)


def test_zero_grad_forgets_gradients():
    p = T(1.0)
    sgd = SGD([p], lr=0.1)
    give(p, 1.0)
    sgd.zero_grad()
    assert p.grad is None


@pytest.mark.parametrize(
    "make, error, message",
    [
        (lambda: AdamW([]), ValueError, "no parameters"),
        (lambda: AdamW([ta.Tensor([1.0])]), TypeError, "requires_grad"),
        (lambda: AdamW([T(1.0) * 2]), TypeError, "leaf"),
        (lambda: AdamW([np.ones(3)]), TypeError, "leaf Tensor"),
        (lambda: AdamW([T(1.0)], lr=-1), ValueError, "lr"),
        (lambda: AdamW([T(1.0)], lr=math.nan), ValueError, "lr"),
        (lambda: AdamW([T(1.0)], betas=(0.9, 1.0)), ValueError, "betas"),
        (lambda: AdamW([T(1.0)], weight_decay=-1), ValueError, "weight_decay"),
        (lambda: SGD([T(1.0)], lr=0.1, momentum=1.0), ValueError, "momentum"),
    ],
)
def test_what_cannot_be_optimized_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


# ---------------------------------------------------------------------------------------------- clipping


def test_clip_scales_to_the_limit_and_returns_the_norm_before():
    p, q = T([3.0, 0.0]), T(4.0)
    give(p, [3.0, 0.0]), give(q, 4.0)
    assert clip_grad_norm([p, q], 10.0) == 5.0
    assert p.grad.numpy().tolist() == [3.0, 0.0]
    assert clip_grad_norm([p, q], 1.0) == 5.0
    assert np.allclose(p.grad.numpy(), [0.6, 0.0]) and q.grad.item() == pytest.approx(0.8)


def test_clip_skips_missing_gradients_and_counts_a_tied_parameter_once():
    p, q = T(3.0), T(1.0)
    give(p, 3.0)
    assert clip_grad_norm([p, q, p], 1.0) == 3.0
    assert p.grad.item() == pytest.approx(1.0) and q.grad is None
    assert clip_grad_norm([q], 1.0) == 0.0


def test_clip_does_not_scale_an_array_that_two_gradients_share_twice():
    p, q = T([3.0]), T([3.0])
    (p + q).backward(np.array([3.0]))
    clip_grad_norm([p, q], 1.0)
    assert np.hypot(p.grad.item(), q.grad.item()) == pytest.approx(1.0)


def test_clip_measures_gradients_whose_square_overflows():
    p = T([3.0, 4.0], np.float32)
    give(p, [3e30, 4e30])
    assert clip_grad_norm([p], 1.0) == pytest.approx(5e30, rel=1e-6)
    assert np.allclose(p.grad.numpy(), [0.6, 0.8])
    assert p.grad.dtype == np.float32


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("sizes", [[1e200, 1e200], [1e154, 1e154, 1e154]])
def test_squares_beyond_float64_do_not_make_a_finite_gradient_infinite(sizes):
    params = [T(0.0) for _ in sizes]
    for p, size in zip(params, sizes):
        p.grad = size
    assert clip_grad_norm(params, 1.0) == pytest.approx(sizes[0] * math.sqrt(len(sizes)))
    assert params[0].grad.item() == pytest.approx(1 / math.sqrt(len(sizes)))


def test_one_tensor_is_one_parameter_to_clip():
    p = T([0.0, 0.0])
    p.grad = [3.0, 4.0]
    assert clip_grad_norm(p, 1.0) == 5.0
    assert np.allclose(p.grad.numpy(), [0.6, 0.8])


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_names_its_parameter_and_changes_nothing(value):
    p, q = T(3.0), ta.Tensor(1.0, requires_grad=True, name="wild")
    give(p, 3.0), give(q, value)
    with pytest.raises(FloatingPointError, match="wild"):
        clip_grad_norm([p, q], 1.0)
    assert p.grad.item() == 3.0


@pytest.mark.parametrize("limit", [0.0, -1.0, math.nan])
def test_a_limit_that_is_not_positive_is_refused(limit):
    with pytest.raises(ValueError, match="positive"):
        clip_grad_norm([T(1.0)], limit)


# ---------------------------------------------------------------------------------------------- schedule


def test_the_schedule_warms_up_peaks_and_ends_at_the_minimum():
    rates = [warmup_cosine(s, max_lr=1e-3, min_lr=1e-4, warmup=100, total=2000) for s in range(2100)]
    assert rates[0] == pytest.approx(1e-3 / 101)
    assert max(rates) == rates[100] == pytest.approx(1e-3)
    assert rates[1050] == pytest.approx(5.5e-4)
    assert rates[2000:] == [1e-4] * 100
    assert rates[:100] == sorted(rates[:100]) and rates[100:] == sorted(rates[100:], reverse=True)


def test_a_schedule_that_cannot_be_is_refused():
    with pytest.raises(ValueError, match="warmup <= total"):
        warmup_cosine(0, max_lr=1.0, min_lr=0.1, warmup=10, total=5)


# ---------------------------------------------------------------------------------------------- accumulation


def test_D12_micro_batches_are_weighted_by_their_tokens():
    logits = [np.array([[0.0, 0], [0, 2], [1, 0]]), np.array([[3.0, 0]])]
    targets = [np.array([0, 1, 0]), np.array([1])]
    shift = T([0.1, -0.2])
    mean = accumulate(lambda x, y: ta.cross_entropy(shift + x, y), list(zip(logits, targets)))
    accumulated = shift.grad.numpy().copy()
    shift.grad = None
    joined = ta.cross_entropy(shift + np.concatenate(logits), np.concatenate(targets))
    joined.backward()
    assert mean == pytest.approx(joined.item(), abs=1e-12)
    assert np.allclose(accumulated, shift.grad.numpy(), rtol=0, atol=1e-12)
    shift.data = np.zeros(2)
    plain = accumulate(lambda x, y: ta.cross_entropy(shift + x, y), list(zip(logits, targets)))
    assert plain == pytest.approx(1.0454810576737206, abs=1e-12)


def test_D12_ignored_targets_do_not_count():
    w = T([[1.0, -1.0]])
    batches = [(np.ones((2, 1)), np.array([0, -100])), (np.ones((1, 1)), np.array([1]))]
    mean = accumulate(lambda x, y: ta.cross_entropy(x @ w, y), batches)
    right = ta.cross_entropy(ta.Tensor(np.array([[1.0, -1.0]] * 2)), np.array([0, 1])).item()
    assert mean == pytest.approx(right, abs=1e-12)


def test_D12_the_last_window_is_finished_with_its_own_weight():
    p = T(0.0)
    sgd = SGD([p], lr=0.1)
    for window in ([1.0, 3.0], [5.0]):
        sgd.zero_grad()
        accumulate(lambda g, _: p * g, [(g, np.zeros(1)) for g in window])
        sgd.step()
    assert p.item() == pytest.approx(-0.7, abs=1e-12)
