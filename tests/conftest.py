"""What all tests share: the same examples on every run, no window, and a list of what was skipped.

A test that needs an extra (a second framework, a browser, an MPI library) skips where that is missing.
So that such a test can't be forgotten, continuous integration installs the extras afterwards, runs what was
skipped once more (`--only-skipped`) and takes a missing extra for a failure (`REQUIRE_EXTRAS=1`).
"""

import os
import re
from pathlib import Path

import hypothesis
import numpy as np
import pytest

os.environ["MPLBACKEND"] = "agg"  # before anything imports matplotlib: figures go to files, never to a window

# Programs that a test starts find this checkout, whether or not it is installed.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")]))

hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None)
hypothesis.settings.load_profile("repeatable")

SKIPPED = "tinygrad_attn/skipped"
MISSING = re.compile(r"could not import|not installed|not found|missing|needs|requires|\bno \w+", re.I)


@pytest.fixture
def rng() -> np.random.Generator:
    """A fresh generator with the same seed for every test."""
    return np.random.default_rng(0)


@pytest.fixture
def own_operations():
    """Operations that a test declares are gone after it, so that no other test meets them."""
    from tinygrad_attn import PRIMITIVES, Tensor

    before, methods = dict(PRIMITIVES), set(vars(Tensor))
    yield
    for name in set(vars(Tensor)) - methods:
        delattr(Tensor, name)
    PRIMITIVES.clear()
    PRIMITIVES.update(before)


def pytest_addoption(parser):
    parser.addoption("--only-skipped", action="store_true", help="run what the last whole run skipped")


def refuse_missing(report) -> None:
    """Turn the skip of a test, or of a whole file, into a failure where the extra has to be there."""
    if report.skipped and os.environ.get("REQUIRE_EXTRAS") and not hasattr(report, "wasxfail"):
        reason = str(report.longrepr[2])
        if MISSING.search(reason):
            report.outcome, report.longrepr = "failed", f"must not be skipped here: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    report = yield
    refuse_missing(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report():
    report = yield
    refuse_missing(report)
    return report


def pytest_ignore_collect(collection_path, config):
    if config.getoption("--only-skipped") and collection_path.is_file():
        path = collection_path.relative_to(config.rootpath).as_posix()
        if not any(skipped.split("::")[0] == path for skipped in config.cache.get(SKIPPED, [])):
            return True
    return None


def pytest_collection_modifyitems(config, items):
    if config.getoption("--only-skipped"):
        skipped = set(config.cache.get(SKIPPED, []))
        items[:] = [item for item in items if {item.nodeid, item.nodeid.split("::")[0]} & skipped]


def pytest_terminal_summary(terminalreporter, config):
    if not config.getoption("--only-skipped"):
        config.cache.set(SKIPPED, [report.nodeid for report in terminalreporter.stats.get("skipped", [])])
