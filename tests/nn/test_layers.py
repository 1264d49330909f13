import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import tinygrad_attn as ta
from tinygrad_attn import nn

LAYERS = {
    "linear": lambda rng: nn.Linear(3, 2, rng=rng),
    "linear without bias": lambda rng: nn.Linear(3, 2, bias=False, rng=rng),
    "layer norm": lambda rng: nn.LayerNorm(3),
    "layer norm without bias": lambda rng: nn.LayerNorm(3, bias=False),
    "mlp": lambda rng: nn.MLP(3, 4, rng=rng),
}


@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
def test_gradients_and_their_gradients(make, rng, gradcheck_layer):
    gradcheck_layer(make(rng), rng.standard_normal((2, 2, 3)))


@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
def test_float32_stays_float32(make, rng):
    layer, x = make(rng), ta.Tensor(np.ones((2, 3), np.float32), requires_grad=True)
    y = layer(x)
    y.sum().backward()
    assert {y.dtype, x.grad.dtype, *(p.grad.dtype for p in layer.parameters())} == {np.dtype(np.float32)}


def test_linear_is_x_weight_plus_bias(rng):
    layer, x = nn.Linear(3, 2, rng=rng), rng.standard_normal((4, 3)).astype(np.float32)
    assert layer.weight.shape == (3, 2)
    assert_allclose(layer(x).data, x @ layer.weight.data + layer.bias.data, rtol=1e-6)


def test_linear_refuses_another_width():
    with pytest.raises(ValueError, match=r"shapes \(4, 5\) and \(3, 2\).*last axis"):
        nn.Linear(3, 2)(np.ones((4, 5), np.float32))


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Linear(0, 2),
        lambda: nn.Embedding(3, -1),
        lambda: nn.LayerNorm(2.5),
        lambda: nn.MLP(3, 0),
        lambda: nn.SelfAttention(4, 0),
        lambda: nn.MultiHeadAttention(4, -2),
    ],
)
def test_sizes_are_positive_integers(make):
    with pytest.raises(ValueError, match="positive integer"):
        make()


def test_the_same_generator_gives_the_same_weights():
    one, two = (nn.MLP(4, rng=np.random.default_rng(7)).state_dict() for _ in range(2))
    assert all(np.array_equal(one[name], two[name]) for name in one)
    assert not np.array_equal(one["c_fc.weight"], nn.MLP(4, rng=np.random.default_rng(8)).c_fc.weight.data)


def test_a_seed_in_place_of_a_generator_is_refused():
    with pytest.raises(TypeError, match=r"np\.random\.default_rng\(seed\)"):
        nn.Linear(2, 2, rng=0)


def test_embedding_adds_the_gradients_of_a_repeated_id(rng):
    table = nn.Embedding(3, 2, rng=rng)
    table([[0, 2], [2, 2]]).sum().backward()
    assert_array_equal(table.weight.grad.data, [[1, 1], [0, 0], [3, 3]])


def test_dropout_keeps_the_mean_and_its_generator_decides(rng):
    x = ta.Tensor(np.ones(10_000, np.float32))
    y = nn.Dropout(0.25, rng=rng)(x).data
    assert set(np.unique(y).round(4)) == {0, np.float32(1.3333)}
    assert abs(y.mean() - 1) < 0.02
    assert_array_equal(y, nn.Dropout(0.25, rng=np.random.default_rng(0))(x).data)


def test_dropout_without_a_generator_says_what_it_needs():
    with pytest.raises(TypeError, match="rng"):
        nn.Dropout(0.5)(ta.Tensor([1.0]))
    assert nn.Dropout(0.5).eval()(ta.Tensor([1.0])).item() == 1
