"""value_and_grad, jacobian, hessian and hvp: what they give, and what they leave alone."""

import numpy as np
import pytest

import tinygrad_attn as ta

X = np.array([1.0, 2.0, 3.0])


def T(data):
    return ta.Tensor(np.asarray(data, dtype=np.float64), requires_grad=True)


def cubes(x):
    return (x**3).sum()


# --------------------------------------------------------------------------------------------- value_and_grad


def test_value_and_grad_gives_both():
    value, gradient = ta.value_and_grad(cubes)(X)
    assert value.item() == 36 and np.allclose(gradient.data, 3 * X**2)
    assert not value.requires_grad and not gradient.requires_grad


def test_value_and_grad_differentiates_the_first_argument_and_passes_the_others_on():
    value, gradient = ta.value_and_grad(lambda w, x, *, scale: ((w @ x) * scale).sum())(np.eye(2), X[:2], scale=3)
    assert value.item() == 9 and np.array_equal(gradient.data, [[3, 6], [3, 6]])


def test_value_and_grad_of_chosen_arguments():
    def f(a, b, c):
        return (a * b * c).sum()

    _, (da, dc) = ta.value_and_grad(f, argnums=(0, -1))(X, 2.0, X)
    assert np.array_equal(da.data, 2 * X) and np.array_equal(dc.data, 2 * X)
    _, db = ta.value_and_grad(f, argnums=1)(X, np.float64(2.0), X)
    assert db.item() == 14 and db.shape == ()
    with pytest.raises(ValueError, match="argnums=3"):
        ta.value_and_grad(f, argnums=3)(X, X, X)


def test_the_same_tensor_as_two_arguments_is_two_arguments():
    x = T(X)
    _, (da, db) = ta.value_and_grad(lambda a, b: (a * b * b).sum(), argnums=(0, 1))(x, x)
    assert np.allclose(da.data, X**2) and np.allclose(db.data, 2 * X**2)


def test_only_the_argument_counts_and_not_another_use_of_the_same_tensor():
    x = T(X)
    assert np.array_equal(ta.value_and_grad(lambda a: (a * x).sum())(x)[1].data, X)


def test_an_argument_that_is_not_used_has_gradient_zero():
    _, (da, db) = ta.value_and_grad(lambda a, b: a.sum(), argnums=(0, 1))(X, X)
    assert np.array_equal(da.data, [1, 1, 1]) and np.array_equal(db.data, [0, 0, 0])
    assert np.array_equal(ta.value_and_grad(lambda a: ta.Tensor(1.0))(X)[1].data, [0, 0, 0])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_derivatives_keep_the_dtype(dtype):
    x = X.astype(dtype)
    for derivative in (
        ta.value_and_grad(cubes)(x)[1],
        ta.jacobian(ta.exp, x),
        ta.hessian(cubes, x),
        ta.hvp(cubes, x, X),
    ):
        assert derivative.dtype == dtype


def test_value_and_grad_needs_one_number():
    with pytest.raises(ValueError, match=r"one number, not shape \(3,\)"):
        ta.value_and_grad(lambda x: x * 2)(X)
    with pytest.raises(TypeError, match="must return a Tensor, got float"):
        ta.value_and_grad(lambda x: float(x.sum()))(X)


def test_integers_have_no_derivative():
    with pytest.raises(TypeError, match="float"):
        ta.value_and_grad(cubes)(np.array([1, 2]))


# ------------------------------------------------------------------------------------- jacobian, hessian, hvp


def test_the_jacobian_has_the_shape_of_the_result_and_then_of_the_point():
    A = np.arange(6.0).reshape(2, 3)
    assert np.array_equal(ta.jacobian(lambda x: A @ x, X).data, A)
    assert np.array_equal(ta.jacobian(lambda x: x.sum(), X).data, [1, 1, 1])
    assert ta.jacobian(lambda w: w @ X, A).shape == (2, 2, 3)
    assert ta.jacobian(lambda x: x * X, np.array(2.0)).shape == (3,)
    assert ta.jacobian(lambda x: x, X[:0]).shape == (0, 0)


def test_the_jacobian_of_softmax():
    p = np.exp(X) / np.exp(X).sum()
    assert np.allclose(ta.jacobian(lambda x: x.softmax(axis=-1), X).data, np.diag(p) - np.outer(p, p))


def test_the_hessian():
    assert np.allclose(ta.hessian(cubes, X).data, np.diag(6 * X))
    assert np.array_equal(ta.hessian(lambda x: x.sum() ** 2, X).data, np.full((3, 3), 2))
    assert np.allclose(ta.hessian(lambda x: (x * x.mean()).sum(), X).data, np.full((3, 3), 2 / 3))
    assert ta.hessian(lambda w: (w @ w.mT).sum(), np.ones((2, 3))).shape == (2, 3, 2, 3)
    assert ta.hessian(lambda x: x**3, np.array(2.0)).item() == 12


def test_a_linear_function_has_hessian_zero():
    assert np.array_equal(ta.hessian(lambda x: x.sum(), X).data, np.zeros((3, 3)))
    assert np.array_equal(ta.hvp(lambda x: x.sum(), X, X).data, np.zeros(3))


def test_hvp_is_the_hessian_times_the_vector():
    def f(x):
        return (x.softmax(axis=-1) * x**2).sum()

    v = np.array([1.0, -2.0, 0.5])
    assert np.allclose(ta.hvp(f, X, v).data, ta.hessian(f, X).data @ v)


def test_hvp_needs_a_vector_of_the_shape_of_the_point():
    with pytest.raises(ValueError, match=r"hvp: v has shape \(1,\), but x has shape \(3,\)"):
        ta.hvp(cubes, X, np.ones(1))


# -------------------------------------------------------------------------------------------------- behaviour


def test_nothing_touches_grad_or_the_point():
    x = T(X)
    ta.value_and_grad(cubes)(x), ta.jacobian(ta.exp, x), ta.hessian(cubes, x), ta.hvp(cubes, x, X)
    assert x.grad is None and np.array_equal(x.data, X) and x.is_leaf
    x.data[0] = 5.0  # and no graph holds it


def test_results_at_a_tensor_that_requires_gradients_can_be_differentiated_again():
    x = T(X)
    value, gradient = ta.value_and_grad(cubes)(x)
    assert np.allclose(ta.grad(gradient.sum(), x, retain_graph=True).data, 6 * X)
    assert np.allclose(ta.grad(value, x).data, 3 * X**2)
    assert np.allclose(ta.grad(ta.hessian(cubes, x).sum(), x).data, 6)
    assert np.allclose(ta.grad(ta.hvp(cubes, x, np.ones(3)).sum(), x).data, 6)


def test_they_work_inside_no_grad_and_give_constants_there():
    x = T(X)
    with ta.no_grad():
        value, gradient = ta.value_and_grad(cubes)(x)
        hessian = ta.hessian(cubes, x)
    assert np.allclose(gradient.data, 3 * X**2) and np.allclose(hessian.data, np.diag(6 * X))
    assert not value.requires_grad and not gradient.requires_grad and not hessian.requires_grad


def test_they_nest():
    def slope(f):
        return lambda x: ta.value_and_grad(f)(x)[1]

    x = np.array(2.0)
    f = slope(slope(slope(lambda x: x**5)))
    assert np.isclose(f(x).item(), 60 * 2.0**2)
