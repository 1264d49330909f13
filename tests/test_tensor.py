"""Tensor: what it holds, what it shows, and how it speaks Python and NumPy."""

import numpy as np
import pytest

import tinygrad_attn as ta


def T(data, name=None):
    return ta.Tensor(np.asarray(data, dtype=np.float64), requires_grad=True, name=name)


# -------------------------------------------------------------------------------------------------- creation


@pytest.mark.parametrize(
    "data, dtype",
    [
        (1.5, np.float32),
        ([1.0, 2], np.float32),
        ([[1.0], [2.0]], np.float32),
        ((1.0, 2.0), np.float32),
        ([], np.float32),
        (True, np.bool_),
        ([True, False], np.bool_),
        (np.float64(1.5), np.float64),
        (np.float16(1.5), np.float16),
        (np.array([1.0]), np.float64),
        (np.array([1.0], np.float32), np.float32),
        (np.array([1], np.uint8), np.uint8),
        ([np.float64(1.0), np.float64(2.0)], np.float64),
    ],
)
def test_python_floats_become_float32_and_arrays_keep_their_dtype(data, dtype):
    assert ta.Tensor(data).dtype == dtype


def test_python_integers_stay_integers():
    assert ta.Tensor(3).dtype.kind == ta.Tensor([1, 2]).dtype.kind == "i"


def test_dtype_converts():
    assert ta.Tensor([1, 2], dtype=np.float64).dtype == np.float64
    assert ta.Tensor(np.array([1.7]), dtype=np.float32).dtype == np.float32


def test_the_array_is_copied():
    array = np.array([1.0, 2.0])
    t = ta.Tensor(array)
    array[0] = 9
    assert t.tolist() == [1, 2]
    u = ta.Tensor(t)
    u.data[0] = 7
    assert t.tolist() == [1, 2]


def test_a_tensor_of_a_tensor_is_a_new_leaf():
    x = T([1.0, 2.0])
    for source in (x, x * 2):
        t = ta.Tensor(source)
        assert t.is_leaf and not t.requires_grad and not np.shares_memory(t.data, source.data)


def test_subclasses_masked_arrays_and_byte_orders_become_plain_arrays():
    t = ta.Tensor(np.ma.masked_array([1.0, 2.0], mask=[False, False]))
    assert type(t.data) is np.ndarray and t.shape == (2,)
    assert ta.Tensor(np.array([1.0, 2.0], dtype=">f8")).dtype == np.float64
    assert ta.Tensor(np.array([1.0, 2.0], dtype=">f8")).dtype.isnative
    assert ta.Tensor(np.arange(6.0)[::-2]).tolist() == [5, 3, 1]
    read_only = np.arange(3.0)
    read_only.setflags(write=False)
    assert ta.Tensor(read_only).data.flags.writeable


@pytest.mark.parametrize("data", [None, "text", [1.0, "x"], 1j, object(), {1: 2}, [[1.0], [1.0, 2.0]], np.array("x")])
def test_what_is_no_array_of_numbers_is_refused(data):
    with pytest.raises((TypeError, ValueError)):
        ta.Tensor(data)


def test_names():
    t = T([1.0], name="W_Q")
    assert t.name == "W_Q" and (t * 2).name is None
    y = (t * 2).named("scores")
    assert y.name == "scores" and y.requires_grad


# ---------------------------------------------------------------------------------- shape, dtype and numbers


def test_attributes():
    t = T([[1.0, 2.0, 3.0]])
    assert (t.shape, t.ndim, t.size, t.dtype, len(t)) == ((1, 3), 2, 3, np.float64, 1)
    assert t.T.shape == (3, 1) and t.mT.shape == (3, 1) and t.is_leaf and not (t + 1).is_leaf


def test_numpy_is_the_array_itself_and_detach_shares_it():
    t = T([1.0, 2.0])
    assert t.numpy() is t.data
    d = t.detach()
    assert not d.requires_grad and np.shares_memory(d.data, t.data)
    assert (t * 3).detach().is_leaf


def test_detach_stops_the_gradient():
    x = T([2.0])
    (x * x.detach()).sum().backward()
    assert x.grad.tolist() == [2]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_scalars_are_weak(dtype):
    x = ta.Tensor(np.ones(3, dtype), requires_grad=True)
    for y in (
        x * 2,
        x * 2.5,
        2 - x,
        x / np.sqrt(3),
        np.float64(2) * x,
        x + np.array(2.0),
        x + ta.Tensor(np.float64(2)),
        x**2,
        x ** np.float64(0.5),
        2**x,
        ta.maximum(x, 0.0),
        ta.where(x > 0, x, np.float64(7)),
        x.clip(0, np.float64(2)),
        x.masked_fill(np.array([True, False, False]), np.float64(-1)),
        x + np.array([1, 2, 3]),
        x * (x > 0),
        x.mean(),
        x.var(),
        x.norm(),
        x.softmax(axis=-1),
        x.gelu(),
        x.sigmoid(),
        x.silu(),
        x.sum() * 2.0,
    ):
        assert y.dtype == dtype
        g = ta.grad(y.sum(), x)
        assert g.dtype == dtype and g.shape == (3,)


