"""What the demos share: tables line up, whatever the script."""

import importlib
from pathlib import Path

DEMOS = Path(__file__).parents[2] / "demos"


def test_columns_of_a_table_line_up_with_chinese_in_them(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(DEMOS))
    common = importlib.import_module("_common")
    common.table(["", "银行", "head 0"], ["the word", 0.25, 1], ["词", "50%", 0.5])
    lines = capsys.readouterr().out.splitlines()
    assert {common.columns(line) for line in lines} == {24}
    assert lines[1].split() == ["the", "word", "0.25", "1"] and lines[2].endswith("0.50")
