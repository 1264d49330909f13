"""Generation: how a token is drawn, and kept keys and values that change its cost and nothing else."""

import time

import numpy as np
import pytest

from tinygrad_attn import no_grad
from tinygrad_attn.nn import GPT, GPTConfig, KeyValueCache, token_probabilities
from tinygrad_attn.tensor import Tensor

BLOCK = 12


@pytest.fixture
def model(rng):
    config = GPTConfig(block_size=BLOCK, vocab_size=7, n_layer=2, n_head=2, n_embd=8, dropout=0.5)
    model = GPT(config, rng=rng).eval()
    for p in model.parameters():
        p.data = p.data + (0.3 * rng.standard_normal(p.shape)).astype(np.float32)
    return model


@pytest.mark.parametrize("shape", [(BLOCK,), (3, BLOCK)])
@pytest.mark.parametrize("pieces", [[1] * BLOCK, [5, 1, 6], [BLOCK]])
def test_logits_with_kept_keys_and_values_equal_those_without(model, rng, shape, pieces):
    ids = rng.integers(7, size=shape)
    whole, _ = model(ids)
    past = [KeyValueCache() for _ in model.h]
    with no_grad(), model.remembering(past):
        parts = [model(part)[0].data for part in np.split(ids, np.cumsum(pieces)[:-1], axis=-1)]
    assert np.abs(np.concatenate(parts, axis=-2) - whole.data).max() < 1e-5
    assert len(past[0]) == BLOCK


def test_what_is_kept_counts_towards_the_block(model):
    with model.remembering([KeyValueCache() for _ in model.h]):
        model([0] * 10)
        with pytest.raises(ValueError, match=f"block_size={BLOCK}"):
            model([0] * 3)


def drawn_by(model, logits, n, **options):
    """Tokens that `generate` draws where the model's logits are always these."""
    model.forward = lambda ids: (Tensor(np.tile(np.array(logits), (*np.shape(ids), 1))), None)
    return model.generate([[0]] * n, 1, rng=np.random.default_rng(0), **options)[:, 1]


def test_D03_top_k_draws_exactly_k_also_among_equals(model):
    assert len(set(drawn_by(model, [3.0, 1, 3, 3, 0], 5000, top_k=2))) == 2
    assert set(drawn_by(model, [3.0, 1, 3, 3, 0], 5000, top_k=50)) == {0, 1, 2, 3, 4}
    assert set(drawn_by(model, [1.0, 2, 3, 4], 100, top_k=1)) == {3}
    assert np.allclose(token_probabilities([1.0, 2, 3, 4], top_k=2), [0, 0, 0.26894142, 0.73105858])


@pytest.mark.parametrize("k", [0, -1])
def test_D03_top_k_must_leave_something_to_draw(model, k):
    with pytest.raises(ValueError, match="top_k"):
        model.generate([0], 1, top_k=k, rng=np.random.default_rng(0))


@pytest.mark.parametrize("logits, best", [([1.0, 3, 2], 1), ([-1.0, 0, 2], 2)])
@pytest.mark.parametrize("temperature", [0, 1e-3, 1e-300])
def test_D04_no_temperature_is_the_likeliest_token_every_time(model, logits, best, temperature):
    assert set(drawn_by(model, logits, 50, temperature=temperature)) == {best}


@pytest.mark.parametrize("temperature", [-1.0, np.nan])
def test_D04_a_temperature_below_zero_or_nan_is_refused(model, temperature):
    with pytest.raises(ValueError, match="temperature"):
        model.generate([0], 1, temperature=temperature, rng=np.random.default_rng(0))


def test_D13_generating_tracks_no_gradient_and_leaves_those_there_are(model):
    model([0, 1], [1, 2])[1].backward()
    before = {name: p.grad.data.copy() for name, p in model.named_parameters()}
    model.generate([0], 3, rng=np.random.default_rng(0))
    assert all(np.array_equal(before[name], p.grad.data) for name, p in model.named_parameters())


