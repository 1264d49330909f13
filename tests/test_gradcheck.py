"""gradcheck finds the mistakes people make in gradient rules, and passes nothing that it has not checked."""

import numpy as np
import pytest

import tinygrad_attn as ta
from tinygrad_attn.autograd import Primitive


def T(data, name=None):
    return ta.Tensor(np.asarray(data, dtype=np.float64), requires_grad=True, name=name)


def operation(forward, **rules):
    """A primitive of its own, which nothing else can see."""
    op = Primitive(forward)
    op.gradients(**rules)
    return op


X = np.array([[0.3, -1.2, 0.7], [1.1, 0.4, -0.6]])
SQUARE = np.array([[0.5, -1.0], [2.0, 0.25]])


def doubled(x):
    return x * 2


def product(a, b):
    return a @ b


def total(a, b):
    return a + b


def squared(x):
    return x * x


# --------------------------------------------------------------------------------------- what is right passes


def test_a_right_gradient_passes_and_the_report_says_how_it_was_checked():
    report = ta.gradcheck(lambda x, w: (x @ w).tanh(), [T(X, name="x"), T(X.T)])
    text = str(report)
    assert [c.input for c in report.checks] == ["0 (x)", "1"]
    assert "passed" in text and "all 6 elements" in text and "(2, 3)" in text and "1e-06" in text


def test_the_report_is_a_table_with_aligned_columns():
    lines = str(ta.gradcheck(lambda x, y: x * y, [X, X], order=2)).splitlines()
    assert lines[1].split() == ["order", "input", "shape", "checked", "largest", "error", "note"]
    start = lines[1].index("shape")
    assert len(lines) == 2 + 2 + 3
    assert all(line[start - 1] == " " and line[start] == "(" for line in lines[2:])


def test_inputs_may_be_a_tensor_an_array_a_number_or_a_sequence_of_them():
    for inputs in (T(X), X, 2.0, np.float64(2.0), [X], (T(X),), iter([X])):
        assert len(ta.gradcheck(lambda x: x * x, inputs).checks) == 1


def test_only_tensors_that_require_gradients_are_checked_if_there_are_any():
    report = ta.gradcheck(lambda x, c: x * c, [T(X), ta.Tensor(X)])
    assert [c.input for c in report.checks] == ["0"]


def test_integer_and_other_inputs_are_handed_on_as_they_are():
    def f(x, ids, mask, flag, nothing):
        assert isinstance(ids, np.ndarray) and mask.dtype == bool and flag == "yes" and nothing is None
        return x[ids]

    assert len(ta.gradcheck(f, [X, np.array([1, 1, 0]), np.array([True]), "yes", None]).checks) == 1


def test_several_results_and_results_of_any_shape():
    ta.gradcheck(lambda x: (x.exp(), x.sum(), x * x), X, order=2)
    ta.gradcheck(lambda x: x[0], [X], order=2)


def test_small_inputs_are_checked_element_by_element_and_large_ones_along_random_directions(rng):
    small = ta.gradcheck(lambda x: x.tanh(), rng.standard_normal(1000))
    large = ta.gradcheck(lambda x: x.tanh(), rng.standard_normal(1001), order=2)
    assert small.checks[0].method == "all 1000 elements"
    assert large.checks[0].method == "10 random directions of 1,001"


def test_float32_is_checked_in_float64_and_the_report_says_so():
    x = ta.Tensor(np.float32(123.4), requires_grad=True)
    report = ta.gradcheck(lambda x: x * x, x)
    assert "float32 taken as float64" in str(report)
    assert report.checks[0].largest_error < 1e-4


def test_inputs_are_copied_and_left_alone():
    x, array = T(X), X.copy()

    def careless(x):
        x.data[...] = x.data + 1
        return x * 3

    ta.gradcheck(careless, array)
    ta.gradcheck(careless, x)
    assert np.array_equal(x.data, X) and np.array_equal(array, X) and x.grad is None


def test_works_inside_no_grad():
    with ta.no_grad():
        ta.gradcheck(lambda x: x.exp(), X)
        assert not ta.is_grad_enabled()


def test_two_runs_say_the_same():
    def run():
        return str(ta.gradcheck(lambda x: (x.exp() @ x.mT).tanh(), X, order=2))

    assert run() == run()


def test_order_three():
    report = ta.gradcheck(lambda x: x**4, np.array([0.5, 2.0]), order=3)
    assert {c.order for c in report.checks} == {1, 2, 3}


def test_strong_curvature_is_no_kink():
    ta.gradcheck(lambda x: (x * x * 5e3).sum(), np.array([0.0, 1e-7, 0.5]))
    ta.gradcheck(lambda x: ta.layer_norm(x, eps=1e-5), np.array([[3.0, 3.0 + 1e-9, 3.0]]))


