"""The engine: order, accumulation, modes, guards and the life of a graph."""

import gc
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tinygrad_attn as ta
from tinygrad_attn import autograd, modes
from tinygrad_attn.autograd import PRIMITIVES, Primitive


def T(data, name=None):
    return ta.Tensor(np.asarray(data, dtype=np.float64), requires_grad=True, name=name)


def operation(forward, **rules):
    """A primitive of its own, which nothing else can see."""
    op = Primitive(forward)
    op.gradients(**rules)
    return op


def double(x):
    return x * 2


# ----------------------------------------------------------------------------------------- order and fan-out


def test_fan_out_adds_up():
    x = T(3.0)
    (x * 2 + x * 3 + x).backward()
    assert x.grad.item() == 6


def test_a_dead_branch_changes_nothing():
    x = T(3.0)
    y = x * 2
    dead = y * 100  # noqa: F841
    (y + 1).backward()
    assert x.grad.item() == 2


def test_a_diamond_of_60_doublings():
    x = y = T(1.0)
    for _ in range(60):
        y = y + y
    y.backward()
    assert x.grad.item() == 2.0**60


def test_a_chain_of_200_000_operations_and_its_deletion():
    x = y = T(1.0)
    for _ in range(200_000):
        y = y + 1.0
    y.backward()
    assert x.grad.item() == 1
    y = x
    for _ in range(200_000):
        y = y + 1.0
    del y


def test_a_weight_used_in_two_products_gets_both_gradients():
    w, x = T(np.eye(2)), np.array([[1.0, 2.0]])
    ((x @ w) @ w).sum().backward()
    assert w.grad.tolist() == [[2, 2], [4, 4]]


def test_a_repeated_index_adds_up():
    w = T([[1.0], [2.0], [3.0]])
    ta.embedding(w, [0, 2, 0, 0]).sum().backward()
    assert w.grad.tolist() == [[3], [0], [1]]


def test_rules_run_in_exactly_the_reverse_order_of_recording():
    ran = []

    def logged(name):
        return operation(lambda x: x * 2, x=lambda g, out, x: (ran.append(name), g * 2)[1])

    x = T(1.0)
    a = logged("a")(x)
    b = logged("b")(x)
    c = logged("c")(b)
    d = logged("d")(a)
    (d + c).backward()
    assert ran == ["d", "c", "b", "a"]


def test_only_what_leads_to_the_inputs_is_computed():
    def rule(g, out, x):
        raise AssertionError("not needed")

    costly = operation(double, x=rule)
    x, y = T(1.0), T(2.0)
    assert ta.grad(costly(x) + y * y, y).item() == 4


