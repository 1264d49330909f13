"""Every example in a docstring and in the README runs and prints what it says.

In an example `np` is NumPy and `ta` is this package.
"""

import doctest
import importlib
import pkgutil
from pathlib import Path

import numpy as np
import pytest

import tinygrad_attn as ta
from tinygrad_attn.autograd import PRIMITIVES

NAMES = {"np": np, "ta": ta}
README = Path(__file__).parents[1] / "README.md"


def examples():
    finder = doctest.DocTestFinder(exclude_empty=True)
    for info in pkgutil.walk_packages(ta.__path__, "tinygrad_attn."):
        module = importlib.import_module(info.name)
        yield from finder.find(module, extraglobs=NAMES)
    parser = doctest.DocTestParser()
    for name, primitive in PRIMITIVES.items():  # instances, which the finder above does not look into
        yield parser.get_doctest(primitive.__doc__ or "", NAMES, f"ops.{name}", None, None)
    yield parser.get_doctest(README.read_text(encoding="utf-8"), NAMES, "README.md", str(README), 0)


@pytest.mark.parametrize("example", [pytest.param(e, id=e.name) for e in examples() if e.examples])
def test_example(example):
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    report = []
    failed, _ = doctest.DocTestRunner(optionflags=flags).run(example, out=report.append)
    assert not failed, "".join(report)