# ---------------------------------------------------------------------------------------- what is wrong fails

WRONG = {
    "missing factor": (operation(squared, x=lambda g, out, x: g * x), [X]),
    "wrong sign": (operation(squared, x=lambda g, out, x: -2 * g * x), [X]),
    "transposed": (
        operation(product, a=lambda g, out, a, b: (g @ b.mT).mT, b=lambda g, out, a, b: a.mT @ g),
        [SQUARE, SQUARE + 1],
    ),
    "operands swapped": (
        operation(product, a=lambda g, out, a, b: g @ a.mT, b=lambda g, out, a, b: b.mT @ g),
        [SQUARE, SQUARE + 1],
    ),
    "un-broadcast keeps one row": (
        operation(total, a=lambda g, out, a, b: g, b=lambda g, out, a, b: g[0]),
        [X, X[0]],
    ),
    "un-broadcast by the mean": (
        operation(total, a=lambda g, out, a, b: g, b=lambda g, out, a, b: g.mean(axis=0)),
        [X, X[0]],
    ),
    "dropped branch": (operation(lambda x: x + np.exp(x), x=lambda g, out, x: g), [X]),
    "detached path": (lambda x: x * x.detach(), [X]),
    "detached input": (lambda x, y: x * y.detach(), [X, X]),
    "detached altogether": (lambda x: x.detach() * 2, [X]),
    "ignores the incoming gradient": (
        operation(doubled, x=lambda g, out, x: np.full_like(x, 2.0)),
        [np.array(0.5)],
    ),
    "squares the incoming gradient": (operation(doubled, x=lambda g, out, x: 2 * g * g), [np.array(0.5)]),
    "one element wrong": (operation(doubled, x=lambda g, out, x: g * (2 + 1e-3 * (x > 1))), [X]),
    "one element nan": (operation(doubled, x=lambda g, out, x: g * np.where(x > 1, np.nan, 2)), [X]),
    "infinite": (operation(doubled, x=lambda g, out, x: g * np.inf), [X]),
    "gradient where there is none": (operation(lambda x: x * 0, x=lambda g, out, x: g), [X]),
}


@pytest.mark.parametrize("f, inputs", WRONG.values(), ids=WRONG)
def test_a_wrong_gradient_is_found(f, inputs):
    with pytest.raises(ta.GradcheckError, match=r"gradient of input \d.* is wrong: backward says"):
        ta.gradcheck(f, inputs)


@pytest.mark.parametrize(
    "rule",
    [
        lambda g, out, x: g * 2 * np.asarray(x),  # the rule's dependence on x is lost
        lambda g, out, x: np.asarray(g) * 2 * x,  # and here its dependence on the seed
    ],
    ids=["x", "seed"],
)
def test_order_two_finds_a_rule_that_works_on_bare_arrays(rule):
    f = operation(squared, x=rule)
    ta.gradcheck(f, X)
    with pytest.raises(ta.GradcheckError, match=r"order 2.*no path leads from the result to this input"):
        ta.gradcheck(f, X, order=2)


def test_a_mismatch_names_input_index_both_numbers_and_tolerance():
    f = operation(doubled, x=lambda g, out, x: g * np.where(x == 1.1, 7.0, 2.0))
    with pytest.raises(ta.GradcheckError) as caught:
        ta.gradcheck(lambda y, x: (y + f(x))[1, 0], [T(X), T(X, name="W_Q")])
    message = str(caught.value)
    assert "input 1 (W_Q) at [1, 0]" in message
    assert "backward says 7," in message and "finite differences say 2," in message
    assert "tolerance is 0.000201" in message and "atol 1e-06" in message and "rtol 0.0001" in message
    assert "1 of 6" in message


@pytest.mark.parametrize("wrong", [0, 777, 4999])
def test_one_wrong_element_of_a_large_input_is_found_and_named(wrong):
    factor = np.full(5000, 2.0)
    factor[wrong] = 4.0
    f = operation(doubled, x=lambda g, out, x: g * factor)
    with pytest.raises(ta.GradcheckError, match=rf"input 0 at \[{wrong}\] is wrong"):
        ta.gradcheck(f, np.linspace(-1, 1, 5000))


def test_nan_in_the_gradient_of_a_large_input_is_named():
    f = operation(doubled, x=lambda g, out, x: g * np.where(np.arange(5000) == 123, np.nan, 2))
    with pytest.raises(ta.GradcheckError, match=r"at \[123\] is wrong: backward says nan, finite differences say"):
        ta.gradcheck(f, np.linspace(-1, 1, 5000))


