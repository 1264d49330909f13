"""A formula is what the rule does, printed: by running it, and correct when it is run again."""

import math
import re

import numpy as np
import pytest

import tinygrad_attn as ta
from tinygrad_attn.autograd import PRIMITIVES
from tinygrad_attn.viz import Symbol, formula


def named(*names, shape=(3, 3)):
    return [Symbol.named(name, np.zeros(shape)) for name in names]


a, b, c = named("a", "b", "c")


@pytest.mark.parametrize(
    ("expression", "code", "mathematics"),
    [
        (a * (b - (b * a).sum(-1, keepdims=True)), "a * (b - sum(b * a, axis=-1))", "a ⊙ (b − Σ₋₁(b ⊙ a))"),
        (a @ np.swapaxes(b, -1, -2), "a @ swapaxes(b, -1, -2)", "a @ bᵀ"),
        ((a.mT @ (b / np.sqrt(2))).mT, "(a.mT @ (b / sqrt(2))).mT", "(b / √2)ᵀ @ a"),
        (a.mT.mT, "a.mT.mT", "a"),
        ((a + b) * c, "(a + b) * c", "(a + b) ⊙ c"),
        (a - (b - c), "a - (b - c)", "a − (b − c)"),
        (a - b - c, "a - b - c", "a − b − c"),
        (a / (b / c), "a / (b / c)", "a / (b / c)"),
        (a * b @ c, "a * b @ c", "(a ⊙ b) @ c"),
        (a * (b @ c), "a * (b @ c)", "a ⊙ b @ c"),
        (a @ (b @ c), "a @ (b @ c)", "a @ (b @ c)"),
        (-np.negative(a), "-(-a)", "−(−a)"),
        (-(a**2), "-a**2", "−a²"),
        ((-a) ** 2, "(-a)**2", "(−a)²"),
        (a ** (b**c), "a**b**c", "a^b^c"),
        ((a**b) ** c, "(a**b)**c", "(a^b)^c"),
        (a**1.0, "a", "a"),
        (a * 2.0 * b, "a * 2 * b", "2·a ⊙ b"),
        (a * (1 / math.sqrt(2)), "a * (1/sqrt(2))", "a / √2"),
        (np.sqrt(a + b), "sqrt(a + b)", "√(a + b)"),
        (1 / (1 + np.exp(-a)), "1 / (1 + exp(-a))", "1 / (1 + exp(−a))"),
        (np.where(a > 0, b, 0), "where(a > 0, b, 0)", "where(a > 0, b, 0)"),
        (np.broadcast_to(b.sum(), a.shape), "broadcast_to(sum(b), a.shape)", "broadcast(Σ(b))"),
        (a.max((0, 1)), "max(a, axis=(0, 1))", "max₀,₁(a)"),
        (a[1:, None], "a[1:, None]", "a[1:, None]"),
        (np.maximum(a, -np.inf), "maximum(a, -inf)", "maximum(a, −∞)"),
    ],
)
def test_notation(expression, code, mathematics):
    assert expression.text("code") == code
    assert expression.text("math") == mathematics


@pytest.mark.parametrize("rule", ["softmax", "tanh", "sqrt", "divide", "log_softmax", "norm", "gelu", "relu"])
def test_a_printed_rule_computes_what_the_engine_computes(rule, rng):
    op = PRIMITIVES[rule]
    values = {name: rng.random((3, 3)) + 0.5 for name in op.params[: len(op.operands)]}
    out = getattr(ta, rule)(*values.values()).numpy()
    g = rng.random(out.shape)
    tensors = [ta.Tensor(v, requires_grad=True) for v in values.values()]
    getattr(ta, rule)(*tensors).backward(g)

    def total(x, axis=None):
        return np.sum(x, axis=axis, keepdims=axis is not None)

    names = {**vars(np), "sum": total, "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "g": g, "out": out, **values}
    for line, tensor in zip(formula(rule).splitlines()[1:], tensors, strict=True):
        text, _, where = line.split(" = ", 1)[1].partition(", where ")
        local = dict(names)
        for part in re.split(r", (?=\w = )", where) if where else ():
            letter, value = part.split(" = ", 1)
            local[letter] = eval(value, local)
        np.testing.assert_allclose(eval(text, local), tensor.grad.numpy(), rtol=2e-3)  # 4 digits are printed


def test_formula_of_softmax_and_matmul():
    assert formula(ta.softmax) == "out = softmax(x, axis=-1)\ndx = out * (g - sum(g * out, axis=-1))"
    assert formula("matmul", "math") == "out = a @ b\nda = g @ bᵀ\ndb = aᵀ @ g"


@pytest.mark.parametrize("name", sorted(PRIMITIVES))
def test_every_operation_prints_its_forward_and_a_rule_per_operand(name):
    lines = formula(name).splitlines()
    assert lines[0].startswith("out = ")
    op = PRIMITIVES[name]
    rules = len(op.operands) if op.by_position or op.joint else 0
    assert len(lines) - 1 >= rules
    assert all(re.match(r"d\w+ = .", line) for line in lines[1:])


def test_reading_a_shape_is_not_reading_a_value():
    names = [leaf.args[0] for leaf in np.broadcast_to(a, b.shape).leaves()]
    assert names == ["a"]
    assert [leaf.args[0] for leaf in (np.zeros_like(b) + a).leaves()] == ["a"]


def test_what_occurs_twice_and_is_long_gets_a_letter():
    u = np.tanh(a * b + c)
    assert str(u * (1 - u)) == "u * (1 - u), where u = tanh(a * b + c)"


def test_an_unknown_operation_names_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'softmax'"):
        formula("sotfmax")


def test_a_rule_that_branches_on_values_has_no_formula():
    with pytest.raises(TypeError, match="branches on a value"):
        bool(a > 0)
