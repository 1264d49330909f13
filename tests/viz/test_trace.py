"""A trace is the computation, no more and no less, as plain data."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

import tinygrad_attn as ta
from tinygrad_attn.viz import Edge, listing, trace
from tinygrad_attn.viz.trace import Operand


def leaf(name=None, shape=(2, 2)):
    return ta.Tensor(np.ones(shape), requires_grad=True, name=name)


def test_an_operand_used_twice_has_two_edges_in_order():
    x = leaf("x")
    assert trace(x @ x).edges == (Edge(0, 1, 0), Edge(0, 1, 1))


def test_numbers_follow_the_recording_and_leaves_come_before_their_first_use():
    a, b, c = leaf("a"), leaf("b"), leaf("c")
    y = (b @ a).named("y")
    assert [n.name for n in trace(y + c).nodes] == ["b", "a", "y", "c", "add"]


def test_arguments_stand_with_operands_by_number():
    x = leaf("x")
    assert trace(x.sum(axis=0)).nodes[1].arguments == (Operand(0), 0, False)
    joined = trace(ta.concatenate([x, x * 2], axis=1)).nodes[-1]
    assert joined.arguments == ((Operand(0), Operand(1)), 1)
    assert joined.operands == (0, 1)


def test_pieces_of_a_named_value_may_have_different_lengths():
    x = leaf("x")
    assert [n.shape for n in trace(x.split([1])).nodes] == [(2, 2), (2,), (1, 2), (1, 2)]
    x = ta.Tensor(np.ones(3), requires_grad=True, name="x")
    assert [n.shape for n in trace(x.split([1])).nodes] == [(3,), (2,), (1,), (2,)]


def test_kinds_tell_leaves_apart():
    layer = ta.nn.Linear(2, 2, rng=np.random.default_rng(0))
    x, known, bare = leaf("x"), ta.Tensor(np.ones((2, 2)), name="known"), ta.Tensor(np.ones((2, 2)))
    kinds = {n.name: n.kind for n in trace(layer(x) + known + bare).nodes if n.op is None}
    assert kinds == {
        "x": "leaf",
        "weight": "parameter",
        "bias": "parameter",
        "known": "input",
        "constant_1": "constant",
    }


def test_names_are_given_then_own_then_made_up():
    x = leaf("x")
    y = x * 2
    nodes = trace({"result": y + y * 3}, names={"double": y, "x2": x}).nodes
    assert [n.name for n in nodes] == ["x2", "double", "multiply", "result"]


def test_unnamed_transpose_is_called_by_its_operand():
    K = leaf("K")
    assert [n.name for n in trace(K.mT @ K).nodes] == ["K", "Kᵀ", "matmul"]


def test_one_module_called_twice_is_two_calls_that_share_their_weight():
    class Twice(ta.nn.Module):
        def __init__(self):
            self.inner = ta.nn.Linear(2, 2, bias=False, rng=np.random.default_rng(0))

        def forward(self, x):
            return self.inner(self.inner(x))

    t = trace(Twice(), leaf("x"))
    assert [(m.path, m.kind, m.parent) for m in t.modules] == [
        ("", "Twice", None),
        ("inner", "Linear", 0),
        ("inner", "Linear", 0),
    ]
    weight = next(n for n in t.nodes if n.kind == "parameter")
    assert weight.module == 0  # outside both calls, inside what holds both
    assert [n.module for n in t.nodes if n.op == "matmul"] == [1, 2]


def test_unique_names_are_unique_and_keep_what_was_unique_already():
    config = ta.nn.GPTConfig(block_size=4, vocab_size=5, n_layer=2, n_head=2, n_embd=4)
    _, loss = ta.nn.GPT(config, rng=np.random.default_rng(0))(np.zeros((1, 4), int), np.ones((1, 4), int))
    names = trace(loss).unique_names()
    assert len(set(names)) == len(names)
    assert {"h.1.ln_2.weight", "wte.weight"} <= set(names)


def test_C10_a_chain_of_100_000_operations_traces_without_recursion():
    y = x = leaf(shape=(1,))
    for _ in range(100_000):
        y = y + x
    t = trace(y)
    assert len(t.nodes) == 100_001 and len(t.edges) == 200_000


def test_C09_what_can_be_drawn():
    assert [n.kind for n in trace(leaf()).nodes] == ["leaf"]
    assert [n.kind for n in trace(ta.Tensor(3.0)).nodes] == ["constant"]
    assert trace([]).nodes == ()
    x = leaf("x")
    shared = x * 2
    t = trace((shared + 1, shared - 1))
    assert [n.op for n in t.nodes] == [None, "multiply", "add", "subtract"]
    assert t.outputs == (2, 3)
    with ta.no_grad():
        y = x * 2
    assert [n.op for n in trace(y).nodes] == [None]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (None, "not None"),
        ("x", "not str"),
        ([1.0], "expected tensors in the list"),
        (ta.nn.Linear(2, 2), "pass its inputs too"),
    ],
)
def test_C09_anything_else_is_an_error_that_says_what_is_expected(wrong, message):
    with pytest.raises(TypeError, match=message):
        trace(wrong)


def test_a_freed_graph_is_an_error_with_the_remedy():
    loss = (leaf() * 2).sum()
    loss.backward()
    with pytest.raises(ValueError, match="retain_graph=True"):
        trace(loss)


@st.composite
def recipes(draw):
    """How to build a random graph: for each operation, which earlier values it takes."""
    n = draw(st.integers(1, 25))
    return [tuple(draw(st.integers(0, i)) for _ in range(draw(st.sampled_from([1, 2])))) for i in range(n)]


def build(recipe):
    values = [leaf("x")]
    for operands in recipe:
        chosen = [values[i] for i in operands]
        values.append(chosen[0].tanh() if len(chosen) == 1 else chosen[0] * chosen[1])
    return values[-1]


@given(recipes())
def test_any_graph_is_traced_whole_in_topological_order(recipe):
    reached = {len(recipe)}
    for i in range(len(recipe), 0, -1):
        if i in reached:
            reached |= set(recipe[i - 1])
    t = trace(build(recipe))
    assert len(t.nodes) == len(reached)
    assert len(t.edges) == sum(len(recipe[i - 1]) for i in reached if i > 0)
    assert all(edge.source < edge.target for edge in t.edges)


def test_a_listing_reads_like_a_jaxpr():
    X, W = leaf("X", (3, 2)), ta.Tensor(np.ones((2, 2), np.float32), requires_grad=True, name="W_Q")
    Q = (X @ W).named("Q")
    assert listing((Q / 2).softmax().named("p")).splitlines() == [
        "X:f64[3,2]  leaf",
        "W_Q:f32[2,2]  leaf",
        "Q:f64[3,2] = matmul X W_Q",
        "divide:f64[3,2] = divide Q b=2",
        "p:f64[3,2] = softmax divide  -> output",
    ]
