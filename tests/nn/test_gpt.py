import math

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import tinygrad_attn as ta
from tinygrad_attn.nn import GPT, GPTConfig, token_probabilities

CONFIG = GPTConfig(block_size=4, vocab_size=7, n_layer=2, n_head=2, n_embd=8)
IDS = np.array([[0, 1, 2], [6, 5, 4]])


def make(seed=0, **options):
    return GPT(GPTConfig(**{**vars(CONFIG), **options}), rng=np.random.default_rng(seed))


@pytest.fixture
def model():
    return make()


# -- the model --


def test_the_state_dict_has_the_names_of_gpt_2(model):
    layer = ["ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj"]
    modules = [f"h.{i}.{name}" for i in range(2) for name in layer] + ["ln_f"]
    wanted = {"wte.weight", "wpe.weight"} | {f"{m}.{p}" for m in modules for p in ("weight", "bias")}
    assert set(model.state_dict()) == wanted
    assert model.state_dict()["h.0.attn.c_attn.weight"].shape == (8, 24)
    assert not any(name.endswith("bias") for name in make(bias=False).state_dict())


def test_parameters_are_named_by_their_path(model):
    assert all(p.name == name for name, p in model.named_parameters())


def test_the_smallest_gpt_2_has_its_known_number_of_parameters():
    c = GPTConfig()
    block = 12 * c.n_embd**2 + 13 * c.n_embd
    known = 124_439_808
    assert (c.vocab_size + c.block_size) * c.n_embd + c.n_layer * block + 2 * c.n_embd == known
    small = make(n_embd=12, n_head=3, n_layer=3, block_size=5, vocab_size=11)
    assert small.num_parameters() == (11 + 5) * 12 + 3 * (12 * 144 + 13 * 12) + 24


def test_the_initial_weights():
    state = make(n_embd=128, n_head=4, vocab_size=100, block_size=64).state_dict()
    for name, array in state.items():
        if name.endswith("bias"):
            assert not array.any(), name
        elif "ln_" in name:
            assert_array_equal(array, np.ones(128))
        else:
            std = 0.02 / math.sqrt(4) if name.endswith("c_proj.weight") else 0.02
            assert array.std() == pytest.approx(std, rel=0.03), name
            assert array.dtype == np.float32


def test_the_loss_of_an_untrained_model_is_that_of_guessing(model):
    _, loss = model(IDS, [[3, 4, 5], [2, 1, 0]])
    assert loss.item() == pytest.approx(math.log(7), abs=0.05)


def test_logits_and_loss(model):
    logits, loss = model(IDS, [[1, 2, 3], [5, 4, 3]])
    p = ta.softmax(logits, axis=-1).data
    wanted = -np.log([p[0, 0, 1], p[0, 1, 2], p[0, 2, 3], p[1, 0, 5], p[1, 1, 4], p[1, 2, 3]]).mean()
    assert logits.shape == (2, 3, 7)
    assert loss.item() == pytest.approx(wanted, rel=1e-5)
    assert model(IDS)[1] is None


def test_one_sequence_is_a_batch_of_one(model):
    assert_allclose(model(IDS[0])[0].data, model(IDS)[0].data[0], rtol=1e-5, atol=1e-7)
    assert model(IDS[0], IDS[1])[1].shape == ()


def test_every_parameter_gets_a_gradient_of_its_shape_and_type(model):
    model(IDS, IDS)[1].backward()
    for name, p in model.named_parameters():
        assert (p.grad.shape, p.grad.dtype) == (p.shape, np.float32), name


def test_the_embedding_gets_the_gradients_of_both_its_uses(model):
    logits, _ = model(IDS)
    logits.sum().backward()
    assert model.wte.weight.grad.data[3].any()  # no input has id 3, but every logit 3 is made with it


def test_gradients_agree_with_finite_differences():
    model = make(n_layer=1, n_embd=4, vocab_size=3, block_size=3).to(np.float64)
    table = model.wte.weight.data * 20

    def loss(weight):
        object.__setattr__(model.wte, "weight", weight)
        return model([[0, 1, 2]], [[1, 2, 0]])[1]

    ta.gradcheck(loss, ta.Tensor(table, requires_grad=True), order=2)