def test_tolerances_are_kept():
    f = operation(doubled, x=lambda g, out, x: g * 2.001)
    with pytest.raises(ta.GradcheckError):
        ta.gradcheck(f, X)
    ta.gradcheck(f, X, rtol=1e-2)
    ta.gradcheck(f, X, rtol=0, atol=1e-2)
    with pytest.raises(ta.GradcheckError):
        ta.gradcheck(f, X, rtol=0, atol=1e-4)


# ---------------------------------------------------------------------------------- what proves nothing fails


@pytest.mark.parametrize(
    "f, inputs",
    [
        (lambda x: x.softmax(axis=-1).sum(), [X]),  # constant
        (lambda x: x * 0.0, [X]),
        (lambda x: ta.Tensor(X), [X]),  # does not use its argument
        (lambda x: x.sum(), [np.zeros((0, 3))]),  # no element
        (lambda x: x.relu(), [-abs(X)]),  # dead
        (lambda ids: ids, [np.array([1, 2])]),  # no floats
        (lambda: ta.Tensor(1.0), []),
    ],
)
def test_a_check_that_proves_nothing_is_an_error(f, inputs):
    with pytest.raises(ta.GradcheckError, match="proves nothing"):
        ta.gradcheck(f, inputs)


def test_an_input_without_influence_is_marked_in_the_report():
    report = ta.gradcheck(lambda x, c: x * 2 + (c - c), [X, X])
    assert [c.note for c in report.checks] == ["", "zero everywhere"]


@pytest.mark.parametrize(
    "f, x",
    [
        (lambda x: x.relu(), 0.0),
        (lambda x: x.relu(), 3e-7),
        (lambda x: x.relu(), -3e-7),
        (lambda x: x.abs(), 0.0),  # abs'(0) = 0 is what the central difference says, too
        (lambda x: x.abs(), 4e-7),
        (lambda x: x.max(), [2.0, 5.0, 5.0]),
        (lambda x: ta.maximum(x, 1.0), 1.0),
        (lambda x: x.clip(0.0, 1.0), 1.0),
    ],
)
def test_a_kink_within_eps_is_reported_as_one(f, x):
    with pytest.raises(ta.GradcheckError, match=r"has a kink within 1e-06 of input 0"):
        ta.gradcheck(f, np.array(x))


def test_a_kink_is_no_excuse_for_a_number_that_is_neither_slope():
    f = operation(lambda x: np.maximum(x, 0), x=lambda g, out, x: g * 5)
    with pytest.raises(ta.GradcheckError, match=r"is wrong: backward says 5, .* \(0 behind, 1 ahead\)"):
        ta.gradcheck(f, np.array(0.0))


@pytest.mark.parametrize("f, x", [(lambda x: x.log(), 0.0), (lambda x: x / 0.0, 1.0), (lambda x: x * np.nan, 1.0)])
def test_values_that_are_not_finite_are_an_error(f, x):
    with np.errstate(all="ignore"), pytest.raises(ta.GradcheckError, match="not finite at the given inputs"):
        ta.gradcheck(f, np.array(x))


def test_a_step_out_of_the_domain_is_an_error_without_a_warning():
    with pytest.raises(ta.GradcheckError, match=r"not finite within 1e-06 of input 0 at \[1\]"):
        ta.gradcheck(lambda x: x.log(), np.array([1.0, 1e-7]))
    ta.gradcheck(lambda x: x.log(), np.array([1.0, 1e-7]), eps=1e-11, rtol=1e-3)


def test_a_step_that_rounding_swallows_is_an_error():
    with pytest.raises(ta.GradcheckError, match="lost beside the size of input 0"):
        ta.gradcheck(lambda x: x * 2, np.array([1e12]))
    ta.gradcheck(lambda x: x * 2, np.array([1e12]), eps=1.0)


def test_random_functions_are_an_error(rng):
    with pytest.raises(ta.GradcheckError, match="different values for the same inputs"):
        ta.gradcheck(lambda x: x * rng.standard_normal(), X)


def test_results_in_float32_are_an_error():
    with pytest.raises(ta.GradcheckError, match="f returns float32"):
        ta.gradcheck(lambda x: ta.Tensor(x.data.astype(np.float32), requires_grad=True) * 2, X)


def test_bad_calls():
    with pytest.raises(TypeError, match="must return a Tensor"):
        ta.gradcheck(lambda x: x.numpy(), X)
    with pytest.raises(ValueError, match="order"):
        ta.gradcheck(lambda x: x, X, order=0)


def test_a_failed_check_is_a_failed_assertion():
    assert issubclass(ta.GradcheckError, AssertionError)
