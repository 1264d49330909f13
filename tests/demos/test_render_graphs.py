"""The pictures that are checked in are those that the code draws now."""

import importlib.util
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "demos" / "render_graphs.py"


@pytest.fixture(scope="module")
def demo():
    spec = importlib.util.spec_from_file_location("render_graphs", DEMO)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_checked_in_pictures_are_not_stale(demo):
    for name, drawing in demo.drawings().items():
        checked_in = (DEMO.parent / "pictures" / f"{name}.dot").read_text(encoding="utf-8")
        assert checked_in == drawing.source, f"run `python demos/render_graphs.py`: {name} has changed"


def test_the_demo_writes_all_pictures_and_prints_the_formulas(demo, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["render_graphs.py", "--out", str(tmp_path)])
    demo.main()
    checked_in = {path.name for path in (DEMO.parent / "pictures").iterdir()}
    assert {path.name for path in tmp_path.iterdir()} == checked_in
    assert "dQ = dmatmul @ K" in capsys.readouterr().out
