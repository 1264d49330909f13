"""Every example in a docstring runs and prints what it says.

In an example `np` is NumPy and `ta` is this package.
"""

import doctest
import importlib
import pkgutil
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


EXAMPLES = [example for example in examples() if example.examples]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_example(example):
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    report = []
    failed, _ = doctest.DocTestRunner(Checker(), optionflags=flags).run(example, out=report.append)
    assert not failed, "".join(report)


def test_examples_of_operations_are_among_them():
    tested = {example.name.rpartition(".")[2] for example in EXAMPLES}
    assert tested >= {name for name, op in PRIMITIVES.items() if ">>>" in (op.__doc__ or "")}