def test_D14_a_prompt_longer_than_the_block_comes_back_whole_and_no_new_tokens_change_nothing(model, rng):
    prompt = rng.integers(7, size=BLOCK + 6)
    given, forward = [], model.forward
    model.forward = lambda ids: given.append(ids.tolist()) or forward(ids)
    out = model.generate(prompt, 3, rng=rng)
    assert len(out) == len(prompt) + 3 and np.array_equal(out[: len(prompt)], prompt)
    assert given == [out[step + 6 : step + 6 + BLOCK].tolist() for step in range(3)]
    assert np.array_equal(model.generate(prompt, 0, rng=rng), prompt)
    with pytest.raises(ValueError, match="prompt"):
        model.generate([], 3, rng=rng)


def test_D14_the_model_itself_refuses_what_does_not_fit_with_both_numbers(model):
    with pytest.raises(ValueError, match=f"block_size={BLOCK}.* {BLOCK + 1} tokens"):
        model([0] * (BLOCK + 1))


def test_D19_logits_of_nan_raise_before_anything_is_drawn(model):
    with pytest.raises(ValueError, match="NaN"):
        drawn_by(model, [1.0, np.nan, 0.0], 1)


def plainly(model, ids, n, rng):
    """Generation as one would write it first: everything computed anew for each token."""
    for _ in range(n):
        logits, _ = model(ids[-BLOCK:])
        reached = token_probabilities(logits.data[-1]).cumsum()
        ids = np.append(ids, np.argmax(reached > rng.random() * reached[-1]))
    return ids


@pytest.mark.parametrize("prompt", [1, 5, BLOCK, 2 * BLOCK])
def test_generated_tokens_are_those_of_the_plain_loop_also_beyond_the_block(model, rng, prompt):
    ids = rng.integers(7, size=prompt)
    ours = model.generate(ids, 2 * BLOCK, rng=np.random.default_rng(5))
    assert ours.tolist() == plainly(model, ids, 2 * BLOCK, np.random.default_rng(5)).tolist()


def test_D14_the_model_is_given_each_token_once_and_then_the_last_block(model, rng):
    given, forward = [], model.forward
    model.forward = lambda ids: given.append(ids.shape[-1]) or forward(ids)
    model.generate(rng.integers(7, size=BLOCK - 2), 5, rng=rng)
    assert given == [BLOCK - 2, 1, 1, BLOCK, BLOCK]


def test_a_stream_gives_the_tokens_of_generate_one_by_one_and_checks_at_once(model, rng):
    ids = rng.integers(7, size=(2, 4))
    whole = model.generate(ids, 6, rng=np.random.default_rng(1))
    stream = model.stream(ids, 6, rng=np.random.default_rng(1))
    assert next(stream).tolist() == whole[:, 4:5].tolist()
    assert np.concatenate(list(stream), axis=-1).tolist() == whole[:, 5:].tolist()
    with pytest.raises(ValueError, match="prompt"):
        model.stream([], 1, rng=rng)


def test_the_model_may_be_used_between_the_tokens_of_a_stream(model, rng):
    model.train()
    ids = rng.integers(7, size=4)
    whole = model.generate(ids, 4, temperature=0)
    for token, expected in zip(model.stream(ids, 4, temperature=0), whole[4:]):
        assert model.training and token.item() == expected
        model([0, 1, 2], [1, 2, 3])[1].backward()


@pytest.mark.slow
def test_the_cost_of_a_token_does_not_grow_with_the_square_of_the_context():
    block = 512
    model = GPT(GPTConfig(block_size=block, vocab_size=65, n_layer=4, n_head=4, n_embd=128))
    stream, seconds = model.stream([0], block - 1, temperature=0), []
    for _ in range(block - 1):
        began = time.perf_counter()
        next(stream)
        seconds.append(time.perf_counter() - began)
    early, late = np.median(seconds[20:60]), np.median(seconds[-40:])
    began = time.perf_counter()
    with no_grad():
        model(np.zeros(block, int))
    anew = time.perf_counter() - began
    print(f"token 40: {early * 1e3:.2f} ms, token {block - 20}: {late * 1e3:.2f} ms, anew: {anew * 1e3:.1f} ms")
    assert late < 4 * early  # 12 times the context
    assert late < anew / 4
