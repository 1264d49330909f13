"""The data behind the step player: the engine's own steps, its own numbers, and finite differences beside them."""

import base64
import hashlib
import json
import re

import numpy as np
import pytest

import tinygrad_attn as ta
from tinygrad_attn.viz.explorer import as_json, explain

TOKENS = ["她", "妈妈", "开心"]


def attention(dtype=np.float64, seed=0):
    """Causal self-attention of 3 tokens, width 2: its loss and its leaves by name."""
    rng = np.random.default_rng(seed)
    layer = ta.nn.SelfAttention(2, causal=True)
    leaves = {"X": ta.Tensor(rng.normal(size=(3, 2)).astype(dtype), requires_grad=True, name="X")}
    for name in ("W_Q", "W_K", "W_V"):
        leaves[name] = ta.nn.Parameter(rng.normal(size=(2, 2)).astype(dtype))
        setattr(layer, name, leaves[name])
    output = layer(leaves["X"])
    return (output * output).sum().named("loss"), leaves


def read(page):
    """The data in a page."""
    found = re.search(r'<script type="application/json" class="data">(.*?)</script>', page.html, re.DOTALL)
    return json.loads(found[1])


def numbers(tensor):
    return np.frombuffer(base64.b64decode(tensor["data"]), "<f4").reshape(tensor["shape"])


def named(data, name):
    (found,) = (t for t in data["tensors"] if t["name"] == name and t["role"] != "inner")
    return found


@pytest.fixture(scope="module")
def page():
    loss, leaves = attention()
    return explain(loss, names=leaves, tokens=TOKENS, title="attention")


@pytest.fixture(scope="module")
def data(page):
    return read(page)


# ------------------------------------------------------------------------------------------------- steps


def test_forward_steps_come_in_recording_order_then_the_seed_then_the_backward_pass(data):
    lanes = [step["lane"] for step in data["steps"]]
    turn = lanes.index("backward")
    assert lanes == ["forward"] * turn + ["backward"] * (len(lanes) - turn)
    assert [step["kind"] for step in data["steps"]].index("seed") == turn
    named_values = [data["tensors"][s["tensor"]]["name"] for s in data["steps"] if s["kind"] == "op"]
    assert [n for n in named_values if n in ("Q", "K", "V", "scores", "masked", "weights", "output", "loss")] == [
        *("Q", "K", "V", "scores", "masked", "weights", "output", "loss")
    ]


def test_backward_steps_follow_the_engine_in_the_reverse_of_recording(data):
    rules = [step["rule"] for step in data["steps"] if step["kind"] == "rule"]
    assert rules == sorted(rules, reverse=True)


def test_a_sum_at_a_fan_out_is_one_step_per_addition_right_after_its_second_term(data):
    tensors, steps = data["tensors"], data["steps"]
    names = [tensors[s["tensor"]]["name"] for s in steps]
    sums = [i for i, s in enumerate(steps) if s["kind"] == "accumulate" and names[i].startswith("dX")]
    assert [names[i] for i in sums] == ["dX₁₊₂", "dX"]
    assert [[tensors[p]["name"] for p in steps[i]["parts"]] for i in sums] == [["dX₁", "dX₂"], ["dX₁", "dX₂", "dX₃"]]
    assert [names[i - 1] for i in sums] == ["dX₂", "dX₃"]
    assert [steps[i]["done"] for i in sums] == [False, True]


def test_undoing_a_broadcast_is_a_step():
    x = ta.Tensor(np.ones((3, 2)), name="x")
    bias = ta.Tensor(np.zeros(2), requires_grad=True, name="bias")
    data = read(explain((x + bias).sum().named("loss")))
    kinds = [(s["kind"], data["tensors"][s["tensor"]]["name"]) for s in data["steps"]]
    assert kinds[-1] == ("unbroadcast", "dbias")
    assert numbers(named(data, "dbias")).tolist() == [3, 3]


def test_a_rule_that_passes_its_gradient_on_is_still_a_step():
    a, b = (ta.Tensor(np.ones(2), requires_grad=True, name=name) for name in "ab")
    data = read(explain((a + b).sum().named("loss")))
    assert [data["tensors"][s["tensor"]]["name"] for s in data["steps"]][-2:] == ["da", "db"]


# ----------------------------------------------------------------------------------------------- numbers


def test_every_gradient_is_the_engines(data):
    loss, leaves = attention()
    for name, gradient in zip(leaves, ta.grad(loss, list(leaves.values()))):
        np.testing.assert_array_equal(numbers(named(data, f"d{name}")), gradient.numpy().astype(np.float32))


