"""The demo asserts its own numbers; here, that it states the two facts and leaves its pictures and its page behind."""

import runpy
import sys
from pathlib import Path

import pytest

DEMOS = Path(__file__).parents[2] / "demos"


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(sys, "path", [str(DEMOS), *sys.path])
    monkeypatch.setattr(sys, "argv", ["backprop_through_attention.py", "--out", str(tmp_path)])

    def run():
        runpy.run_path(str(DEMOS / "backprop_through_attention.py"), run_name="__main__")
        return capsys.readouterr().out

    return run


def test_prints_every_step_of_the_backward_pass_and_the_two_facts(run, tmp_path):
    printed = run()
    for formula in (
        "dV = weightsᵀ @ doutput",
        "dweights = doutput @ Vᵀ",
        "dmasked = weights ⊙ (dweights − Σ₋₁(dweights ⊙ weights))",
        "dQ = dmatmul @ K",
        "dX = dX₁ + dX₂ + dX₃",
    ):
        assert formula in printed
    assert "zero above the diagonal: the largest |dscores| there is 0.0" in printed
    assert "rows sum to zero" in printed
    for name in ("forward.svg", "backward.svg", "ladder.svg", "page.html"):
        assert (tmp_path / name).stat().st_size > 1000, name


def test_without_dot_it_writes_the_text_of_the_pictures_and_the_page(run, tmp_path, monkeypatch):
    from tinygrad_attn.viz import drawing

    def none():
        raise drawing.DotNotFound

    monkeypatch.setattr(drawing, "layout_program", none)
    assert "no ladder.svg" in run()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["backward.dot", "forward.dot", "ladder.dot", "page.html"]
