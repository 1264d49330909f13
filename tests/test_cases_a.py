"""What users of engines like this one reported, as small inputs with the right value: the engine (cases A).

`T` is a float64 tensor that wants gradients, `C` a constant. Each case is followed by its neighbours.
"""

import copy
import gc
import math
import pickle
import sys
import time
import weakref

import numpy as np
import pytest

import tinygrad_attn as ta


def T(data, name=None):
    return ta.Tensor(np.asarray(data, dtype=np.float64), requires_grad=True, name=name)


def C(data):
    return ta.Tensor(np.asarray(data, dtype=np.float64))


def arange(n, *shape):
    return np.arange(float(n)).reshape(shape)


def equal(tensor, expected, **tolerance):
    """Shape and values agree, to rounding; a bare None or a wrong shape does not."""
    assert isinstance(tensor, ta.Tensor)
    assert tensor.shape == np.shape(expected)
    np.testing.assert_allclose(tensor.data, expected, **{"rtol": 1e-12, "atol": 1e-15, **tolerance})
    return True


# A01 ----------------------------------------------------------------------------------------------------


def test_A01_a_shared_interior_node_is_visited_once_and_in_order():
    a = T(1.0)
    b = a + a
    (b + b).backward()
    assert equal(a.grad, 4.0)


@pytest.mark.parametrize("doublings", [40, 60])
def test_A01_doublings_take_milliseconds(doublings):
    x = y = T(1.0)
    for _ in range(doublings):
        y = y + y
    start = time.perf_counter()
    y.backward()
    assert time.perf_counter() - start < 0.1
    assert x.grad.item() == 2.0**doublings


def test_A01_neighbours_a_long_and_a_short_way_and_use_at_different_depths():
    x = T(2.0)
    a = x * x
    b = a * x
    (b * a + a + x).backward()  # x**5 + x**2 + x
    assert equal(x.grad, 5 * 16 + 4 + 1.0)

    x = T(3.0)
    short = x * 2
    long = short
    for _ in range(5):
        long = long * 1.0
    (long * short).backward()  # 4 x**2
    assert equal(x.grad, 24.0)


def test_A01_neighbours_a_tensor_used_twice_by_one_operation():
    x = T([1.0, 2.0])
    (x * x).sum().backward()
    assert equal(x.grad, [2, 4])
    w = T([[1.0, 2.0], [3.0, 4.0]])
    (w @ w).sum().backward()
    ones = np.ones((2, 2))
    assert equal(w.grad, ones @ w.data.T + w.data.T @ ones)


def test_A01_neighbours_doublings_under_create_graph():
    x = y = T(1.0)
    for _ in range(60):
        y = y + y
    assert ta.grad(y * y, x, create_graph=True).item() == 2.0**121


# A03 ----------------------------------------------------------------------------------------------------


def test_A03_deep_chains_do_not_hit_the_recursion_limit():
    limit = sys.getrecursionlimit()
    x = y = T(1.0)
    for _ in range(20_000):
        y = y + 0.001
    y.backward()
    assert equal(x.grad, 1.0) and abs(y.item() - 21) < 1e-9
    del y
    assert sys.getrecursionlimit() == limit


def test_A03_neighbours_deletion_before_and_after_backward():
    for used in (True, False):
        x = y = T(1.0)
        for _ in range(50_000):
            y = y * 1.0
        last = weakref.ref(y)
        if used:
            y.backward()
            assert equal(x.grad, 1.0)
        del y
        assert last() is None


def test_A03_neighbours_deep_chains_in_create_graph_and_through_joint_operations():
    x = y = T(1.0)
    for _ in range(5_000):
        y = y * 1.0
    g = ta.grad(y * y, x, create_graph=True)
    assert equal(ta.grad(g, x), 2.0)
    del g, y
    y = x.reshape(1)
    for _ in range(3_000):
        y = ta.concatenate([y])
        (y,) = ta.split(y, 1)
    y.sum().backward()
    assert equal(x.grad, 1.0)
    del y


# A04 ----------------------------------------------------------------------------------------------------


