"""An operation added as the README says is a full member: function, method, formula, picture, all derivatives."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tinygrad_attn as ta

ROOT = Path(__file__).parents[1]


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


def test_the_steps_into_the_package_lead_there(tmp_path):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (declaration,) = re.findall(r">>> (@ta.primitive.*?)\n```", readme, re.DOTALL)
    (signature,) = re.findall(r"with types: `(def softplus.*?)`;", readme)
    (name,) = re.findall(r"add `(softplus.*?)` to the imports", readme)
    (line,) = re.findall(r"add `(\"softplus\": .*?)` to `CASES`", readme)

    shutil.copytree(ROOT / "tinygrad_attn", tmp_path / "tinygrad_attn")
    shutil.copytree(ROOT / "tests" / "ops", tmp_path / "tests" / "ops")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    declaration = re.sub(r"^(\.\.\.|>>>) ", "", declaration, flags=re.MULTILINE).replace("ta.", "")
    declaration = declaration.replace("def softplus(x)", signature)
    put(tmp_path / "tinygrad_attn/ops/elementwise.py", "", "\n\n" + declaration + "\n")
    put(tmp_path / "tinygrad_attn/__init__.py", "from .ops.elementwise import (\n", name + "\n")
    put(tmp_path / "tests/ops/test_operations.py", "CASES = {\n", line + "\n")
    command = [sys.executable, "-m", "pytest", "-q", "tests/ops/test_operations.py", "-k", "softplus or every"]
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
    assert int(re.findall(r"(\d+) passed", done.stdout)[0]) >= 8


def put(path, after, text):
    """Put text into a file after the first place where `after` stands; at the end if it is empty."""
    source = path.read_text(encoding="utf-8")
    at = source.index(after) + len(after) if after else len(source)
    path.write_text(source[:at] + text + source[at:], encoding="utf-8")
