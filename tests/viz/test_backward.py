"""The backward pass as data: it executes, it is named, and it reads what it says it reads."""

import numpy as np
import pytest

import tinygrad_attn as ta
from tinygrad_attn.viz import trace_backward
from tinygrad_attn.viz.trace import Operand


def attention():
    """The chapter's three tokens through causal self-attention."""
    X = ta.Tensor(np.array([[1, 0], [0, 1], [1, 1]], np.float32), requires_grad=True, name="X")
    layer = ta.nn.SelfAttention(2, causal=True, rng=np.random.default_rng(0))
    return X, layer, (layer(X) ** 2).sum().named("loss")


def gpt():
    config = ta.nn.GPTConfig(block_size=6, vocab_size=7, n_layer=2, n_head=2, n_embd=8)
    model = ta.nn.GPT(config, rng=np.random.default_rng(0))
    ids = np.random.default_rng(1).integers(0, 7, (2, 6))
    return None, model, model(ids[:, :-1], ids[:, 1:])[1]


@ta.no_grad()
def evaluated(graph):
    """The value of every node, computed from the leaves by calling the operations in the order of the drawing."""
    values = []

    def value(argument):
        if isinstance(argument, Operand):
            return values[argument.id]
        return tuple(map(value, argument)) if isinstance(argument, tuple) else argument

    for node in graph.nodes:
        arguments = [value(argument) for argument in node.arguments]
        if node.op is None:
            values.append(ta.Tensor(node.tensor.data))
        elif node.op == "part":
            values.append(arguments[0][arguments[1]])
        else:
            values.append(node.tensor.op(*arguments))
    return values


@pytest.mark.parametrize("build", [attention, gpt])
def test_the_drawn_backward_graph_executes(build):
    x, model, loss = build()
    leaves = [*model.parameters(), *([x] if x is not None else [])]
    backward = trace_backward(loss, leaves)
    values = evaluated(backward.graph)
    number = {id(node.tensor): node.id for node in backward.graph.nodes}
    found = {
        id(backward.forward.nodes[node].tensor): values[number[id(backward.steps[step].tensor)]].data
        for node, step in backward.gradients.items()
    }
    assert all(leaf.grad is None for leaf in leaves)  # drawing touches no gradient and frees no graph
    loss.backward()
    for leaf in leaves:
        assert np.array_equal(found[id(leaf)], leaf.grad.numpy()), leaf.name
        assert found[id(leaf)].dtype == leaf.grad.dtype


def test_attention_has_the_textbook_backward():
    _, _, loss = attention()
    steps = {step.name: step.formula for step in trace_backward(loss).steps}
    assert steps["dV"] == "weightsᵀ @ doutput"
    assert steps["dweights"] == "doutput @ Vᵀ"
    assert steps["dmasked"] == "weights ⊙ (dweights − Σ₋₁(dweights ⊙ weights))"
    assert steps["dscores"] == "masked_fill(dmasked, mask, 0)"
    assert steps["dmatmul"] == "dscores / √d"
    assert steps["dQ"] == "dmatmul @ K"
    assert (steps["dKᵀ"], steps["dK"]) == ("Qᵀ @ dmatmul", "(dKᵀ)ᵀ")
    assert [steps[f"dW_{w}"] for w in "QKV"] == ["Xᵀ @ dQ", "Xᵀ @ dK", "Xᵀ @ dV"]
    assert steps["dX"] == "dX₁ + dX₂ + dX₃"


def test_a_fan_out_has_one_step_per_contribution_and_one_for_their_sum():
    X, _, loss = attention()
    backward = trace_backward(loss, X)
    total = backward.steps[backward.gradients[0]]
    assert total.role == "accumulate" and len(total.recorded) == 2  # two additions
    parts = [backward.steps[i] for i in total.operands]
    assert [(p.name, p.role) for p in parts] == [("dX₁", "rule"), ("dX₂", "rule"), ("dX₃", "rule")]
    np.testing.assert_allclose(sum(p.tensor.data for p in parts), total.tensor.data, rtol=1e-6)


def test_un_broadcasting_is_a_step():
    x = ta.Tensor(np.ones((3, 2)), requires_grad=True, name="x")
    bias = ta.Tensor(np.ones(2), requires_grad=True, name="bias")
    steps = trace_backward((x + bias).sum().named("loss"), bias).steps
    assert [(s.role, s.name, s.formula) for s in steps] == [
        ("seed", "dloss", "1"),
        ("rule", "dadd", "broadcast(dloss)"),
        ("rule", "dbias*", "dadd"),
        ("unbroadcast", "dbias", "Σ₀(dbias*)"),
    ]
    assert steps[-1].tensor.shape == (2,)