def test_two_arrays_of_different_precision_give_the_wider():
    a, b = ta.Tensor(np.ones(2, np.float32), requires_grad=True), T([1.0, 2.0])
    y = a * b
    assert y.dtype == np.float64
    y.sum().backward()
    assert a.grad.dtype == np.float32 and b.grad.dtype == np.float64


def test_a_0d_variable_is_not_weak():
    s = T(2.0)
    assert (ta.Tensor([1.0, 2.0]) * s).dtype == np.float64
    assert (s * 2).dtype == np.float64 and (s * np.float32(2)).dtype == np.float64


def test_astype_has_a_gradient():
    x = ta.Tensor([1.0, 2.0], requires_grad=True)
    y = x.astype(np.float64)
    (y * y).sum().backward()
    assert y.dtype == np.float64 and x.grad.dtype == np.float32 and x.grad.tolist() == [2, 4]


# -------------------------------------------------------------------------------------------------- printing


@pytest.mark.parametrize(
    "tensor, text",
    [
        (ta.Tensor([1.0, 2.0]), "Tensor([1., 2.])"),
        (ta.Tensor(3), "Tensor(3)"),
        (T(2.0), "Tensor(2., dtype=float64, requires_grad=True)"),
        (T([1.0], name="W"), "Tensor([1.], dtype=float64, name='W', requires_grad=True)"),
        (T([1.0]) * 2, "Tensor([2.], dtype=float64, op=multiply)"),
        (ta.Tensor([[1.0], [2.0]]), "Tensor([[1.],\n        [2.]])"),
        (ta.Tensor([True]), "Tensor([ True])"),
    ],
)
def test_repr(tensor, text):
    assert repr(tensor) == text


def test_repr_of_large_and_empty_tensors_is_short():
    assert len(repr(ta.Tensor(np.zeros((1000, 1000))))) < 500
    assert repr(ta.Tensor(np.zeros((0, 3)))).startswith("Tensor([]")


def test_format():
    assert f"{T(2.5):.3f}" == "2.500" and f"{ta.Tensor(3):d}" == "3" and "1." in f"{T([1.0, 2.0])}"
    with pytest.raises(TypeError):
        format(T([1.0, 2.0]), ".2f")


# --------------------------------------------------------------------------------------------------- writing


def test_a_tensor_cannot_be_written_into():
    t = T([1.0, 2.0])
    with pytest.raises(TypeError, match="where"):
        t[0] = 5.0
    assert t.tolist() == [1, 2]


def test_augmented_assignment_of_a_result_makes_a_new_one():
    x = T([1.0, 2.0])
    y = z = x + 1
    y *= 2
    assert y is not z and z.tolist() == [2, 3]
    y.sum().backward()
    assert x.grad.tolist() == [2, 2]
    with pytest.raises(RuntimeError, match="no_grad"):
        x += 1


def test_under_no_grad_a_parameter_is_updated_in_place():
    w = ta.Tensor([1.0, 2.0], requires_grad=True)
    parameters = [w]
    (w * w).sum().backward()
    with ta.no_grad():
        for p in parameters:
            p -= 0.5 * p.grad
            p += np.array([1.0, 1.0])
            p *= 2
            p /= np.float64(4)
    assert parameters[0] is w and w.tolist() == [0.5, 0.5]
    assert w.requires_grad and w.is_leaf and w.dtype == np.float32
    y = w * w
    with ta.no_grad(), pytest.raises(ValueError, match="read-only"):
        w += 1
    y.sum().backward()
    with ta.no_grad():
        z = y = ta.Tensor([1.0])
        z += 1
    assert y.tolist() == [1]


def test_data_can_be_replaced_and_written():
    x = T([1.0, 2.0])
    x.data -= 0.5
    x.data[0] = 7
    assert x.tolist() == [7, 1.5]
    x.data = np.array([3.0, 4.0])
    assert x.tolist() == [3, 4]
    x.data = ta.Tensor(np.array([5.0, 6.0]))
    assert x.tolist() == [5, 6]
    with pytest.raises(ValueError, match=r"\(2,\).*\(3,\)"):
        x.data = np.zeros(3)
    with pytest.raises(RuntimeError):
        (x * 2).data = np.zeros(2)


def test_requires_grad_can_be_switched_on_leaves_only():
    x = ta.Tensor([1.0])
    x.requires_grad = True
    (x * 2).sum().backward()
    assert x.grad.tolist() == [2]
    x.requires_grad = False
    assert not (x * 2).requires_grad
    y = T([1.0]) * 2
    with pytest.raises(RuntimeError, match="detach"):
        y.requires_grad = False


