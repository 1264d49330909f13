import copy
import pickle

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import tinygrad_attn as ta
from tinygrad_attn.nn import Dropout, Linear, Module, Parameter


class Net(Module):
    """Two layers in a list, one of which shares its weight with `out`, and dropout."""

    def __init__(self, rng):
        self.blocks = [Linear(3, 3, rng=rng), Linear(3, 2, bias=False, rng=rng)]
        self.out = Linear(3, 2, rng=rng)
        self.out.weight = self.blocks[1].weight
        self.scale = Parameter(2.0)
        self.drop = Dropout(0.5, rng=rng)

    def forward(self, x):
        x = self.blocks[0](x)
        return self.drop(self.blocks[1](x) + self.out(x)) * self.scale


@pytest.fixture
def net(rng):
    return Net(rng)


PATHS = ["blocks.0.weight", "blocks.0.bias", "blocks.1.weight", "out.bias", "scale"]
X = np.ones((2, 3), np.float32)


# -- what is in it --


def test_parameters_are_found_in_attributes_and_lists_and_tied_ones_once(net):
    assert [name for name, _ in net.named_parameters()] == PATHS
    assert net.parameters() == [p for _, p in net.named_parameters()]
    assert net.num_parameters() == 1 + 9 + 3 + 6 + 2


def test_modules_come_once_parents_first(net):
    assert [name for name, _ in net.named_modules()] == ["", "blocks.0", "blocks.1", "out", "drop"]


def test_a_module_that_is_used_twice_is_one_module(rng):
    net = Module()
    net.first = net.second = Linear(2, 2, rng=rng)
    assert [name for name, _ in net.named_parameters()] == ["first.weight", "first.bias"]


def test_lists_may_grow_and_dicts_and_tuples_hold_modules_too(rng):
    net = Module()
    net.layers, net.table, net.pair = [], {"a": Linear(1, 1, bias=False)}, (Parameter(1.0), None)
    net.layers.append(Linear(1, 1, bias=False))
    assert [name for name, _ in net.named_parameters()] == ["layers.0.weight", "table.a.weight", "pair.0"]


def test_tensors_that_are_no_parameters_are_not_trained(rng):
    net = Module()
    net.constant, net.result = ta.Tensor([1.0]), Parameter([1.0]) * 2
    assert net.parameters() == []


def test_parameters_are_named_by_their_path_from_the_outermost_module(net):
    assert [p.name for p in net.parameters()] == PATHS
    outer = Module()
    outer.nets = [net]
    assert [p.name for p in outer.parameters()] == [f"nets.0.{path}" for path in PATHS]


def test_a_name_of_ones_own_stays(rng):
    net = Module()
    net.w = Parameter([1.0], name="ω")
    assert net.w.name == "ω"


# -- calling --


def test_recorded_operations_know_their_module_call(net):
    y = net.eval()(X)
    assert (y.scope.name, y.scope.kind, y.scope.parent) == ("", "Net", None)
    first = net.blocks[0](X)
    assert (first.scope.name, first.scope.kind) == ("blocks.0", "Linear")

    class Outer(Module):
        def __init__(self, net):
            self.net = net

        def forward(self, x):
            self.seen = self.net.blocks[0](x)
            return self.net(x)

    outer = Outer(net)
    y = outer(X)
    assert (y.scope.name, y.scope.parent.kind) == ("net", "Outer")
    assert (outer.seen.scope.name, outer.seen.scope.parent.kind) == ("blocks.0", "Outer")


def test_the_scope_is_left_after_an_error(net):
    with pytest.raises(ValueError, match="last axis"):
        net(np.ones((2, 4), np.float32))
    assert (ta.Tensor([1.0], requires_grad=True) * 2).scope is None


def test_a_module_without_forward_says_so():
    with pytest.raises(NotImplementedError, match="Module has no forward"):
        Module()(1)


# -- modes and gradients --


def test_train_and_eval_reach_every_module(net):
    assert net.training and net.drop.training
    assert net.eval() is net
    assert not net.training and not net.drop.training
    assert net.train().drop.training