def test_a_later_token_never_changes_earlier_logits(model):
    changed = IDS.copy()
    changed[:, 2] = [3, 3]
    assert model(IDS)[0].data[:, :2].tobytes() == model(changed)[0].data[:, :2].tobytes()


def test_the_same_seed_gives_the_same_training_also_with_dropout():
    losses = []
    for _ in range(2):
        model = make(dropout=0.2)
        optimizer = ta.optim.AdamW(model.parameters(), lr=1e-2)
        for _ in range(3):
            _, loss = model(IDS, IDS)
            model.zero_grad()
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    assert losses[0] == losses[1]


def test_all_dropout_draws_from_the_one_generator():
    rng = np.random.default_rng(0)
    model = GPT(GPTConfig(**{**vars(CONFIG), "dropout": 0.1}), rng=rng)
    assert [generator for _, generator in model.named_generators()] == [rng]


def test_more_tokens_than_the_block_are_refused_with_both_numbers(model):
    with pytest.raises(ValueError, match=r"block_size=4.*5 tokens"):
        model(np.zeros((1, 5), int))


@pytest.mark.parametrize("ids", [np.zeros((1, 0), int), np.zeros((1, 1, 1), int), 3])
def test_ids_of_another_shape_are_refused(model, ids):
    with pytest.raises(ValueError, match="ids must be"):
        model(ids)


@pytest.mark.parametrize("ids, error", [([[7]], IndexError), ([[-1]], IndexError), ([[0.5]], TypeError)])
def test_ids_outside_the_vocabulary_are_refused(model, ids, error):
    with pytest.raises(error):
        model(ids)


def test_attention_weights_of_every_layer_and_head(model):
    weights = model.attention_weights(IDS)
    assert weights.shape == (2, 2, 2, 3, 3)
    assert_allclose(weights.sum(-1), 1, rtol=1e-5)
    assert not weights[..., np.triu(np.ones((3, 3), bool), 1)].any()
    assert_allclose(model.attention_weights(IDS[0]), weights[:, 0], rtol=1e-5, atol=1e-7)


# -- the configuration --


@pytest.mark.parametrize(
    "options, message",
    [
        ({"n_head": 3}, "n_head=3 heads don't divide n_embd=8"),
        ({"n_layer": 0}, "n_layer must be a positive integer"),
        ({"vocab_size": 6.5}, "vocab_size must be a positive integer"),
        ({"block_size": True}, "block_size must be a positive integer"),
        ({"dropout": 1.0}, "dropout must be"),
        ({"dropout": float("nan")}, "dropout must be"),
    ],
)
def test_impossible_configurations_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        GPTConfig(**{**vars(CONFIG), **options})


def test_sizes_become_plain_integers():
    assert type(GPTConfig(vocab_size=np.int64(5)).vocab_size) is int


# -- generating --


def test_generate_continues_the_prompt(model, rng):
    out = model.generate(IDS, 5, rng=rng)
    assert out.shape == (2, 8)
    assert_array_equal(out[:, :3], IDS)
    assert out.min() >= 0 and out.max() < 7
    assert model.generate([1, 2], 3, rng=rng).shape == (5,)