PROGRAM = st.lists(
    st.tuples(st.sampled_from("+*-/tsm"), st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=12
)


@given(PROGRAM)
@settings(max_examples=100)
def test_random_graphs_agree_with_finite_differences(program):
    def f(x, y):
        values = [x, y]
        for symbol, i, j in program:
            a, b = values[i % len(values)], values[j % len(values)]
            values.append(
                {
                    "+": lambda a, b: a + b,
                    "*": lambda a, b: a * b * 0.5,
                    "-": lambda a, b: a - b * 0.5,
                    "/": lambda a, b: a / (2 + b * b),
                    "t": lambda a, b: a.tanh(),
                    "s": lambda a, b: a.sum(axis=0, keepdims=True) * 0.3,
                    "m": lambda a, b: (a * 0.1 - b).sin(),
                }[symbol](a, b)
            )
        return values[-1].sum() + x.sum() + y.sum()

    ta.gradcheck(f, [np.array([[0.3, -0.7]]), np.array([[0.9], [-0.4]])], order=2)


# -------------------------------------------------------------------------------------------- .grad and grad


def test_grad_is_none_before_a_tensor_after_and_accumulates():
    x = T([1.0, 2.0])
    assert x.grad is None
    for n in (1, 2, 3):
        (x * 3).sum().backward()
        assert isinstance(x.grad, ta.Tensor) and x.grad.tolist() == [3.0 * n, 3.0 * n]
    x.grad = None
    (x * 3).sum().backward()
    assert x.grad.tolist() == [3, 3]
    x.zero_grad()
    assert x.grad is None


def test_only_leaves_keep_grad_unless_told():
    x = T(2.0)
    y = x * 3
    z = y * y
    y.retain_grad()
    z.backward()
    assert x.grad.item() == 36 and y.grad.item() == 12 and z.grad is None
    with pytest.raises(RuntimeError, match="require gradients"):
        ta.Tensor(1.0).retain_grad()


def test_constants_get_no_grad():
    x, c = T(2.0), ta.Tensor(3.0)
    (x * c).backward()
    assert c.grad is None


def test_backward_of_a_leaf_itself():
    x = T(2.0)
    x.backward()
    assert x.grad.item() == 1
    assert ta.grad(x, x).item() == 1


def test_grad_leaves_every_dot_grad_alone_and_mirrors_the_form_of_its_inputs():
    x, y = T(2.0), T(3.0)
    z = x * x * y
    single = ta.grad(z, x, retain_graph=True)
    pair = ta.grad(z, (x, y), retain_graph=True)
    listed = ta.grad(z, [y])
    assert single.item() == 12 and [g.item() for g in pair] == [12, 4] and listed[0].item() == 4
    assert isinstance(pair, tuple) and isinstance(listed, tuple)
    assert x.grad is None and y.grad is None


def test_grad_of_interior_values():
    x = T(2.0)
    y = x * 3
    z = y * y
    assert ta.grad(z, [y, x])[0].item() == 12
    z = (x * 3) ** 2
    assert ta.grad(z, z).item() == 1


def test_grad_of_several_outputs_adds():
    x = T([1.0, 2.0])
    a, b = x * 2, (x * x).sum()
    assert ta.grad([a, b], x, [np.array([1.0, 10.0]), None]).tolist() == [4, 24]
    with pytest.raises(ValueError, match="2 outputs"):
        ta.grad([x * 1, x * 1], x, [np.ones(2)])
    y = (x * x).sum()
    assert ta.grad([y, y], x).tolist() == [4, 8]


def test_an_unused_input_is_an_error_unless_allowed():
    x, y = T(1.0, "x"), T(2.0, "y")
    with pytest.raises(RuntimeError, match=r"y.*allow_unused=True"):
        ta.grad(x * 2, [x, y])
    gx, gy = ta.grad(x * 2, [x, y], allow_unused=True)
    assert gx.item() == 2 and gy is None


def test_nested_grad():
    x = T(2.0)
    f = lambda x: x**4  # noqa: E731
    g1 = ta.grad(f(x), x, create_graph=True)
    g2 = ta.grad(g1, x, create_graph=True)
    g3 = ta.grad(g2, x, create_graph=True)
    g4 = ta.grad(g3, x)
    assert [g.item() for g in (g1, g2, g3, g4)] == [32, 48, 48, 24]


def test_the_seed_may_want_gradients():
    x, v = T([1.0, 2.0]), T([3.0, 4.0])
    vjp = ta.grad(x**2, x, v, create_graph=True)
    jvp = ta.grad(vjp, v, np.array([1.0, 0.5]))  # the forward derivative, by two backward passes
    assert vjp.tolist() == [6, 16] and jvp.tolist() == [2, 2]


def test_gradients_are_never_shared_and_can_be_written():
    x, y = T([1.0, 2.0]), T([3.0, 4.0])
    (x + y).backward([1.0, 1.0])
    x.grad.data[0] = 50
    assert y.grad.tolist() == [1, 1]
    x, y = T([1.0, 2.0]), T([3.0, 4.0])
    gx, gy = ta.grad((x + y).sum(), [x, y])
    gx.data[0] = 50
    assert gy.tolist() == [1, 1]


def test_in_place_updates_of_grad_like_clipping():
    x = T([3.0, 4.0])
    (x * x).sum().backward()
    x.grad.data *= 0.5
    assert x.grad.tolist() == [3, 4]
    x.grad = np.array([1.0, 1.0])
    assert isinstance(x.grad, ta.Tensor)
    with pytest.raises(ValueError, match=r"\(1,\).*\(2,\)"):
        x.grad = np.array([1.0])


# -------------------------------------------------------------------------------------------- freed and kept


def test_a_second_pass_over_a_freed_graph_says_what_to_do():
    x = T(2.0)
    y = x * x
    y.backward()
    with pytest.raises(RuntimeError, match=r"freed.*retain_graph=True"):
        y.backward()
    assert x.grad.item() == 4


def test_a_part_of_a_freed_graph_cannot_be_used_either():
    x = T(2.0)
    shared = x * x
    (shared * 2).backward()
    with pytest.raises(RuntimeError, match="freed"):
        (shared * 3).backward()
    assert x.grad.item() == 8


def test_retain_graph_allows_more_passes():
    x = T(2.0)
    y = x * x
    y.backward(retain_graph=True)
    y.backward()
    assert x.grad.item() == 8


def test_create_graph_keeps_the_graph():
    x = T(2.0)
    y = x * x
    y.backward(create_graph=True)
    y.backward(create_graph=True)
    assert x.grad.item() == 8 and x.grad.requires_grad


@pytest.mark.parametrize(
    "bad",
    [
        lambda y: y.backward(np.ones(3)),
        lambda y: y.backward(),
        lambda y: y.backward("text"),
        lambda y: operation(double, x=lambda g, out, x: 1 / 0)(y).sum().backward(),
        lambda y: operation(double, x=lambda g, out, x: g[:1] * np.ones(7))(y).sum().backward(),
        lambda y: (operation(double, x=lambda g, out, x: None)(y)).sum().backward(),
    ],
)
def test_a_failed_backward_leaves_every_grad_as_it_was(bad):
    x, z = T([1.0, 2.0]), T([1.0, 2.0])
    (x * z).sum().backward()
    before = x.grad, x.grad.data.copy()
    with pytest.raises(Exception):  # noqa: B017
        bad(x * z * z)
    assert x.grad is before[0] and np.array_equal(x.grad.data, before[1])
    assert np.array_equal(z.grad.data, x.data)
    assert ta.is_grad_enabled()
    (x * z).sum().backward()  # and the engine still works
    assert np.array_equal(x.grad.data, before[1] * 2)


def test_an_error_late_in_the_pass_leaves_the_earlier_leaves_alone():
    broken = operation(double, x=lambda g, out, x: 1 / 0)
    x, z = T(1.0), T(1.0)
    y = broken(x) * z  # z is reached before the broken rule runs
    with pytest.raises(ZeroDivisionError):
        y.backward()
    assert x.grad is None and z.grad is None


def test_nothing_to_differentiate_is_an_error_with_a_remedy():
    for y in (ta.Tensor(1.0), ta.Tensor(1.0) * 2, T(1.0).detach()):
        with pytest.raises(RuntimeError, match="requires_grad=True"):
            y.backward()
    with pytest.raises(RuntimeError, match="requires_grad=True"):
        ta.grad(T(1.0) * 2, ta.Tensor(1.0))
    for bad in (1.0, np.ones(2), None):
        with pytest.raises(TypeError):
            ta.grad(bad, T(1.0))
        with pytest.raises(TypeError):
            ta.grad(T(1.0) * 2, bad)


# ----------------------------------------------------------------------------------------------------- modes


def test_no_grad_and_enable_grad_nest():
    x = T(1.0)
    assert ta.is_grad_enabled()
    with ta.no_grad():
        assert not (x * 2).requires_grad
        with ta.enable_grad():
            assert (x * 2).requires_grad
            with ta.no_grad():
                assert not ta.is_grad_enabled()
            assert ta.is_grad_enabled()
        assert not ta.is_grad_enabled()
    assert ta.is_grad_enabled()


def test_no_grad_as_a_decorator_keeps_name_and_docstring():
    @ta.no_grad()
    def evaluate(x):
        """Text."""
        return x * 2, ta.is_grad_enabled()

    y, enabled = evaluate(T(1.0))
    assert not y.requires_grad and not enabled and ta.is_grad_enabled()
    assert evaluate.__name__ == "evaluate" and evaluate.__doc__ == "Text."


def test_decorated_functions_may_call_themselves():
    @ta.no_grad()
    def down(n):
        assert not ta.is_grad_enabled()
        return n if n == 0 else down(n - 1)

    assert down(5) == 0 and ta.is_grad_enabled()


def test_one_context_object_may_be_entered_again_and_again():
    off = ta.no_grad()
    for _ in range(2):
        with off, off:
            assert not ta.is_grad_enabled()
        assert ta.is_grad_enabled()


def test_contexts_that_overlap_each_give_back_what_is_theirs():
    off, watching = ta.no_grad(), ta.detect_anomaly()
    off.__enter__()
    watching.__enter__()
    off.__exit__()
    assert ta.is_grad_enabled()
    with pytest.raises(FloatingPointError), np.errstate(divide="ignore"):
        ta.log(T([0.0]))
    watching.__exit__()
    assert ta.is_grad_enabled() and ta.log(T([1.0])).item() == 0


@pytest.mark.parametrize("context", [ta.no_grad, ta.enable_grad, ta.detect_anomaly])
def test_modes_are_restored_after_an_exception(context):
    before = ta.is_grad_enabled()
    with pytest.raises(KeyError), context():
        raise KeyError

    @context()
    def broken():
        raise KeyError

    with pytest.raises(KeyError):
        broken()
    assert ta.is_grad_enabled() == before
    assert T(1.0).log().requires_grad  # no anomaly mode left behind


def test_modes_without_parentheses_are_refused():
    with pytest.raises((TypeError, AttributeError)), ta.no_grad:
        pass
    with pytest.raises(TypeError):
        ta.no_grad(lambda: None)


def test_modes_belong_to_a_thread():
    seen = []
    with ta.no_grad():
        thread = threading.Thread(target=lambda: seen.append(ta.is_grad_enabled()))
        thread.start()
        thread.join()
    assert seen == [True]


def test_leaves_can_be_made_under_no_grad():
    with ta.no_grad():
        x = T(1.0)
    (x * 2).backward()
    assert x.grad.item() == 2


def test_backward_under_no_grad_works_on_what_was_recorded_before():
    x = T(2.0)
    y = x * x
    with ta.no_grad():
        y.backward()
    assert x.grad.item() == 4


def test_a_backward_pass_records_nothing():
    x = T(2.0)
    (x * x).backward()
    assert not x.grad.requires_grad and x.grad.is_leaf
    x.grad = None
    y = x * x
    assert not ta.grad(y, x).requires_grad


# ------------------------------------------------------------------------------------------------- anomalies


def test_an_anomaly_in_forward_names_operation_shapes_and_line():
    x = T([[-1.0, 1.0]])
    with np.errstate(all="ignore"), ta.detect_anomaly():
        with pytest.raises(FloatingPointError, match=r"log: NaN in the result.*\(1, 2\).*test_autograd\.py:\d+"):
            ta.log(x)
        with pytest.raises(FloatingPointError, match=r"divide: an infinity"):
            x / np.array([0.0, 1.0])
    with np.errstate(all="ignore"):
        assert np.isnan(ta.log(x).data).any()  # off again


def test_an_anomaly_in_backward_names_the_line_of_the_forward():
    x = T([0.0, 1.0])
    with np.errstate(all="ignore"), ta.detect_anomaly():
        y = ta.sqrt(x).sum()
        with pytest.raises(FloatingPointError, match=r"sqrt: an infinity in the gradient.*test_autograd\.py:\d+"):
            y.backward()
    assert x.grad is None


def test_masking_with_minus_infinity_is_no_anomaly():
    x = T([[1.0, 2.0], [3.0, 4.0]])
    with ta.detect_anomaly():
        y = x.masked_fill(np.array([[False, True], [True, True]]), -np.inf).softmax(axis=-1)
        (y * y).sum().backward()
    assert np.isfinite(x.grad.data).all()


# ---------------------------------------------------------------------------------------------------- guards


def test_a_rule_of_the_wrong_shape_is_named():
    broken = operation(double, x=lambda g, out, x: g.reshape(-1)[:1].repeat(5))
    with pytest.raises(RuntimeError, match=r"double.*\(5,\).*\(2, 3\)"):
        broken(T(np.ones((2, 3)))).sum().backward()


def test_unbroadcasting_happens_in_the_engine():
    spread = operation(lambda x: np.broadcast_to(x, (4, 2, 3)) * 1.0, x=lambda g, out, x: g)
    for shape in [(2, 3), (1, 3), (2, 1), (1, 1), (3,), (1,), ()]:
        x = T(np.ones(shape))
        spread(x).sum().backward()
        assert x.grad.shape == shape and x.grad.data.sum() == 24
    assert autograd.unbroadcast(np.ones((4, 2, 3)), (2, 1)).tolist() == [[12], [12]]


def test_a_gradient_has_the_dtype_of_its_tensor():
    wide = operation(double, x=lambda g, out, x: g.astype(np.float64) * 2)
    for dtype in (np.float16, np.float32, np.float64):
        x = ta.Tensor(np.ones(3, dtype), requires_grad=True)
        wide(x).sum().backward()
        assert x.grad.dtype == dtype
    a = ta.Tensor(np.ones(3, np.float32), requires_grad=True)
    b = T(np.ones(3))
    (a * b).sum().backward()
    assert a.grad.dtype == np.float32 and b.grad.dtype == np.float64


def test_bad_calls_of_an_operation_name_it():
    for bad in (
        lambda: ta.exp(),
        lambda: ta.exp(1.0, 2.0, 3.0),
        lambda: ta.sum(T([1.0]), axes=0),
        lambda: ta.sum(T([1.0]), 0, axis=0),
        lambda: T([1.0]).softmax(dim=0),
    ):
        with pytest.raises(TypeError, match=r"exp|sum|softmax"):
            bad()


@pytest.mark.parametrize(
    "f, words",
    [
        (lambda a, b: a + b, ["add", "(2, 3)", "(4, 5)"]),
        (lambda a, b: a * b, ["multiply", "(2, 3)", "(4, 5)"]),
        (lambda a, b: a @ b, ["matmul", "(2, 3)", "(4, 5)", "3", "4", "mT"]),
        (lambda a, b: np.ones((5, 2)) @ b, ["matmul", "(5, 2)", "(4, 5)"]),
        (lambda a, b: ta.concatenate([a, b]), ["concatenate", "(2, 3)", "(4, 5)", "axis"]),
        (lambda a, b: ta.stack([a, b]), ["stack", "(2, 3)", "(4, 5)"]),
        (lambda a, b: ta.where(True, a, b), ["where", "(2, 3)", "(4, 5)"]),
        (lambda a, b: ta.maximum(a, b), ["maximum", "(2, 3)", "(4, 5)"]),
        (lambda a, b: ta.einsum("ij,jk->ik", a, b), ["einsum", "(2, 3)", "(4, 5)"]),
        (lambda a, b: a.reshape(4, 2), ["reshape", "(2, 3)", "(4, 2)"]),
        (lambda a, b: a.broadcast_to((4, 5)), ["broadcast_to", "(2, 3)", "(4, 5)"]),
        (lambda a, b: a.transpose(0, 1, 2), ["transpose", "(2, 3)", "(0, 1, 2)"]),
        (lambda a, b: ta.split(a, 2, axis=1), ["split", "(2, 3)", "axis"]),
        (lambda a, b: a.squeeze(0), ["squeeze", "(2, 3)"]),
        (lambda a, b: a.masked_fill(np.ones((4, 5), bool), 0.0), ["masked_fill", "(2, 3)", "(4, 5)"]),
        (lambda a, b: a.masked_fill(np.ones((2, 3)), 0.0), ["masked_fill", "boolean", "float64", "blocked"]),
        (lambda a, b: ta.where(np.ones((2, 3)), a, 0.0), ["where", "boolean"]),
        (lambda a, b: ta.layer_norm(a, np.ones(4), np.ones(4)), ["layer_norm", "(2, 3)", "(4,)"]),
        (lambda a, b: ta.cross_entropy(a, [0, 1, 2]), ["cross_entropy", "(2, 3)", "(3,)"]),
        (lambda a, b: ta.cross_entropy(a, [0, 3]), ["cross_entropy", "3"]),
        (lambda a, b: ta.cross_entropy(a, [0.0, 1.0]), ["cross_entropy", "integers", "float"]),
        (lambda a, b: ta.embedding(a, [2]), ["embedding", "2"]),
        (lambda a, b: ta.embedding(a, [-1]), ["embedding", "-1"]),
        (lambda a, b: ta.embedding(a, [0.5]), ["embedding", "integers", "float"]),
        (lambda a, b: ta.dropout(a, 1.5, rng=np.random.default_rng(0)), ["dropout", "1.5"]),
        (lambda a, b: a[2], ["getitem", "(2, 3)", "2"]),
        (lambda a, b: ta.embedding(a[0], [0]), ["embedding", "(3,)"]),
        (lambda a, b: a @ 2, ["matmul", "(2, 3)", "()", "*"]),
        (lambda a, b: a[0, 0] @ b, ["matmul", "()", "(4, 5)", "*"]),
        (lambda a, b: ta.concatenate([a, a], axis=None), ["concatenate", "axis", "reshape(-1)"]),
        (lambda a, b: ta.softmax(ta.Tensor([True]), axis=3), ["softmax", "(1,)", "axis=3"]),
        (lambda a, b: a.masked_fill(np.ones((2, 3), bool), b[0, 0]), ["masked_fill", "value", "detach"]),
        (lambda a, b: a.clip(b[0, 0]), ["clip", "min", "detach"]),
        (lambda a, b: ta.take_along_axis(a, np.array([[3]]), axis=1), ["take_along_axis", "(2, 3)"]),
        (lambda a, b: ta.take_along_axis(a, np.array([[0.5]]), axis=1), ["take_along_axis"]),
    ],
)
def test_errors_name_operation_shapes_and_remedy(f, words):
    with pytest.raises((ValueError, TypeError, IndexError)) as caught:
        f(T(np.ones((2, 3))), T(np.ones((4, 5))))
    message = str(caught.value)
    assert message.startswith(words[0]) and all(word in message for word in words), message


# ---------------------------------------------------------------------------------------- the recorded graph


def test_a_tensor_is_the_node_of_the_graph():
    x = T([1.0, 2.0], "x")
    y = x.softmax(axis=-1).named("y")
    z = ta.concatenate([y, np.zeros(1)])
    assert x.op is None and x.index == 0 and x.is_leaf
    assert y.op is PRIMITIVES["softmax"] and y.args[0] is x and y.name == "y"
    assert isinstance(z.args[0], tuple) and z.args[0][0] is y and z.index > y.index > 0
    z.sum().backward()
    assert y.args is None and z.args is None


def test_scope_and_origin_are_recorded():
    x = T([1.0, 2.0])
    with modes.Switch(scope=modes.Scope("attn", "SelfAttention", modes.Scope("", "Block", None))):
        y = x * x
    assert (y.scope.name, y.scope.kind, y.scope.parent.kind, y.scope.parent.parent) == (
        "attn",
        "SelfAttention",
        "Block",
        None,
    )
    assert y.origin is None and (x * 2).scope is None
    seed = T([1.0, 1.0])
    g = ta.grad(y, x, seed, create_graph=True)
    assert g.origin.role == "accumulate" and g.origin.of is x
    assert {a.origin.role for a in g.args if isinstance(a, ta.Tensor) and a.origin} == {"rule"}
    assert {a.origin.position for a in g.args} == {0, 1} and all(a.origin.of is y for a in g.args)


# -------------------------------------------------------------------------------------------------- lifetime


def test_nothing_of_a_step_outlives_it_with_the_collector_off():
    gc.collect()
    gc.disable()
    try:
        x = T(np.ones((3, 3)))
        y = (x @ x).tanh().sum()
        inner = weakref.ref(y.args[0])
        y.backward()
        assert inner() is None  # a kept loss keeps its number, not its graph
        z = (x @ x).sum()
        g = ta.grad(z, x, create_graph=True)
        refs = [weakref.ref(z), weakref.ref(g), weakref.ref(z.args[0])]
        del z, g
        assert all(r() is None for r in refs)
    finally:
        gc.enable()


def test_arrays_of_a_graph_are_read_only_until_it_is_freed():
    x = T([1.0, 2.0])
    y = x * x
    for array in (x.data, y.data):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 5
    with pytest.raises(ValueError, match="read-only"):
        x.data += 1
    y.sum().backward()
    x.data[0] = 5
    y.data[0] = 5
    assert x.grad.tolist() == [2, 4]


def test_a_graph_that_is_dropped_gives_its_arrays_back():
    x = T([1.0, 2.0])
    y = x * x
    del y
    x.data[0] = 5


def test_two_graphs_lock_one_array_until_both_are_gone():
    x = T([1.0, 2.0])
    y, z = (x * x).sum(), (x * 3).sum()
    y.backward()
    with pytest.raises(ValueError, match="read-only"):
        x.data[0] = 5
    z.backward()
    x.data[0] = 5


def test_views_and_detached_tensors_are_locked_with_the_array_whose_memory_they_share():
    x, w = T([1.0, 2.0]), T([1.0])
    part = x.detach()[:1]
    first, second = (x * x).sum(), (part * w).sum()
    first.backward()
    for array in (x.data, part.data):  # the second graph still needs the memory of both
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 5
    second.backward()
    assert w.grad.tolist() == [1]
    part.data[0] = 5
    assert x.data[0] == 5

    data = ta.Tensor(np.arange(6.0).reshape(3, 2))
    y = (data[1] * T([1.0, 1.0])).sum()
    with pytest.raises(ValueError, match="read-only"):
        data.data[1] = 0
    y.backward()
    data.data[1] = 0


def test_data_that_is_read_only_without_any_graph_can_be_replaced():
    x = T([1.0, 2.0])
    x.data = np.broadcast_to(0.0, 2)
    x.data = np.array([3.0, 4.0])
    assert x.tolist() == [3, 4]


def test_replacing_data_that_a_graph_needs_is_refused_too():
    x = T([1.0, 2.0])
    y = (x * x).sum()
    with pytest.raises(RuntimeError, match="needed by a graph"):
        x.data = np.array([10.0, 20.0])
    y.backward()
    x.data = np.array([10.0, 20.0])
    assert x.grad.tolist() == [2, 4]


def test_parameters_that_threads_share_may_be_written_when_all_their_graphs_are_gone():
    switching = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads interrupt each other as often as they can
    try:
        w = ta.Tensor(np.ones((4, 4)), requires_grad=True)
        with ThreadPoolExecutor(4) as pool:
            for g in pool.map(lambda _: ta.grad((w @ w.mT @ w).sum(), w), range(200)):
                assert g.shape == (4, 4)
    finally:
        sys.setswitchinterval(switching)
    assert w.numpy().flags.writeable