def test_attributes_that_do_not_exist_are_errors():
    x = T([1.0])
    with pytest.raises(AttributeError):
        x.gradient = 1
    with pytest.raises(AttributeError):
        _ = x.requires_grads
    with pytest.raises(AttributeError):
        x.shape = (1, 1)


# ----------------------------------------------------------------------------------------- NumPy's protocols


def test_an_array_of_a_tensor_is_a_plain_array():
    x = T([1.0, 2.0])
    for array in (np.asarray(x), np.array(x), np.asarray(x * 1)):
        assert type(array) is np.ndarray and array.tolist() == [1, 2]
    assert np.array(x, dtype=np.float32).dtype == np.float32
    copied = np.array(x)
    copied[0] = 9
    assert x.tolist() == [1, 2]


def test_numpys_tests_and_questions_take_tensors():
    x = T([1.0, np.nan])
    assert np.isnan(x).tolist() == [False, True] and np.isfinite(x).tolist() == [True, False]
    assert np.allclose(x, x, equal_nan=True) and not np.array_equal(x, [1, 2])
    assert np.shape(x) == (2,) and np.ndim(x) == 1 and np.size(x) == 2 and np.argmax(T([1.0, 3.0])) == 1
    assert np.argsort(T([3.0, 1.0])).tolist() == [1, 0] and np.sign(T([-3.0])).tolist() == [-1]
    np.testing.assert_allclose(T([1.0]), [1.0])
    np.testing.assert_array_equal(T([1.0]), np.array([1.0]))


def test_zeros_like_gives_no_tracked_tensor():
    for made in (np.zeros_like(T([1.0])), np.ones_like(T([1.0]))):
        assert not getattr(made, "requires_grad", False)


def test_numpy_functions_without_a_rule_say_so():
    x = T([[1.0, 2.0], [3.0, 4.0]])
    for f in (np.linalg.inv, np.linalg.det, np.arctan, np.median, np.convolve, np.logaddexp):
        with pytest.raises(TypeError, match=r"no gradient rule|no implementation"):
            f(x, x) if f in (np.convolve, np.logaddexp) else f(x)


def test_out_arguments_never_lose_a_graph():
    x, out = T([1.0, 2.0]), np.zeros(2)
    with pytest.raises(TypeError, match="graph"):
        np.exp(x, out=out)
    with pytest.raises(TypeError):
        np.add(out, out, out=x)
    np.exp(x.detach(), out=out)
    assert np.allclose(out, np.exp([1, 2])) and x.tolist() == [1, 2]


def test_reduce_and_other_ufunc_methods():
    x = T([1.0, 2.0])
    y = np.add.reduce(x)
    assert y.requires_grad and y.item() == 3
    for method in (np.multiply.outer, np.add.at):
        with pytest.raises(TypeError):
            method(x, [0], x) if method == np.add.at else method(x, x)


def test_keyword_arguments_of_numpys_functions():
    x = T([[1.0, 2.0], [3.0, 4.0]])
    assert np.sum(x, axis=0, keepdims=True).shape == (1, 2)
    assert np.mean(x, 1).tolist() == [1.5, 3.5] and np.max(x, axis=-1).tolist() == [2, 4]
    assert np.concatenate([x, x], axis=1).shape == (2, 4) and np.var(x, axis=0, ddof=1).tolist() == [2, 2]
    for bad in (
        lambda: np.sum(x, where=x > 1),
        lambda: np.mean(x, dtype=np.float32),
        lambda: np.exp(x, where=False),
    ):
        with pytest.raises(TypeError):
            bad()


def test_comparisons_and_python_builtins():
    x = T([3.0, 1.0, 2.0])
    assert sum(x).item() == 6 and max(x).item() == 3 and sorted(x)[0].item() == 1 and abs(-x).tolist() == [3, 1, 2]
    assert any(x > 2) and not all(x > 2) and 3.0 in x and 7.0 not in x
    assert divmod(7, 2) and (-x).tolist() == [-3, -1, -2] and (+x).tolist() == [3, 1, 2]
    assert pow(x, 2).tolist() == [9, 1, 4] and round(float(x[0])) == 3


def test_operators_that_mean_nothing_here_are_errors():
    x = T([1.0, 2.0])
    for bad in (
        lambda: x // 2,
        lambda: x % 2,
        lambda: x & x,
        lambda: x | x,
        lambda: ~x,
        lambda: x << 1,
        lambda: pow(x, 2, 3),
    ):
        with pytest.raises(TypeError):
            bad()


def test_booleans_can_be_combined():
    x = T([1.0, 2.0, 3.0])
    mask = np.logical_and(x > 1, x < 3)
    assert np.asarray(mask).tolist() == [False, True, False] and x[mask].tolist() == [2]


def test_a_running_sum_of_losses_stays_in_the_graph():
    w = ta.Tensor(3.0, requires_grad=True)
    total = ta.Tensor(0.0)
    for k in range(3):
        total += k * w
    total.backward()
    assert w.grad.item() == 3.0
