"""Every example in a docstring runs and prints what it says.

In an example `np` is NumPy and `ta` is this package.
"""

import doctest
import importlib
import inspect
import pkgutil
import pydoc
import re

import numpy as np
import pytest

import tinygrad_attn as ta
from tinygrad_attn.autograd import PRIMITIVES

NAMES = {"np": np, "ta": ta}
NUMBER = re.compile(r" *(-?\d+\.\d*(?:e[-+]\d+)?) *")


class Checker(doctest.OutputChecker):
    """Text must be equal; numbers may differ by float32's rounding, which depends on the processor."""

    def check_output(self, want, got, optionflags):
        numbers = [[float(number) for number in NUMBER.findall(text)] for text in (want, got)]
        if len(numbers[0]) == len(numbers[1]) and np.allclose(*numbers, rtol=1e-6, atol=1e-7):
            want, got = NUMBER.sub("#", want), NUMBER.sub("#", got)
        return super().check_output(want, got, optionflags)


def examples():
    finder = doctest.DocTestFinder(exclude_empty=True)
    for info in pkgutil.walk_packages(ta.__path__, "tinygrad_attn."):
        yield from finder.find(importlib.import_module(info.name), extraglobs=NAMES)
    for op in PRIMITIVES.values():  # also those that no module holds under a name
        yield from finder.find(op.forward, op.name, extraglobs=NAMES)


EXAMPLES = [example for example in examples() if example.examples]
every_primitive = pytest.mark.parametrize("op", PRIMITIVES.values(), ids=PRIMITIVES)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_example(example):
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    report = []
    failed, _ = doctest.DocTestRunner(Checker(), optionflags=flags).run(example, out=report.append)
    assert not failed, "".join(report)


@every_primitive
def test_an_operation_says_its_shapes_its_gradients_and_an_example(op):
    text = inspect.getdoc(op)
    assert "\nShapes: " in text and "\nRule: " in text
    assert text.index("\nShapes: ") < text.index("\nRule: ")
    assert re.match(r".+[.;:]", text)


@every_primitive
def test_the_rule_in_a_docstring_is_the_rule_that_runs(op):
    """The rule printed from its own code; a docstring may break it into lines, and may not differ otherwise."""
    (stated,) = re.findall(r"^Rule:(.*?)(?=^\S|\n\n|\Z)", inspect.getdoc(op), re.MULTILINE | re.DOTALL)
    stated = [" ".join(rule.split()) for rule in re.split(r"\n(?=\s+d\w+ = )", stated)]
    assert stated == ta.viz.formula(op).splitlines()[1:] or (
        stated[0].startswith("none") and not (op.by_position or op.joint)
    )


def test_help_on_an_operation_shows_its_call_and_its_docstring():
    text = pydoc.render_doc(ta.softmax, renderer=pydoc.plaintext)
    assert "softmax(x, axis=-1)" in text and "dx = out * (g - sum(g * out, axis=-1))" in text
