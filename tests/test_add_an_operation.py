"""An operation added as the README says is a full member: function, method, formula, picture, all derivatives."""

import numpy as np
import pytest

import tinygrad_attn as ta


@pytest.fixture
def softplus(own_operations):
    @ta.primitive()
    def softplus(x):
        """log(1 + exp(x)), a relu without the kink."""
        return np.logaddexp(x, 0)

    softplus.gradients(x=lambda g, out, x: g * ta.sigmoid.of(x))
    return softplus


X = np.array([[-3.0, -0.5, 0.0], [0.2, 1.0, 4.0]])


def test_its_value_is_right_at_the_extremes_too(softplus):
    np.testing.assert_allclose(softplus(X).numpy(), np.log(1 + np.exp(X)), rtol=1e-14)
    assert softplus(np.array([-1000.0, 1000.0])).tolist() == [0, 1000]


def test_gradcheck_passes_at_three_orders(softplus):
    assert {check.order for check in ta.gradcheck(softplus, X, order=3).checks} == {1, 2, 3}


def test_it_is_a_method_and_keeps_float32(softplus):
    x = ta.Tensor([0.0, 2.0], requires_grad=True)
    x.softplus().sum().backward()
    assert x.softplus().dtype == x.grad.dtype == np.float32
    np.testing.assert_allclose(x.grad.numpy(), [0.5, 1 / (1 + np.exp(-2))], rtol=1e-6)


def test_it_prints_its_rule_and_is_drawn(softplus):
    assert ta.viz.formula(softplus) == "out = softplus(x)\ndx = g * sigmoid(x)"
    x = ta.Tensor(X, requires_grad=True, name="x")
    assert "dx" in ta.viz.listing(ta.viz.trace_backward(softplus(x).sum()))
    assert "softplus" in ta.viz.draw_backward(softplus(x).sum()).source


def test_a_wrong_rule_is_found(softplus):
    softplus.gradients(x=lambda g, out, x: g * ta.tanh.of(x))
    with pytest.raises(ta.GradcheckError):
        ta.gradcheck(softplus, X)