def test_the_same_generator_gives_the_same_text(model):
    one, two, other = (model.generate(IDS, 20, rng=np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert_array_equal(one, two)
    assert not np.array_equal(one, other)


def test_temperature_zero_takes_the_likeliest_and_needs_no_generator(model):
    out = model.generate(IDS, 1, temperature=0)
    assert_array_equal(out[:, -1], model(IDS)[0].data[:, -1].argmax(-1))


def test_the_model_sees_the_last_tokens_of_a_long_text(model, rng):
    seen, forward = [], model.forward
    model.forward = lambda ids: (seen.append(np.array(ids)), forward(ids))[1]
    out = model.generate(np.arange(10)[None] % 7, 3, rng=rng)
    assert out.shape == (1, 13)
    for step, window in enumerate(seen):
        assert_array_equal(window, out[:, 6 + step : 10 + step])


def test_no_new_tokens_leave_the_prompt_unchanged(model, rng):
    out = model.generate(IDS, 0, rng=rng)
    assert_array_equal(out, IDS)
    assert out is not IDS


def test_generating_builds_no_graph_and_gives_the_mode_back(model, rng):
    seen, norm = [], model.ln_f.forward
    model.ln_f.forward = lambda x: seen.append((model.training, norm(x))) or seen[-1][1]
    model.generate(IDS, 1, rng=rng)
    assert [(mode, out.requires_grad) for mode, out in seen] == [(False, False)]
    assert model.training
    assert model.eval().generate(IDS, 1, rng=rng) is not None and not model.training
    assert all(p.grad is None for p in model.parameters())


def test_logits_that_are_not_finite_raise_before_anything_is_drawn(model, rng):
    model.ln_f.weight.data[0] = np.nan
    before = rng.bit_generator.state
    with pytest.raises(ValueError, match="NaN"):
        model.generate(IDS, 1, rng=rng)
    assert rng.bit_generator.state == before
    assert model.training


@pytest.mark.parametrize(
    "prompt, new, options, error",
    [
        (np.zeros((1, 0), int), 1, {}, ValueError),
        ([], 1, {}, ValueError),
        (3, 1, {}, ValueError),
        ([1], -1, {}, ValueError),
        ([1], 1.5, {}, TypeError),
        ([1], 1, {"rng": None}, TypeError),
        ([1], 1, {"temperature": -1.0}, ValueError),
        ([1], 1, {"top_k": 0}, ValueError),
    ],
)
def test_what_cannot_be_generated_is_refused(model, prompt, new, options, error, rng):
    with pytest.raises(error):
        model.generate(prompt, new, **{"rng": rng, **options})


# -- the distribution of the next token --


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_top_k_keeps_exactly_k_also_among_equals(k):
    assert np.count_nonzero(token_probabilities([3, 1, 3, 3, 0], top_k=k)) == k


def test_top_k_renormalises_and_a_large_k_is_no_limit():
    assert_allclose(token_probabilities([1, 2, 3, 4], top_k=2), [0, 0, 0.26894142, 0.73105858], rtol=1e-7)
    assert_array_equal(token_probabilities([1, 2, 3, 4], top_k=50), token_probabilities([1, 2, 3, 4]))
    assert_array_equal(token_probabilities([1, 2, 3, 4], top_k=1), [0, 0, 0, 1])


@pytest.mark.parametrize("k", [0, -1])
def test_top_k_must_keep_something(k):
    with pytest.raises(ValueError, match="top_k"):
        token_probabilities([1, 2], top_k=k)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("temperature", [0, 1e-3, 1e-300, 5e-324])
@pytest.mark.parametrize("logits, best", [([1, 3, 2], 1), ([-1, 0, 2], 2)])
def test_a_temperature_near_zero_is_certain_of_the_largest(logits, best, temperature, dtype):
    assert_array_equal(token_probabilities(np.array(logits, dtype), temperature), np.eye(3)[best])


def test_temperature_divides_the_logits():
    wanted = ta.softmax(ta.Tensor(np.array([0.5, 1.0])), axis=-1).data
    assert_allclose(token_probabilities([1, 2], temperature=2.0), wanted)


@pytest.mark.parametrize("temperature", [-1, math.nan, math.inf])
def test_a_temperature_that_means_nothing_is_refused(temperature):
    with pytest.raises(ValueError, match="temperature"):
        token_probabilities([1, 2], temperature)


@pytest.mark.parametrize("logits", [[1, math.nan], [1, math.inf], [-math.inf, -math.inf], [[1, 2], [1, math.nan]]])
def test_logits_that_are_no_distribution_are_refused(logits):
    with pytest.raises(ValueError, match="logits"):
        token_probabilities(logits)


def test_a_logit_of_minus_infinity_is_never_drawn():
    assert_allclose(token_probabilities([1, -math.inf, 1]), [0.5, 0, 0.5])


def test_draws_follow_the_distribution(rng):
    p = np.array([[0.0, 0.2, 0.8, 0.0]])
    drawn = np.array([ta.nn.gpt._draw(p, rng)[0, 0] for _ in range(2000)])
    assert set(drawn) == {1, 2}
    assert np.mean(drawn == 2) == pytest.approx(0.8, abs=0.04)