def test_evaluating_gives_each_module_its_own_mode_back_also_after_an_error(net):
    net.blocks[0].eval()
    with net.evaluating():
        assert not any(module.training for _, module in net.named_modules())
    with pytest.raises(ValueError, match="last axis"), net.evaluating():
        net(np.ones((2, 4), np.float32))
    assert [module.training for _, module in net.named_modules()] == [True, False, True, True, True]


def test_zero_grad_forgets_all_gradients(net):
    net(X).sum().backward()
    assert all(p.grad is not None for p in net.parameters())
    net.zero_grad()
    assert all(p.grad is None for p in net.parameters())


def test_a_tied_weight_gets_the_gradients_of_both_uses(net):
    net.eval()(X).sum().backward()
    hidden = (X @ net.blocks[0].weight.data + net.blocks[0].bias.data).sum(0)
    wanted = np.repeat(2 * 2 * hidden[:, None], 2, axis=1)  # two uses, scale 2
    np.testing.assert_allclose(net.out.weight.grad.data, wanted, rtol=1e-5)


def test_to_converts_every_parameter(net):
    assert {p.dtype for p in net.to(np.float64).parameters()} == {np.dtype(np.float64)}
    assert net.eval()(X.astype(np.float64)).dtype == np.float64


# -- state --


def test_a_state_dict_is_a_copy_under_the_same_names(net):
    state = net.state_dict()
    assert list(state) == PATHS
    state["scale"][...] = 7
    assert net.scale.item() == 2


def test_loading_copies_and_converts(net):
    state = {name: np.full(array.shape, 0.5) for name, array in net.state_dict().items()}
    net.load_state_dict(state)
    state["scale"][...] = 7
    assert net.scale.item() == 0.5
    assert {p.dtype for p in net.parameters()} == {np.dtype(np.float32)}
    assert net.out.weight is net.blocks[1].weight


def test_a_state_dict_loads_into_another_model(net):
    other = Net(np.random.default_rng(1))
    other.load_state_dict(net.state_dict())
    assert_array_equal(other.eval()(X).data, net.eval()(X).data)


def test_all_that_does_not_fit_is_named_at_once_and_nothing_is_loaded(net):
    before = net.state_dict()
    state = {name: array + 1 for name, array in before.items()}
    del state["scale"]
    state |= {"extra": np.zeros(1), "blocks.0.weight": np.zeros((3, 4)), "out.bias": np.zeros(2, int)}
    with pytest.raises(ValueError) as caught:
        net.load_state_dict(state)
    message = str(caught.value)
    assert "missing: scale" in message and "unexpected: extra" in message
    assert "blocks.0.weight: shape (3, 4)" in message and "out.bias: dtype int64" in message
    assert_array_equal(net.state_dict()["blocks.0.bias"], before["blocks.0.bias"])


def test_not_strict_loads_what_there_is_but_never_a_wrong_shape(net):
    net.load_state_dict({"scale": np.array(3.0), "extra": np.zeros(1)}, strict=False)
    assert net.scale.item() == 3
    with pytest.raises(ValueError, match="scale: shape"):
        net.load_state_dict({"scale": np.zeros(2)}, strict=False)


def test_generators_are_found_once(net, rng):
    assert net.named_generators() == [("drop.rng", rng)]


# -- copies --


def test_A27_a_deep_copy_is_independent_and_stays_tied(net):
    net.last = net(X)
    twin = copy.deepcopy(net)
    assert twin.out.weight is twin.blocks[1].weight
    assert twin.out.weight is not net.out.weight
    twin.scale.data += 1
    assert (net.scale.item(), twin.scale.item()) == (2, 3)
    assert isinstance(twin.scale, Parameter) and twin.scale.requires_grad
    assert [name for name, _ in twin.named_parameters()] == PATHS
    assert twin.last.op is None


def test_a_pickled_module_is_the_same_module(net):
    twin = pickle.loads(pickle.dumps(net))
    assert_array_equal(twin.eval()(X).data, net.eval()(X).data)
    assert twin.out.weight is twin.blocks[1].weight


# -- to look at --


def test_repr_is_the_tree_of_modules(net):
    assert repr(net).splitlines() == [
        "Net()",
        "  blocks.0: Linear(3, 3)",
        "  blocks.1: Linear(3, 2, bias=False)",
        "  out: Linear(3, 2)",
        "  drop: Dropout(0.5)",
    ]