def test_A04_the_gradient_of_a_broadcast_operand_is_summed_back_to_its_shape():
    x, y = T([[1.0], [2.0]]), T([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    (x * y).sum().backward()
    assert equal(x.grad, [[6], [15]]) and equal(y.grad, [[1, 1, 1], [2, 2, 2]])

    X, W, b = C([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), T([[1.0], [1.0], [1.0]]), T([[0.0, 0.0, 0.0]])
    loss = (((X @ W + b) - C([[1.0], [2.0]])) ** 2).sum()
    loss.backward()
    assert loss.item() == 582
    assert equal(W.grad, [[342], [450], [558]]) and equal(b.grad, [[36, 36, 36]])

    s = T(2.0)
    (s * T([[1.0, 2.0], [3.0, 4.0]])).sum().backward()
    assert equal(s.grad, 10.0)


@pytest.mark.parametrize("shape", [(), (1,), (4,), (1, 1), (3, 1), (1, 4), (2, 1, 1), (1, 3, 1), (2, 3, 4)], ids=str)
def test_A04_neighbours_every_way_to_stretch_on_both_sides(shape):
    full = arange(24, 2, 3, 4) + 1
    for f in (lambda a, b: a * b, lambda a, b: b * a, lambda a, b: ta.where(True, a * b, b)):
        a, b = T(np.full(shape, 2.0)), T(full)
        f(a, b).sum().backward()
        expected = full
        for axis, n in enumerate((1,) * (3 - len(shape)) + shape):
            expected = expected.sum(axis=axis, keepdims=True) if n == 1 else expected
        assert equal(a.grad, expected.reshape(shape)) and equal(b.grad, np.full((2, 3, 4), 2.0))


# A05 ----------------------------------------------------------------------------------------------------


def test_A05_centering_with_a_seed_of_ones_is_zero():
    x = T([1.0, 2.0, 3.0, 4.0])
    (x - x.mean()).backward([1, 1, 1, 1])
    assert equal(x.grad, [0, 0, 0, 0])
    x = T([1.0, 2.0, 3.0, 4.0])
    (x - x.mean()).backward([1, 0, 0, 0])
    assert equal(x.grad, [0.75, -0.25, -0.25, -0.25])


# A08 ----------------------------------------------------------------------------------------------------


def test_A08_norm_and_square_root_at_zero():
    x = T([0.0, 0.0, 0.0])
    ta.norm(x).backward()
    assert equal(x.grad, [0, 0, 0])
    x = T([0.0, 0.0, 0.0])
    (x**2).sum().backward()
    assert equal(x.grad, [0, 0, 0])
    x = T([0.0, 0.0, 0.0])
    ((x**2).sum() + 1e-12).sqrt().backward()
    assert equal(x.grad, [0, 0, 0])
    x = T([3.0, 4.0])
    ta.norm(x).backward()
    assert equal(x.grad, [0.6, 0.8])


def test_A08_neighbours_one_zero_row_does_not_poison_the_others():
    x = T([[0.0, 0.0], [3.0, 4.0]])
    x.norm(axis=-1).sum().backward()
    assert equal(x.grad, [[0, 0], [0.6, 0.8]])
    x = T([[0.0, 0.0], [3.0, 4.0]])
    x.norm(axis=1, keepdims=True).sum().backward()
    assert equal(x.grad, [[0, 0], [0.6, 0.8]])


def test_A08_neighbours_the_gradient_of_the_norms_gradient():
    x = T([3.0, 4.0])
    unit = np.array([0.6, 0.8])
    assert equal(ta.hessian(ta.norm, x), (np.eye(2) - np.outer(unit, unit)) / 5)
    assert equal(ta.hessian(ta.norm, T([0.0, 0.0])), np.zeros((2, 2)))


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_A08_neighbours_the_norm_of_tiny_and_huge_vectors(scale):
    x = T([3 * scale, 4 * scale])
    y = ta.norm(x)
    y.backward()
    assert equal(y, 5 * scale) and equal(x.grad, [0.6, 0.8])


# A09 ----------------------------------------------------------------------------------------------------


def test_A09_ties_split_the_gradient_and_kinks_have_gradient_zero():
    x = T([2.0, 5.0, 5.0])
    x.max().backward()
    assert equal(x.grad, [0, 0.5, 0.5])
    x = T(1.5)
    ta.maximum(x, x).backward()
    assert equal(x.grad, 1.0)
    x = T([[1.0]])
    z = ta.concatenate((x.max(0).reshape(1, 1), x))
    z = ta.concatenate((z.max(0).reshape(1, 1), z))
    z.sum().backward()
    assert equal(x.grad, [[3]])
    x = T([-2.0, 0.0, 2.0])
    x.abs().sum().backward()
    assert equal(x.grad, [-1, 0, 1])
    x = T(0.0)
    x.relu().backward()
    assert equal(x.grad, 0.0)


def test_A09_neighbours_ties_within_each_row_among_all_and_for_min():
    x = T([[1.0, 1.0, 0.0], [2.0, 2.0, 2.0]])
    (x.max(axis=1) * C([1.0, 3.0])).sum().backward()
    assert equal(x.grad, [[0.5, 0.5, 0], [1, 1, 1]])
    x = T(np.full((2, 3), 7.0))
    x.min(axis=(0, -1)).backward()
    assert equal(x.grad, np.full((2, 3), 1 / 6))
    x = T([[1.0, 1.0]])
    x.min(axis=-1, keepdims=True).backward([[6.0]])
    assert equal(x.grad, [[3, 3]])


def test_A09_neighbours_minimum_and_maximum_with_a_number_and_with_stretched_ties():
    for f in (ta.maximum, ta.minimum):
        x = T([0.0, 1.0])
        f(x, 0.0).sum().backward()
        assert x.grad.data[0] == 0.5  # the tie between x and the constant is split, too
        a, b = T([[1.0], [2.0]]), T([1.0, 1.0])
        f(a, b).sum().backward()
        assert a.grad.data.sum() + b.grad.data.sum() == 4


def test_A09_neighbours_relu_and_abs_at_minus_zero_and_clip_at_its_bounds():
    for f in (ta.relu, ta.abs):
        x = T([-0.0])
        f(x).sum().backward()
        assert equal(x.grad, [0])
    x = T([-1.0, -1.5, 0.0, 1.0, 1.5])
    x.clip(-1, 1).sum().backward()
    assert equal(x.grad, [1, 0, 1, 1, 0])


def test_A09_neighbours_extrema_of_rows_of_infinity():
    x = T([[-np.inf, -np.inf], [-np.inf, 1.0]])
    x.max(axis=1).sum().backward()
    assert equal(x.grad, [[0.5, 0.5], [0, 1]])


# A13 ----------------------------------------------------------------------------------------------------


def test_A13_a_numpy_array_or_scalar_on_the_left():
    t = T([1.0, 2.0])
    a = np.array([3.0, 4.0]) * t
    b = np.float64(2.0) * t
    c = np.array([3.0, 4.0]) - t
    d = np.eye(2) @ t
    for y in (a, b, c, d):
        assert isinstance(y, ta.Tensor) and y.dtype == np.float64
    (a.sum() + b.sum() + c.sum() + d.sum()).backward()
    assert equal(t.grad, [5, 6])
    e = np.array([1.0, 2.0]) == t
    assert e.dtype == bool and e.shape == (2,) and e.data.all()


LEFT = [
    np.array([3.0, 4.0]),
    np.array(3.0),
    np.float64(3.0),
    np.float32(3.0),
    np.int64(3),
    np.array([3, 4]),
    3,
    3.0,
]
LEFT += [np.array([[3.0], [4.0]]), True, np.bool_(True)]


@pytest.mark.parametrize("left", LEFT, ids=repr)
@pytest.mark.parametrize("symbol", ["+", "-", "*", "/", "**", "@", "==", "!=", "<", "<=", ">", ">="])
def test_A13_neighbours_every_operator_and_every_kind_of_left_operand(left, symbol):
    t = T([1.0, 2.0])
    if symbol == "@":
        left = np.ones((2, 2)) * np.asarray(left)
    if symbol == "-" and np.asarray(left).dtype == bool:
        left = int(left)
    for expression in (f"left {symbol} t", f"t {symbol} left"):
        y = eval(expression, {"left": left, "t": t})
        plain = eval(expression, {"left": left, "t": t.data})
        assert isinstance(y, ta.Tensor), expression
        assert y.dtype == (bool if plain.dtype == bool else np.float64)
        assert equal(y, plain)
        if y.dtype != bool:
            assert y.requires_grad


def test_A13_neighbours_numpy_functions_on_both_kinds_together():
    t, a = T([1.0, 2.0]), np.array([3.0, 4.0])
    for y, expected in [
        (np.concatenate([t, a]), [1, 2, 3, 4]),
        (np.concatenate((a, t)), [3, 4, 1, 2]),
        (np.stack([a, t], axis=1), [[3, 1], [4, 2]]),
        (np.where(np.array([True, False]), t, 0), [1, 0]),
        (np.where(a > 3, a, t), [1, 4]),
        (np.maximum(a, t), [3, 4]),
        (np.einsum("i,i->", a, t), 11.0),
        (np.matmul(a, t), 11.0),
        (np.dot(a, t), 11.0),
        (np.clip(t, 0, 1.5), [1, 1.5]),
        (np.add(a, t), [4, 6]),
        (np.reshape(t, (2, 1)), [[1], [2]]),
        (np.squeeze(t[None]), [1, 2]),
        (np.split(t, 2)[1], [2]),
        (np.broadcast_to(t, (2, 2)), [[1, 2], [1, 2]]),
        (np.square(t), [1, 4]),
    ]:
        assert y.requires_grad and equal(y, expected)
    assert np.argmax(t) == 1 and np.shape(t) == (2,) and np.allclose(t, [1, 2])


def test_A13_neighbours_float32_stays_float32_beside_numpy_scalars():
    t = ta.Tensor([1.0, 2.0], requires_grad=True)
    assert t.dtype == np.float32
    for y in (
        np.float64(2) * t,
        t / np.sqrt(np.float64(3)),
        t * np.array(2.0),
        np.array(2.0) - t,
        t**2,
        2**t,
    ):
        assert y.dtype == np.float32
    for y in (t + C(1.0), ta.where(t > 1, t, np.float64(0)), ta.maximum(t, 0.0), t * 2, t + True):
        assert y.dtype == np.float32
    assert (t * np.array([1.0, 2.0])).dtype == np.float64  # an array of numbers is no weak constant


def test_A13_neighbours_an_array_is_updated_in_place_by_a_detached_tensor():
    w, g = np.array([1.0, 2.0]), T([1.0, 1.0])
    w -= 0.5 * g.detach()
    assert type(w) is np.ndarray and w.tolist() == [0.5, 1.5]
    with pytest.raises(TypeError):
        w -= 0.5 * g


# A14 ----------------------------------------------------------------------------------------------------


def test_A14_reflected_operators_keep_their_order():
    for f, slope in [
        (lambda x: 2 - x, -1.0),
        (lambda x: 2 / x, -2 / 9),
        (lambda x: 2**x, 8 * math.log(2)),
        (lambda x: x / 2, 0.5),
    ]:
        x = T(3.0)
        f(x).backward()
        assert equal(x.grad, slope)
    assert sum([T(1.0), T(2.0)]).item() == 3


def test_A14_neighbours_with_arrays_and_lists_on_either_side():
    a = np.array([2.0, 4.0])
    for f, slope in [
        (lambda x: a - x, [-1, -1]),
        (lambda x: a / x, -a / 9),
        (lambda x: a**x, a**3 * np.log(a)),
        (lambda x: x**a, a * 3 ** (a - 1)),
        (lambda x: x - a, [1, 1]),
    ]:
        x = T([3.0, 3.0])
        f(x).sum().backward()
        assert equal(x.grad, slope)
    x = T(np.eye(2))
    (np.array([[1.0, 2.0], [3.0, 4.0]]) @ x).sum().backward()
    assert equal(x.grad, [[4, 4], [6, 6]])
    numbers = [1.0, 2.0]
    assert equal(numbers + T(numbers), [2, 4]) and equal(T(numbers) - numbers, [0, 0])


def test_A14_neighbours_unknown_types_are_refused():
    class Other:
        def __rmul__(self, left):
            return "other"

    for bad in ("text", None, object(), {}):
        with pytest.raises(TypeError):
            T(1.0) * bad
    assert T(1.0) * Other() == "other"


# A16 ----------------------------------------------------------------------------------------------------


def test_A16_a_matrix_product_where_one_operand_has_fewer_stack_axes():
    W, X = T([[1.0, 0.0, 2.0], [0.0, 1.0, 1.0]]), T(arange(24, 4, 3, 2))
    (W @ X).sum().backward()
    assert equal(W.grad, [[76, 92, 108], [76, 92, 108]])
    assert equal(X.grad, [[[1, 1], [1, 1], [3, 3]]] * 4)

    A, B = T(arange(4, 2, 1, 1, 2)), T(arange(12, 3, 2, 2))
    y = A @ B
    assert y.shape == (2, 3, 1, 2)
    y.sum().backward()
    assert equal(A.grad, np.reshape([27, 39, 27, 39], (2, 1, 1, 2)))
    assert equal(B.grad, [[[2, 2], [4, 4]]] * 3)


@pytest.mark.parametrize(
    "left, right",
    [
        ((3,), (3,)),
        ((3,), (3, 2)),
        ((2, 3), (3,)),
        ((3,), (5, 3, 2)),
        ((5, 2, 3), (3,)),
        ((5, 2, 3), (3, 4)),
        ((2, 3), (5, 3, 4)),
        ((1, 2, 3), (5, 3, 4)),
        ((5, 1, 2, 3), (4, 3, 2)),
        ((2, 0), (0, 3)),
    ],
    ids=str,
)
def test_A16_neighbours_vectors_and_stacks_on_either_side(left, right):
    rng = np.random.default_rng(0)
    a, b = T(rng.standard_normal(left)), T(rng.standard_normal(right))
    y = a @ b
    assert equal(y, a.data @ b.data, rtol=1e-9)
    y.backward(np.ones(y.shape))
    assert a.grad.shape == left and b.grad.shape == right
    if a.size:
        ta.gradcheck(lambda a, b: a @ b, [a, b], order=2)


# A17 ----------------------------------------------------------------------------------------------------


def test_A17_reductions_over_tuple_and_negative_axes():
    t = T(arange(24, 2, 3, 4))
    (t.mean(axis=(0, -1)) * C([1.0, 10.0, 100.0])).sum().backward()
    assert equal(t.grad, np.broadcast_to(np.array([0.125, 1.25, 12.5])[:, None], (2, 3, 4)))
    t = T(arange(24, 2, 3, 4))
    (t.sum(axis=(1, 2)) * C([1.0, 10.0])).sum().backward()
    assert equal(t.grad, np.broadcast_to(np.array([1.0, 10.0])[:, None, None], (2, 3, 4)))
    t = T([1.0, 2.0, 3.0, 4.0, 5.0])
    (t**2).mean(0).backward()
    assert equal(t.grad, [0.4, 0.8, 1.2, 1.6, 2.0])
    t = T([[1.0, 2.0], [3.0, 5.0]])
    (t.var(axis=-1) * C([1.0, 10.0])).sum().backward()
    assert equal(t.grad, [[-0.5, 0.5], [-10, 10]])


REDUCTIONS = ["sum", "mean", "max", "min", "var", "prod", "norm", "logsumexp"]


@pytest.mark.parametrize("name", [*REDUCTIONS, "softmax", "log_softmax"])
@pytest.mark.parametrize("bad", [3, -4, (0, 0), (0, -3)], ids=str)
def test_A17_a_bad_axis_is_an_error_that_names_operation_and_shape(name, bad):
    t = T(arange(24, 2, 3, 4))
    with pytest.raises((ValueError, IndexError)) as caught:
        getattr(t, name)(axis=bad)
    assert name in str(caught.value) and "(2, 3, 4)" in str(caught.value)


@pytest.mark.parametrize("bad", [3, -4])
@pytest.mark.parametrize(
    "f",
    [
        lambda t, a: t.cumsum(axis=a),
        lambda t, a: t.flip(a),
        lambda t, a: t.roll(1, a),
        lambda t, a: t.swapaxes(0, a),
        lambda t, a: t.squeeze(a),
        lambda t, a: ta.concatenate([t, t], axis=a),
        lambda t, a: ta.split(t, 2, axis=a),
        lambda t, a: ta.take_along_axis(t, np.zeros((2, 3, 4), int), axis=a),
        lambda t, a: t.expand_dims(a * 2),
        lambda t, a: ta.stack([t, t], axis=a * 2),
        lambda t, a: t.transpose(0, 1, a),
    ],
)
def test_A17_neighbours_a_bad_axis_of_any_operation(f, bad):
    with pytest.raises((ValueError, IndexError), match=r"\w+: .*\(2, 3, 4\)"):
        f(T(arange(24, 2, 3, 4)), bad)


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axis", [None, 0, -1, (0,), (1, -1), (-1, 0), (0, 1, 2), ()], ids=str)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_A17_neighbours_every_reduction_over_every_kind_of_axis(name, axis, keepdims):
    x = np.random.default_rng(1).uniform(0.5, 1.5, (2, 3, 4))
    oracle = {
        "norm": lambda x, **kw: np.sqrt((x * x).sum(**kw)),
        "logsumexp": lambda x, **kw: np.log(np.exp(x).sum(**kw)),
    }.get(name, getattr(np, name, None))
    f = getattr(ta, name)
    assert equal(f(T(x), axis=axis, keepdims=keepdims), oracle(x, axis=axis, keepdims=keepdims))
    if not (name == "var" and axis == ()):  # one number has variance 0, whatever it is
        ta.gradcheck(lambda x: f(x, axis=axis, keepdims=keepdims), x)


# A18 ----------------------------------------------------------------------------------------------------


def test_A18_transpose_with_negative_axes_reshape_after_transpose_and_negative_steps():
    x = T(np.zeros((2, 3, 4)))
    (x.transpose(-1, 0, 1) * arange(24, 4, 2, 3)).sum().backward()
    assert equal(x.grad[0], [[0, 6, 12, 18], [1, 7, 13, 19], [2, 8, 14, 20]])
    assert equal(x.grad[1], [[3, 9, 15, 21], [4, 10, 16, 22], [5, 11, 17, 23]])
    x = T(np.zeros((2, 3)))
    (x.T.reshape(-1) * C([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])).sum().backward()
    assert equal(x.grad, [[1, 3, 5], [2, 4, 6]])
    x = T(np.zeros((2, 3)))
    (x[::-1, ::2] * C([[1.0, 2.0], [3.0, 4.0]])).sum().backward()
    assert equal(x.grad, [[3, 0, 4], [1, 0, 2]])


def test_A18_neighbours_every_permutation_with_negative_numbers_or_as_a_tuple():
    from itertools import permutations, product

    for axes in permutations(range(3)):
        for negative in product([0, 3], repeat=3):
            mixed = tuple(a - n for a, n in zip(axes, negative))
            for arguments in (mixed, (mixed,), (list(mixed),)):
                x = T(np.zeros((2, 3, 4)))
                y = x.transpose(*arguments)
                seed = np.random.default_rng(0).standard_normal(y.shape)
                y.backward(seed)
                assert equal(x.grad, seed.transpose(np.argsort(axes)))


def test_A18_neighbours_chains_of_views():
    x = np.random.default_rng(0).standard_normal((2, 3, 4))
    ta.gradcheck(lambda x: x.T[::-1].mT.reshape(4, -1)[:, ::-2].swapaxes(0, 1).flip(0), x, order=2)
    ta.gradcheck(lambda x: x[:, ::-1, 3:0:-2].transpose(2, 0, 1).reshape(-1)[5::-1], x)


def test_A18_neighbours_a_tensor_made_of_a_view_and_a_seed_that_is_one():
    base = arange(24, 2, 3, 4)
    x = T(base.T[::-1])
    (x.reshape(-1) * C(np.arange(24.0))).sum().backward()
    assert equal(x.grad, arange(24, 4, 3, 2))
    y = T(base) * 1
    y.backward(np.broadcast_to(np.float64(3), (2, 3, 4)))
    x = T(np.zeros((4, 3, 2)))
    (x * 2).backward(base.T)
    assert equal(x.grad, 2 * base.T)


# A19 ----------------------------------------------------------------------------------------------------


def test_A19_integer_tensors_cannot_want_gradients():
    with pytest.raises(TypeError, match="float"):
        ta.Tensor([1, 2, 3], requires_grad=True)
    with pytest.raises(TypeError, match="float"):
        ta.Tensor([1, 2, 3]).requires_grad = True


def test_A19_swapping_integers_in_later_is_refused():
    t = T([1.0, 2.0, 3.0])
    with pytest.raises(TypeError, match="float"):
        t.data = np.array([1, 2, 3])
    assert t.dtype == np.float64
    u = ta.Tensor([1, 2, 3])
    u.data = np.array([4, 5, 6])
    assert u.tolist() == [4, 5, 6]
    with pytest.raises(TypeError, match="float"):
        u.requires_grad = True


@pytest.mark.parametrize(
    "data", [[True, False], np.arange(3, dtype=np.int8), np.uint8(3), 5, np.zeros(2, bool)], ids=repr
)
def test_A19_neighbours_other_integers_and_booleans(data):
    with pytest.raises(TypeError, match="float"):
        ta.Tensor(data, requires_grad=True)


@pytest.mark.parametrize("data", [1j, "text", None, [None], object(), [[1.0], [1.0, 2.0]]], ids=repr)
def test_A19_neighbours_what_is_no_number_is_refused(data):
    with pytest.raises((TypeError, ValueError)):
        ta.Tensor(data)


def test_A19_neighbours_dtype_casts_integers_on_request():
    t = ta.Tensor([1, 2, 3], requires_grad=True, dtype=np.float32)
    (t * 0.5).sum().backward()
    assert equal(t.grad, [0.5, 0.5, 0.5])
    t.data -= 0.1 * t.grad.data
    np.testing.assert_allclose(t.data, [0.95, 1.95, 2.95], rtol=1e-6)


def test_A19_neighbours_integers_beside_floats():
    ids, t = ta.Tensor([1, 2]), T([1.0, 2.0])
    (ids * t).sum().backward()
    assert equal(t.grad, [1, 2]) and ids.grad is None
    assert (ids / 2).dtype.kind == "f" and (ids + ids).dtype == ids.dtype
    assert ids.mean().dtype.kind == "f" and ids.sum().item() == 3


def test_A19_neighbours_a_cast_to_integers_is_a_constant():
    t = T([1.5, 2.5])
    for y in (t.astype(int), t.astype(bool)):
        assert y.dtype.kind in "ib" and not y.requires_grad and y.is_leaf
    (t.astype(int) * t).sum().backward()
    assert equal(t.grad, [1, 2])


def test_A19_neighbours_functions_of_integers_are_floats():
    for y in (ta.softmax([1, 1, 2]), ta.log_softmax([1, 1, 2]).exp(), ta.Tensor([1, 1, 2]).softmax(axis=0)):
        assert equal(y, [0.21194155761708544, 0.21194155761708544, 0.5761168847658291])
    for f in (ta.exp, ta.sqrt, ta.mean, ta.var, ta.logsumexp, ta.sigmoid, ta.gelu, ta.norm, ta.layer_norm):
        assert equal(f([1, 2, 4]), f(np.array([1.0, 2.0, 4.0])).data, rtol=1e-9)


def test_A19_comparisons_and_positions_never_want_gradients():
    t = T([1.0, 3.0, 2.0])
    for y in (t > 1, t == t, t != 2, t <= 2):
        assert y.dtype == bool and not y.requires_grad
    assert np.argmax(t) == 1 and not getattr(np.argmax(t), "requires_grad", False)
    assert equal(t[t > 1], [3, 2]) and t[np.argmax(t)].item() == 3


# A21 ----------------------------------------------------------------------------------------------------


def test_A21_iteration_0d_tensors_and_len():
    t = T([1.0, 2.0, 3.0])
    parts = list(t)
    assert len(parts) == 3 and all(p.requires_grad and p.shape == () for p in parts)
    a, b, _ = t
    (a * 1 + b * 10).backward()
    assert equal(t.grad, [1, 10, 0])
    s = T(5.0)
    for bad in (iter, len, list):
        with pytest.raises(TypeError, match="0-d"):
            bad(s)
    assert s[None].shape == (1,) and s[...].shape == () and s[()].item() == 5
    with pytest.raises(IndexError, match=r"getitem.*3"):
        t[3]
    with pytest.raises(IndexError):
        s[0]


def test_A21_neighbours_rows_zip_enumerate_star_and_unpacking_errors():
    t = T([[1.0, 2.0], [3.0, 4.0]])
    total = sum(row.sum() * (i + 1) for i, row in enumerate(t))
    total.backward()
    assert equal(t.grad, [[1, 1], [2, 2]])
    with pytest.raises(ValueError, match="unpack"):
        _, _, _ = t
    first, *rest = T([1.0, 2.0, 3.0])
    assert first.item() == 1 and [r.item() for r in rest] == [2, 3]
    assert list(T(np.zeros((0, 2)))) == [] and len(T(np.zeros((0, 2)))) == 0
    assert [x.item() for x in reversed(T([1.0, 2.0]))] == [2, 1]
    assert max([T(1.0), T(3.0), T(2.0)]).item() == 3


def test_A21_neighbours_conversions():
    s = T(2.5)
    assert float(s) == 2.5 and int(s) == 2 and bool(s) and s.item() == 2.5 and f"{s:.2f}" == "2.50"
    assert type(float(s)) is float and type(s.item()) is float
    assert float(T([[2.5]])) == 2.5 and math.sqrt(T(4.0)) == 2
    for bad in (float, int, lambda t: t.item()):
        with pytest.raises((TypeError, ValueError)):
            bad(T([1.0, 2.0]))
    with pytest.raises(ValueError, match=r"ambiguous|truth"):
        bool(T([1.0, 2.0]))
    with pytest.raises((TypeError, ValueError)):
        bool(T([]))
    with pytest.raises(TypeError):
        [1, 2, 3][T(1.0)]
    assert [1, 2, 3][ta.Tensor(1)] == 2 and list(range(ta.Tensor(2))) == [0, 1]


@pytest.mark.parametrize(
    "index", [None, ..., (..., None), (None, 0), (slice(None), None), (0, ...), (), slice(3, 0, -2)], ids=repr
)
def test_A21_neighbours_indices_of_all_kinds(index):
    x = arange(12, 4, 3)
    t = T(x)
    y = t[index]
    assert equal(y, x[index])
    y.sum().backward()
    expected = np.zeros((4, 3))
    expected[index] = 1
    assert equal(t.grad, expected)


@pytest.mark.parametrize(
    "index", [[0, 0, 2], [-1, 3], ([0, 0], [1, 1]), (slice(None), [0, 0]), ([[0], [0]], [[1, 1]])], ids=repr
)
def test_A21_neighbours_repeated_indices_add_up(index):
    x = arange(12, 4, 3)
    expected = np.zeros((4, 3))
    np.add.at(expected, index, 1.0)
    for kind in (lambda i: i, lambda i: np.array(i) if isinstance(i, list) else i):
        t = T(x)
        t[kind(index)].sum().backward()
        assert equal(t.grad, expected)


def test_A21_neighbours_indices_that_are_tensors_and_indices_that_change_later():
    t = T([1.0, 2.0, 3.0])
    t[ta.Tensor([2, 2])].sum().backward()
    assert equal(t.grad, [0, 0, 2])
    t, index = T([1.0, 2.0, 3.0]), np.array([0, 0])
    y = t[index]
    index[:] = 2
    y.sum().backward()
    assert equal(t.grad, [2, 0, 0])
    t, mask = T([1.0, 2.0, 3.0]), np.array([True, False, False])
    y = t.masked_fill(mask, 0.0) + ta.where(mask, t, 0.0) * 10
    mask[:] = False
    y.sum().backward()
    assert equal(t.grad, [10, 1, 1])


@pytest.mark.parametrize("bad", [1.0, "x", [0.5], [3], (0, 0), [True], slice("a", None), np.array([1.5])], ids=repr)
def test_A21_neighbours_bad_indices_name_the_operation(bad):
    with pytest.raises((IndexError, TypeError), match="getitem"):
        T([1.0, 2.0, 3.0])[bad]


# A22 ----------------------------------------------------------------------------------------------------


def test_A22_tensors_are_keys_by_identity_and_optimizers_never_compare_values():
    p, q, r = T(np.zeros(5)), T(np.zeros((5, 10))), T(np.zeros(5))
    d = {p: "p", r: "r"}
    assert d[p] == "p" and d[r] == "r" and len({p, r}) == 2
    optimizer = ta.optim.SGD([p, q, r], lr=1.0)
    (p.sum() + 2 * r.sum()).backward()
    optimizer.step()
    assert (p.data == -1).all() and (r.data == -2).all() and (q.data == 0).all()


def test_A22_neighbours_the_engine_never_compares_values(monkeypatch):
    def refuse(*_):
        raise AssertionError("values were compared")

    x, y = T([1.0, 2.0]), T([1.0, 2.0])
    monkeypatch.setattr(ta.Tensor, "__eq__", refuse)
    z = ta.concatenate([x * y, x + y])
    ta.grad(z.sum(), [x, y], create_graph=True)
    (z * z).sum().backward()
    assert x.grad is not None and y.grad is not None


def test_A22_neighbours_equality_is_elementwise_in_values():
    x = T([1.0, 2.0])
    assert (x == [1.0, 3.0]).tolist() == [True, False]
    assert (x != np.array([1.0, 3.0])).tolist() == [False, True]
    assert hash(x) == hash(x) and x in {x} and (x == x).tolist() == [True, True]
    assert (x == None) is False and (x != "text") is True  # noqa: E711


# A23 ----------------------------------------------------------------------------------------------------


def test_A23_two_leaves_with_the_same_value_are_two_leaves():
    w1, w2 = T(3.0), T(3.0)
    y = w1 + w2
    y.backward()
    assert equal(w1.grad, 1.0) and equal(w2.grad, 1.0)
    a, b = T(np.ones(3)), T(np.ones(3))
    (a * 2 + b).sum().backward()
    assert equal(a.grad, [2, 2, 2]) and equal(b.grad, [1, 1, 1])


def test_A23_neighbours_tensors_made_of_one_array_share_nothing():
    array = np.ones(3)
    a, b = ta.Tensor(array, requires_grad=True), ta.Tensor(array, requires_grad=True)
    (a + b).sum().backward()
    a.data[0] = 7
    a.grad.data[1] = 9
    assert array.tolist() == [1, 1, 1] and b.data.tolist() == [1, 1, 1] and b.grad.data.tolist() == [1, 1, 1]
    array[2] = 5
    assert a.data.tolist() == [7, 1, 1]


# A24 ----------------------------------------------------------------------------------------------------


def test_A24_a_result_that_is_no_scalar_needs_a_seed_of_exactly_its_shape():
    t = T([1.0, 2.0, 3.0])
    y = t * 2
    with pytest.raises(ValueError, match=r"\(3,\).*(sum|seed)"):
        y.backward()
    for bad in (np.ones(1), np.ones((3, 1)), 1.0, np.ones(4), np.ones((1, 3)), [[1, 1, 1]]):
        with pytest.raises(ValueError, match=r"\(3,\)"):
            y.backward(bad)
        with pytest.raises(ValueError, match=r"\(3,\)"):
            ta.grad(y, t, bad)
    assert t.grad is None
    y.backward([1.0, 10.0, 100.0])
    assert equal(t.grad, [2, 20, 200])


@pytest.mark.parametrize("kind", [list, tuple, np.array, lambda s: ta.Tensor(s), lambda s: np.array(s, np.float32)])
def test_A24_neighbours_seeds_of_all_kinds(kind):
    t = T([1.0, 2.0, 3.0])
    (t * 2).backward(kind([1, 10, 100]))
    assert equal(t.grad, [2, 20, 200]) and t.grad.dtype == np.float64


def test_A24_neighbours_seeds_of_scalars_of_one_element_and_bad_ones():
    t = T(2.0)
    (t * 3).backward(5)
    assert equal(t.grad, 15.0)
    t = T([[2.0]])
    (t * 3).backward()
    assert equal(t.grad, [[3]])
    for bad in ("text", 1j, object()):
        with pytest.raises((TypeError, ValueError)):
            (T(1.0) * 2).backward(bad)


def test_A24_neighbours_the_seed_is_not_changed_and_not_kept():
    seed = np.array([1.0, 10.0, 100.0])
    t = T([1.0, 2.0, 3.0])
    (t + t).backward(seed)
    (t + 0).backward(seed)
    t.backward(seed)
    seed[:] = 0
    assert equal(t.grad, [4, 40, 400])
    given = ta.Tensor([1.0, 1.0, 1.0], dtype=np.float64)
    u = T([1.0, 2.0, 3.0])
    u.backward(given)
    u.backward(given)
    assert given.tolist() == [1, 1, 1] and equal(u.grad, [2, 2, 2])


# A26 ----------------------------------------------------------------------------------------------------


@pytest.fixture
def no_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def graph_of(*roots):
    """References to every value of the graphs."""
    found, stack = [], list(roots)
    seen = set()
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        found.append(weakref.ref(node))
        if node.args is not None and not node.is_leaf:
            for a in node.args:
                stack += [x for x in (a if isinstance(a, (tuple, list)) else [a]) if isinstance(x, ta.Tensor)]
    return found


@pytest.mark.usefixtures("no_collector")
def test_A26_nothing_of_a_step_outlives_it():
    rng = np.random.default_rng(0)
    model = ta.nn.Linear(4, 3, rng=rng)
    x = ta.Tensor(rng.standard_normal((2, 4)))
    optimizer = ta.optim.SGD(model.parameters(), lr=0.01)
    refs, losses = [], []
    for _ in range(50):
        loss = (model(x) ** 2).sum()
        refs += [weakref.ref(loss), *(r for r in graph_of(loss) if not r().is_leaf)]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss)
    assert all(loss.args is None for loss in losses)  # a kept loss keeps its number, not its graph
    history = [float(loss) for loss in losses]
    assert all(type(v) is float for v in history) and history[-1] < history[0]
    del loss, losses
    assert sum(r() is not None for r in refs) == 0


STEPS = {
    "dropped without a backward pass": lambda y, x: None,
    "backward": lambda y, x: y.backward(),
    "grad": lambda y, x: ta.grad(y, x),
    "grad, kept graph": lambda y, x: ta.grad(y, x, retain_graph=True),
    "gradient of the gradient": lambda y, x: ta.grad(ta.grad(y, x, create_graph=True).sum(), x),
    "hessian": lambda y, x: ta.hessian(lambda x: (x**3).sum(), x),
    "interior gradient": lambda y, x: (y.retain_grad(), y.backward()),
}


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
@pytest.mark.usefixtures("no_collector")
def test_A26_neighbours_no_cycle_in_any_kind_of_step(step):
    x = T([[1.0, 2.0], [3.0, 4.0]])
    parts = ta.split(x @ x, 2)
    y = (ta.concatenate([parts[0].tanh(), parts[1] * x[0], ta.stack(list(x))]).softmax(axis=-1) ** 2).sum()
    y = y + ta.layer_norm(x, x[0], x[1]).sum() + ta.cross_entropy(x, [0, 1]) + ta.gelu(x).var()
    refs = [r for r in graph_of(y) if r() is not x]
    assert len(refs) > 10
    step(y, x)
    del y, parts
    assert sum(r() is not None for r in refs) == 0


@pytest.mark.usefixtures("no_collector")
def test_A26_neighbours_an_error_in_forward_or_backward_leaves_nothing():
    x = T([1.0, 2.0])
    y = x * 2
    refs = graph_of(y * 1)
    for bad in (
        lambda y: y @ np.ones((3, 3)),
        lambda y: (y * 2).backward(),
        lambda y: (y * 2).backward(np.ones(5)),
    ):
        with pytest.raises(ValueError):
            bad(y)
    del y
    x_ref = weakref.ref(x)
    del x
    assert x_ref() is None and all(r() is None for r in refs)


@pytest.mark.usefixtures("no_collector")
def test_A26_neighbours_interior_gradients_do_not_pile_up():
    x = T(np.ones(1000))
    y, values = x, []
    for _ in range(50):
        y = y * 1.0
        values.append(y)
    y.sum().backward()
    assert all(v.grad is None for v in values)


def test_A26_neighbours_memory_stays_flat_over_500_steps():
    import tracemalloc

    x = T(np.ones(100_000))

    def step():
        loss = ((x * 2).tanh() @ x).sum()
        x.zero_grad()
        loss.backward()

    for _ in range(10):
        step()
    tracemalloc.start()
    step()
    _, first = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    for _ in range(500):
        step()
    _, last = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert last < 1.1 * first


# A27 ----------------------------------------------------------------------------------------------------


class Model(ta.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = ta.nn.Parameter(np.array([1.0, 2.0]))

    def forward(self, x):
        return self.w * x


def test_A27_a_model_that_kept_its_last_result_can_be_copied():
    m = Model()
    m.last = m(C([3.0, 4.0]))
    m2 = copy.deepcopy(m)
    m2.w.data += 1
    assert m.w.data.tolist() == [1, 2] and m2.w.data.tolist() == [2, 3] and m2.w.requires_grad
    m2(C([1.0, 1.0])).sum().backward()
    assert m.w.grad is None and equal(m2.w.grad, [1, 1])
    assert m2.last.is_leaf and not m2.last.requires_grad and m2.last.tolist() == [3, 8]


def test_A27_copies_and_pickles_of_deep_results_hold_no_graph():
    y = T(1.0)
    for _ in range(5000):
        y = y + 1.0
    stored = pickle.dumps(y)
    assert len(stored) < 2000
    for other in (copy.deepcopy(y), copy.copy(y), pickle.loads(stored)):
        assert other.item() == 5001 and other.is_leaf and not other.requires_grad
    y.backward()


def test_A27_a_tied_pair_stays_tied():
    m = Model()
    m.tied = m.w
    for other in (copy.deepcopy(m), pickle.loads(pickle.dumps(m))):
        assert other.tied is other.w and other.w is not m.w
    w = T([1.0])
    a, b = copy.deepcopy((w, w))
    assert a is b


@pytest.mark.parametrize("way", [copy.deepcopy, lambda t: pickle.loads(pickle.dumps(t))], ids=["deepcopy", "pickle"])
def test_A27_neighbours_leaves_keep_dtype_name_wish_and_gradient(way):
    t = ta.Tensor(np.float32([1, 2]), requires_grad=True, name="W_Q")
    (t * t).sum().backward()
    other = way(t)
    assert (other.dtype, other.name, other.requires_grad, other.is_leaf) == (np.float32, "W_Q", True, True)
    assert equal(other.grad, [2, 4]) and other.grad is not t.grad
    other.data[0] = 9
    other.grad.data[0] = 9
    assert t.data[0] == 1 and t.grad.data[0] == 2
    (other * 2).sum().backward()
    assert equal(t.grad, [2, 4])
    assert way(ta.Tensor([True, False])).dtype == bool and way(T(np.zeros((0, 2)))).shape == (0, 2)


def test_A27_neighbours_copying_while_a_graph_holds_the_array():
    t = T([1.0, 2.0])
    y = t * t
    other = copy.deepcopy(t)
    other.data[0] = 5  # the copy is not locked
    y.sum().backward()
    assert equal(t.grad, [2, 4])


# A28 ----------------------------------------------------------------------------------------------------


def test_A28_concatenate_and_stack_track_every_use():
    x = T([[3.0]])
    (ta.concatenate([x, x], axis=1) @ C([[1.0], [2.0]])).sum().backward()
    assert equal(x.grad, [[3]])
    x = T([1.0])
    ta.stack([x[0]]).sum().backward()
    assert equal(x.grad, [1])
    a, b = T([1.0, 2.0]), T([2.0, 3.0])
    (ta.concatenate((a, b)) ** 2).mean().backward()
    assert equal(a.grad, [0.5, 1]) and equal(b.grad, [1, 1.5])
    a, b = T(np.zeros((2, 1))), T(np.zeros((2, 2)))
    (ta.concatenate((a, b), axis=-1) * C([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])).sum().backward()
    assert equal(a.grad, [[1], [4]]) and equal(b.grad, [[2, 3], [5, 6]])


def test_A28_a_tensor_of_tracked_scalars_is_refused_never_a_silent_constant():
    x = T([1.0, 2.0])
    for bad in ([x[0], x[0]], [[x[0], 1.0]], (x,), [1.0, x[0]], [np.ones(2), x]):
        with pytest.raises(TypeError, match="stack"):
            ta.Tensor(bad)
    assert ta.Tensor([C(1.0), C(2.0)]).tolist() == [1, 2]


def test_A28_neighbours_numpys_stack_of_tracked_scalars():
    x = T([1.0, 2.0])
    (np.stack([x[0], x[1]]) * [3.0, 4.0]).sum().backward()
    assert equal(x.grad, [3, 4])


def test_A28_neighbours_constants_arrays_numbers_one_operand_and_generators():
    x = T([1.0])
    ta.concatenate([np.array([5.0]), x, C([7.0]), [8.0]]).backward([1, 2, 3, 4])
    assert equal(x.grad, [2])
    x = T(2.0)
    ta.stack([x, 1.0, x, np.float64(3)]).backward([1, 10, 100, 1000])
    assert equal(x.grad, 101.0)
    x = T([1.0, 2.0])
    (ta.concatenate([x]) + ta.concatenate(part for part in [x, x[:0]])).sum().backward()
    assert equal(x.grad, [2, 2])
    x = T([[1.0, 2.0], [3.0, 4.0]])
    ta.concatenate(list(x)).backward([1, 2, 3, 4])
    assert equal(x.grad, [[1, 2], [3, 4]])


def test_A28_neighbours_a_list_that_changes_later():
    x = T([1.0])
    parts = [x, x]
    y = ta.concatenate(parts)
    parts.clear()
    y.sum().backward()
    assert equal(x.grad, [2])


@pytest.mark.parametrize("f", [ta.concatenate, ta.stack])
def test_A28_neighbours_bad_lists_name_the_operation_and_the_shapes(f):
    for bad in ([], [T(np.ones((2, 3))), T(np.ones((3, 2)))], [T(np.ones(2)), T(np.ones((2, 2)))]):
        with pytest.raises((ValueError, TypeError), match=f.__name__):
            f(bad)
    with pytest.raises((ValueError, TypeError)) as caught:
        f([T(np.ones((2, 3))), T(np.ones((3, 2)))], axis=1)
    assert "(2, 3)" in str(caught.value) and "(3, 2)" in str(caught.value)


# A29 ----------------------------------------------------------------------------------------------------


def test_A29_empty_tensors():
    b = T([1.0, 2.0, 3.0, 4.0])
    y = (C(np.zeros((4, 0))) + b.reshape(4, 1)).sum()
    y.backward()
    assert y.item() == 0 and equal(b.grad, [0, 0, 0, 0])
    e = T(np.zeros(0))
    assert e.sum().item() == 0
    for name in ("mean", "max", "min", "var"):
        with pytest.raises(ValueError, match=rf"{name}.*\(0,\)"):
            getattr(e, name)()
    assert ta.softmax(T(np.zeros((2, 0))), axis=-1).shape == (2, 0)
    x = T([1.0, 2.0])
    x[[]].sum().backward()
    assert equal(x.grad, [0, 0])


EMPTY = {
    "sum": lambda x: x.sum(),
    "sum over the empty axis": lambda x: x.sum(axis=1),
    "sum over the other": lambda x: x.sum(axis=0, keepdims=True),
    "mean over the other": lambda x: x.mean(axis=0),
    "max over the other": lambda x: x.max(axis=0),
    "prod": lambda x: x.prod(),
    "prod over the empty axis": lambda x: x.prod(axis=1),
    "norm": lambda x: x.norm(),
    "cumsum": lambda x: x.cumsum(axis=1),
    "exp": lambda x: x.exp(),
    "matmul over nothing": lambda x: x @ np.zeros((0, 3)),
    "matmul to nothing": lambda x: np.zeros((5, 2)) @ x,
    "transpose": lambda x: x.T,
    "reshape": lambda x: x.reshape(0, 5),
    "concatenate": lambda x: ta.concatenate([x, x, np.zeros((2, 1))], axis=1),
    "stack": lambda x: ta.stack([x, x]),
    "softmax": lambda x: x.softmax(axis=-1),
    "softmax over the other": lambda x: x.softmax(axis=0),
    "log_softmax": lambda x: x.log_softmax(axis=-1),
    "masked_fill": lambda x: x.masked_fill(np.zeros((2, 0), bool), 1.0),
    "getitem": lambda x: x[:, :0],
    "getitem mask": lambda x: x[np.zeros((2, 0), bool)],
    "flip": lambda x: x.flip(0),
    "broadcast": lambda x: x + np.zeros((3, 1, 1)),
    "gelu": lambda x: x.gelu(),
    "tril": lambda x: x.tril(),
    "split": lambda x: ta.split(x, 2)[0],
}


@pytest.mark.parametrize("f", EMPTY.values(), ids=EMPTY)
def test_A29_neighbours_gradients_through_operations_on_nothing(f):
    x = T(np.zeros((2, 0)))
    y = f(x)
    y.backward(np.ones(y.shape))
    assert equal(x.grad, np.zeros((2, 0)))
    assert ta.grad(f(x), x, np.ones(y.shape), create_graph=True).shape == (2, 0)


def test_A29_neighbours_a_batch_of_nothing_through_layers():
    x, w, b = T(np.zeros((0, 3))), T(np.ones((3, 2))), T(np.ones(2))
    y = ta.layer_norm(x @ w + b, b, b)
    y.sum().backward()
    assert equal(x.grad, np.zeros((0, 3))) and equal(w.grad, np.zeros((3, 2))) and equal(b.grad, [0, 0])
    e = T(np.ones((4, 2)))
    ta.embedding(e, np.zeros((0, 3), int)).sum().backward()
    assert equal(e.grad, np.zeros((4, 2)))


# A30 ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", [True, False])
@pytest.mark.parametrize("value", [123.4, 1.0])
def test_A30_gradcheck_lifts_float32_and_says_so(value, wanted):
    x = ta.Tensor(np.float32(value), requires_grad=wanted)
    report = ta.gradcheck(lambda t: t * t, x, eps=1e-6)
    assert "float32 taken as float64" in str(report) and report.checks[0].largest_error < 1e-6 * value
    with pytest.raises(ta.GradcheckError):
        ta.gradcheck(lambda t: t * t.detach(), x, eps=1e-6)


def test_A30_neighbours_float16_and_float32_computed_inside():
    assert "float16 taken as float64" in str(ta.gradcheck(lambda t: t.exp(), np.float16([1.5, 2.5])))
    with pytest.raises(ta.GradcheckError, match="float32"):
        ta.gradcheck(lambda t: t.astype(np.float32) * 2, np.array([1.0]))


# A33 ----------------------------------------------------------------------------------------------------


def test_A33_second_derivatives_of_powers_at_zero():
    for n, second in ((1, 0.0), (2, 2.0), (3, 0.0)):
        x = T(0.0)
        g = ta.grad(x**n, x, create_graph=True)
        found = ta.grad(g, x, allow_unused=True) if g.requires_grad else None
        assert (0.0 if found is None else found.item()) == second


def test_A33_three_derivatives_of_a_cube():
    x = T(2.0)
    first = ta.grad(x**3, x, create_graph=True)
    second = ta.grad(first, x, create_graph=True)
    third = ta.grad(second, x)
    assert [first.item(), second.item(), third.item()] == [12, 12, 6]


def test_A33_hessians_and_mixed_derivatives():
    assert equal(ta.hessian(lambda x: x.sum() ** 2, T([1.0, 2.0])), [[2, 2], [2, 2]])
    assert equal(ta.hessian(lambda x: (x * x.mean()).sum(), T([1.0, 2.0, 3.0])), np.full((3, 3), 2 / 3))
    A, B = T([[1.0, 2.0], [3.0, 4.0]]), T([[1.0, 0.0], [2.0, 1.0]])
    gA = ta.grad(((A @ B) ** 2).sum(), A, create_graph=True)
    assert equal(gA, [[10, 24], [22, 52]])
    assert equal(ta.grad(gA.sum(), B), [[56, 20], [68, 24]])


@pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 0.0, 1.0, 2.0, 3.0, np.float64(2), np.int64(3)], ids=repr)
def test_A33_neighbours_all_derivatives_of_powers_at_zero_and_elsewhere(n):
    for at in (0.0, -1.5, 2.0):
        x = T(at)
        y, factor = x**n, 1.0
        for k in range(4):
            expected = factor * at ** float(n - k) if n >= k else 0.0
            assert math.isclose(y.item(), expected, abs_tol=1e-12)
            factor *= float(n - k)
            if not y.requires_grad:  # a constant: all its derivatives are zero
                break
            y = ta.grad(y, x, create_graph=True)


def test_A33_neighbours_powers_of_tensors_at_zero():
    a, b = T([0.0, 0.0, 2.0]), T([2.0, 0.0, 3.0])
    (a**b).sum().backward()
    assert equal(a.grad, [0, 0, 12]) and equal(b.grad, [0, 0, 8 * math.log(2)])
    a, b = T([0.0, 2.0]), T([2.0, 3.0])
    ga, gb = ta.grad((a**b).sum(), [a, b], create_graph=True)
    for g in (ga, gb):
        for x in (a, b):
            assert np.isfinite(ta.grad(g.sum(), x, retain_graph=True).data).all()


def test_A33_neighbours_negative_bases_without_a_warning():
    a = T([-2.0, -1.5])
    (a**2).sum().backward()
    assert equal(a.grad, [-4, -3])
    a = T([-2.0])
    ga = ta.grad((a**3.0).sum(), a, create_graph=True)
    assert equal(ta.grad(ga.sum(), a), [-12])


@pytest.mark.parametrize(
    "f",
    [
        lambda x, y: (x * y).sum() ** 2,  # broadcast product
        lambda x, y: ((x + y) ** 3).mean(),
        lambda x, y: (x / y.exp()).sum(),
        lambda x, y: ((x - y) ** 2).sum(axis=0).prod(),
        lambda x, y: (x.softmax(axis=-1) @ y.T).sum(),
        lambda x, y: (ta.layer_norm(x) * y**2).sum(),
        lambda x, y: ta.concatenate([x * x, y * y]).logsumexp(),
        lambda x, y: ta.where(x > 0, x * y, x**2 * y**2).sum(),
        lambda x, y: (x[[0, 0, 1]] ** 3 * y).sum(),
        lambda x, y: (x @ x.T @ x * y).sum(),
    ],
)
def test_A33_neighbours_second_derivatives_of_broadcast_rules(f):
    rng = np.random.default_rng(0)
    ta.gradcheck(f, [rng.standard_normal((2, 3)), rng.standard_normal((1, 3))], order=2)


# A34 ----------------------------------------------------------------------------------------------------


def test_A34_backward_adds_a_second_pass_to_the_first():
    x = T(2.0)
    (x**3).backward(create_graph=True)
    assert equal(x.grad, 12.0) and x.grad.requires_grad
    x.grad.backward()
    assert equal(x.grad, 24.0)


def test_A34_cleared_in_between_or_in_the_functional_form():
    x = T(2.0)
    (x**3).backward(create_graph=True)
    g, x.grad = x.grad, None
    g.backward()
    assert equal(x.grad, 12.0)
    x = T(2.0)
    assert equal(ta.grad(ta.grad(x**3, x, create_graph=True), x), 12.0)
    assert x.grad is None


def test_A34_neighbours_accumulation_never_changes_a_gradient_that_was_handed_out():
    x = T([1.0, 2.0])
    (x**2).sum().backward()
    first = x.grad
    kept = first.data.copy()
    (x**2).sum().backward()
    assert equal(x.grad, [4, 8])
    assert np.array_equal(first.data, kept) or first is x.grad
    y = (x**2).sum()
    g = ta.grad(y, x, retain_graph=True)
    again = ta.grad(y, x)
    g.data[:] = 0
    assert equal(again, [2, 4])


def test_A34_neighbours_a_kept_graph_gives_the_same_twice_and_a_freed_one_says_what_to_do():
    x = T(3.0)
    y = x * x
    y.backward(retain_graph=True)
    y.backward(retain_graph=True)
    y.backward()
    assert equal(x.grad, 18.0)
    for again in (y.backward, lambda: ta.grad(y, x), lambda: (y * 2).backward()):
        with pytest.raises(RuntimeError, match="retain_graph=True"):
            again()
    assert equal(x.grad, 18.0)


def test_A34_neighbours_gradient_penalty_in_a_training_step():
    x, w = C([[1.0, 2.0]]), T([[1.0], [1.0]])
    point = T(x.data)
    (slope,) = ta.grad([((point @ w) ** 2).sum()], [point], create_graph=True)
    (slope**2).sum().backward()
    # slope = 2 (x w) w^T, |slope|^2 = 4 (x w)^2 |w|^2
    assert equal(w.grad, 8 * 3 * 2 * np.array([[1.0], [2.0]]) + 8 * 9 * np.ones((2, 1)))
    assert point.grad is not None
