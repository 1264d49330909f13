"""The demo checks its own numbers; here, that it runs to its end and shows those that the chapter shows."""

import runpy
from pathlib import Path

DEMO = Path(__file__).parents[2] / "demos" / "attention_by_hand.py"


def test_prints_the_numbers_of_the_three_tokens_and_the_shapes_of_the_full_size(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(DEMO.parent))
    monkeypatch.setattr("sys.argv", [DEMO.name])
    runpy.run_path(str(DEMO), run_name="__main__")
    printed = " ".join(capsys.readouterr().out.split())
    for expected in (
        "开心 = 0.21 × [1, 0] + 0.21 × [0, 1] + 0.58 × [1, 1] = [0.79, 0.79]",
        "(5, 1536) @ (1536, 1536) -> (5, 1536)",
        "(1536, 5) @ (5, 1536) -> (1536, 1536)",
        "Every number above was checked.",
    ):
        assert expected in printed