def test_every_gradient_and_every_contribution_agrees_with_finite_differences(data):
    checked = [s for s in data["steps"] if "check" in s]
    assert {s["kind"] for s in checked} == {"rule", "accumulate"}
    assert len(checked) == sum(s["kind"] in ("rule", "accumulate") for s in data["steps"])
    for step in checked:
        tensor = data["tensors"][step["tensor"]]
        finite = np.frombuffer(base64.b64decode(step["check"]["each"]), "<f4").reshape(tensor["shape"])
        np.testing.assert_allclose(finite, numbers(tensor), rtol=1e-5, atol=1e-7, err_msg=tensor["name"])


def test_finite_differences_would_expose_a_wrong_rule(monkeypatch):
    tanh = ta.PRIMITIVES["tanh"]
    monkeypatch.setattr(tanh, "by_position", (lambda g, out, x: g * (1 - out),))
    x = ta.Tensor(np.array([0.3, -0.7]), requires_grad=True, name="x")
    data = read(explain(ta.tanh(x).sum().named("loss")))
    (check,) = (s["check"]["each"] for s in data["steps"] if data["tensors"][s["tensor"]]["name"] == "dx")
    finite = np.frombuffer(base64.b64decode(check), "<f4")
    np.testing.assert_allclose(finite, 1 - np.tanh([0.3, -0.7]) ** 2, rtol=1e-6)
    assert not np.allclose(finite, numbers(named(data, "dx")), rtol=1e-3)


def test_a_large_gradient_is_checked_along_a_random_direction():
    rng = np.random.default_rng(0)
    x = ta.Tensor(rng.normal(size=(30, 30)), requires_grad=True, name="x")
    data = read(explain((ta.exp(x) @ x).sum().named("loss")))
    checks = [step["check"]["direction"] for step in data["steps"] if "check" in step]
    assert len(checks) == 5  # the product, exp(x), both uses of x, and their sum
    for auto, finite in checks:
        assert auto == pytest.approx(finite, rel=1e-5)


@pytest.mark.parametrize(
    "move",
    [
        lambda x: x.reshape(3, 2),
        lambda x: x.mT,
        lambda x: x.transpose(),
        lambda x: x[1],
        lambda x: x[:, [2, 0, 0]],
        lambda x: x.expand_dims(1),
        lambda x: x.flip(1),
        lambda x: x.roll(1, 0),
        lambda x: ta.broadcast_to(x, (2, 2, 3)),
        lambda x: ta.tril(x),
        lambda x: ta.concatenate([x, x * 2], axis=1),
        lambda x: x.split(3, axis=1)[1],
        lambda x: ta.embedding(x, [1, 1, 0]),
        lambda x: ta.take_along_axis(x, np.array([[2, 1], [0, 0]]), axis=1),
    ],
)
def test_a_moving_operation_knows_where_each_number_came_from(move):
    x = ta.Tensor(np.arange(1.0, 7.0).reshape(2, 3), requires_grad=True, name="x")
    moved = move(x).named("moved")
    data = read(explain((moved * moved).sum().named("loss")))
    tensor = named(data, "moved")
    sources = [data["tensors"][a["t"]] for v in tensor["args"].values() for a in v.get("list", [v]) if "t" in a]
    pool = np.append(np.concatenate([numbers(s).ravel() for s in sources[: 2 if "list" in str(tensor) else 1]]), 0)
    if tensor.get("moved"):
        origin = np.arange(moved.data.size)
    else:
        origin = np.frombuffer(base64.b64decode(tensor["map"]), "<i4")
    np.testing.assert_array_equal(pool[origin].reshape(moved.shape), moved.numpy())


def test_a_tensor_of_many_numbers_is_summarised():
    x = ta.Tensor(np.linspace(-1, 3, 200), requires_grad=True, name="x")
    tensor = named(read(explain((x * x).sum(), max_values=100)), "x")
    assert "data" not in tensor
    assert (tensor["stats"]["min"], tensor["stats"]["max"]) == (-1, 3)
    assert tensor["stats"]["mean"] == pytest.approx(1)
    assert sum(tensor["stats"]["counts"]) == 200


# ------------------------------------------------------------------------------------- formulas and names


def test_formulas_name_their_operands(data):
    def formula(name):
        (step,) = (s for s in data["steps"] if data["tensors"][s["tensor"]]["name"] == name)
        return re.sub(r"⟦(\d+)⟧", lambda m: data["tensors"][int(m[1])]["name"], step["formula"])

    assert formula("dV") == "weightsᵀ @ doutput"
    assert formula("dweights") == "doutput @ Vᵀ"
    assert formula("dmasked") == "weights ⊙ (dweights − Σ₋₁(dweights ⊙ weights))"
    assert formula("dX₁₊₂") == "dX₁ + dX₂"