def test_a_rule_reads_exactly_the_values_its_formula_names():
    x = ta.Tensor([1.0, 2.0], requires_grad=True, name="x")
    forward_of = {
        "exp": lambda: x.exp(),  # its own result
        "log": lambda: x.log(),  # its argument
        "add": lambda: x + ta.Tensor([1.0, 1.0], name="y"),  # nothing
        "sum": lambda: x.sum(),  # a shape, no value
    }
    reads = {}
    for name, forward in forward_of.items():
        backward = trace_backward(forward().sum().named("loss"), x)
        (step,) = [s for s in backward.steps if backward.forward.nodes[s.target].name == "x"]
        reads[name] = [backward.forward.nodes[i].name for i in step.reads]
    assert reads == {"exp": ["exp"], "log": ["x"], "add": [], "sum": []}


def test_only_what_leads_to_the_wanted_values_is_in_the_pass():
    _, layer, loss = attention()
    names = [step.name for step in trace_backward(loss, layer.W_V).steps]
    assert names == ["dloss", "dpower", "doutput", "dV", "dW_V"]


def test_several_results_of_one_operation_have_one_rule():
    x = ta.Tensor(np.arange(6.0), requires_grad=True, name="x")
    first, second = ta.split(x, 2)
    steps = trace_backward((first.named("p") * second.named("q")).sum(), x).steps
    assert steps[-1].formula == "concatenate([dp, dq], axis=0)"
    assert list(steps[-1].tensor.numpy()) == [3, 4, 5, 0, 1, 2]


def test_a_joint_rule_gives_one_step_per_argument():
    rng = np.random.default_rng(0)
    q, k, v = (ta.Tensor(rng.standard_normal((3, 2)), requires_grad=True, name=n) for n in "qkv")
    out = ta.nn.scaled_dot_product_attention(q, k, v, causal=True)
    steps = trace_backward(out.sum().named("loss")).steps
    assert [s.name for s in steps if s.role == "rule"][-3:] == ["dq", "dk", "dv"]


def test_C09_the_backward_pass_of_a_constant_is_empty():
    backward = trace_backward(ta.Tensor(3.0, name="c"))
    assert backward.steps == () and [n.name for n in backward.forward.nodes] == ["c"]


def test_the_backward_pass_to_what_does_not_lead_to_the_loss_is_empty():
    x, other = ta.Tensor([1.0, 2.0], requires_grad=True), ta.Tensor(1.0, requires_grad=True)
    assert trace_backward((x * x).sum(), wrt=other).steps == ()
    assert ta.viz.draw_backward((x * x).sum(), wrt=ta.Tensor(1.0)).source.count("->") == 2  # forward only


def test_a_loss_that_is_no_single_number_needs_a_seed():
    x = ta.Tensor([1.0, 2.0], requires_grad=True, name="x")
    with pytest.raises(ValueError, match=r"loss has shape \(2,\).*gradient="):
        trace_backward(x * 2)
    steps = trace_backward(x * 2, gradient=[1.0, 10.0]).steps
    assert list(steps[-1].tensor.numpy()) == [2.0, 20.0]


def test_the_backward_pass_of_a_backward_pass_is_traced_too():
    x = ta.Tensor([1.0, 2.0], requires_grad=True, name="x")
    slope = ta.grad((x**3).sum(), x, create_graph=True).named("slope")
    backward = trace_backward(slope.sum().named("loss"), x)
    assert list(backward.steps[backward.gradients[0]].tensor.numpy()) == [6.0, 12.0]
    made = {node for step in backward.steps for node in step.recorded}
    assert made and all(backward.graph.nodes[i].tensor.index > slope.index for i in made)


def test_a_rule_that_needs_numbers_is_named_instead_of_printed():
    @ta.primitive(method=None)
    def halved_if_large(x):
        return x / 2 if x.sum() > 1 else x

    try:
        halved_if_large.gradients(x=lambda g, out, x: g / 2 if x.sum().item() > 1 else g)
        x = ta.Tensor([1.0, 2.0], requires_grad=True, name="x")
        step = trace_backward(halved_if_large(x).sum().named("loss")).steps[-1]
        assert step.formula == "rule of halved_if_large(dhalved_if_large, halved_if_large, x)"
        assert list(step.tensor.numpy()) == [0.5, 0.5]
    finally:
        del ta.PRIMITIVES["halved_if_large"]