def test_why_there_is_no_gradient():
    x = ta.Tensor(np.ones((2, 2)), requires_grad=True, name="x")
    y = (x * 2).named("y")
    constant = ta.Tensor(np.ones((2, 2)), name="constant")
    loss = (y * y.detach().named("cut") + constant).masked_fill(np.eye(2, dtype=bool), 0).sum()
    data = read(explain(loss))
    assert named(data, "cut")["nograd"] == "detached"
    assert named(data, "constant")["nograd"] == "constant"
    assert named(data, "mask")["nograd"] == "constant"
    assert "nograd" not in named(data, "y")


def test_a_value_off_the_wanted_paths_says_so():
    a, b = (ta.Tensor(np.ones(2), requires_grad=True, name=name) for name in "ab")
    data = read(explain((a * b).sum(), wrt=a))
    assert named(data, "b")["nograd"] == "unused"


# -------------------------------------------------------------------------------------------------- page


def test_the_page_is_small_and_the_same_every_time(page):
    loss, leaves = attention()
    again = explain(loss, names=leaves, tokens=TOKENS, title="attention")
    assert again.html == page.html
    assert len(page.html.encode()) < 300_000


def test_the_policy_allows_the_pages_own_script_and_no_request(page):
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page.html)[1]
    script = re.search(r'<script type="module">(.*?)</script>', page.html, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy.startswith(f"default-src 'none'; script-src 'sha256-{digest}'")
    assert "unsafe-eval" not in policy and "http" not in policy


def test_the_page_has_no_ids(page):
    assert not re.search(r'[\s<]id=\\?"', page.html)


def test_a_large_graph_opens_with_its_modules_collapsed():
    config = ta.nn.GPTConfig(block_size=8, vocab_size=16, n_layer=2, n_head=2, n_embd=16, dropout=0.0)
    model = ta.nn.GPT(config, rng=np.random.default_rng(0))
    _, loss = model(np.arange(8)[None], targets=np.arange(8)[None])
    page = explain(loss, names=model)
    data = read(page)
    assert len(page.html.encode()) < 3_000_000
    assert 0 <= data["level"] < len(data["ladders"]) - 1
    assert explain(loss, names=model, depth=2).html != page.html


def test_a_loss_that_is_not_finite_is_played_all_the_same():
    x = ta.Tensor(np.array([0.0, 1.0]), requires_grad=True, name="x")
    with np.errstate(all="ignore"):
        data = read(explain((1 / x).sum().named("loss")))
    assert np.isinf(numbers(named(data, "loss")))


@pytest.mark.parametrize("text", ["</script>", "<!--", "&lt;", "\u2028\u2029", "'\"\\", "妈妈", "]]>"])
def test_json_cannot_leave_its_script(text):
    written = as_json({"name": text})
    assert not re.search("[<>&\u2028\u2029]", written)
    assert json.loads(written) == {"name": text}


def test_the_file_is_what_was_returned(tmp_path):
    loss, leaves = attention()
    target = tmp_path / "图 dir" / "page.html"
    page = explain(loss, target, names=leaves)
    assert target.read_text(encoding="utf-8") == page.html
    assert [p.name for p in target.parent.iterdir()] == ["page.html"]


def test_a_notebook_shows_a_sandboxed_frame(page):
    frame = page._repr_html_()
    assert frame.startswith("<iframe") and 'sandbox="allow-scripts' in frame
    assert "allow-same-origin" not in frame
    assert "<script" not in frame


def test_nothing_is_changed_by_explaining():
    loss, leaves = attention()
    explain(loss)
    assert all(leaf.grad is None for leaf in leaves.values())
    loss.backward()
    assert all(leaf.grad is not None for leaf in leaves.values())


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda x: explain(x * 2), ValueError, "one number"),
        (lambda x: explain(x.detach().sum()), RuntimeError, "requires_grad=True"),
        (lambda x: explain((x * x).sum(), max_nodes=2), ValueError, "max_nodes=2"),
        (lambda x: explain((x * x).sum(), language="fr"), ValueError, "'en', 'zh'"),
    ],
)
def test_what_cannot_be_played_is_refused_with_advice(call, error, message):
    with pytest.raises(error, match=message):
        call(ta.Tensor(np.ones(3), requires_grad=True, name="x"))
