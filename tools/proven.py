"""Writes the table of what finite differences have confirmed into both READMEs.

It runs the cases of `tests/ops/test_operations.py`, which the test suite runs too, and keeps the largest error.

    python tools/proven.py
"""

import importlib.util
from pathlib import Path

import tinygrad_attn as ta

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- written by tools/proven.py -->\n", "<!-- end -->\n"
HEADS = {
    "README.md": ("operation", "cases", "first derivative", "second derivative"),
    "README.zh.md": ("运算", "用例数", "一阶导数", "二阶导数"),
}


def cases() -> dict:
    """The cases of the tests, grouped by operation: "sum, axes" is one of "sum"."""
    spec = importlib.util.spec_from_file_location("cases", ROOT / "tests" / "ops" / "test_operations.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    grouped: dict = {}
    for name, case in module.CASES.items():
        grouped.setdefault(name.split(",")[0], []).append(case)
    return grouped


def rows() -> list[tuple[str, int, float, float]]:
    """Operation, number of cases, largest error of the first and of the second derivative."""
    found = []
    for name, group in cases().items():
        checks = [check for case in group for check in ta.gradcheck(case.ours, case.inputs, order=2).checks]
        worst = [max(check.largest_error for check in checks if check.order == order) for order in (1, 2)]
        found.append((name, len(group), *worst))
    return found


def main() -> None:
    lines = [f"| `{name}` | {n} | {first:.0e} | {second:.0e} |\n" for name, n, first, second in rows()]
    for file, heads in HEADS.items():
        path = ROOT / file
        before, _, rest = path.read_text(encoding="utf-8").partition(BEGIN)
        _, _, after = rest.partition(END)
        head = f"\n| {' | '.join(heads)} |\n|---|--:|--:|--:|\n"
        path.write_text(before + BEGIN + head + "".join(lines) + "\n" + END + after, encoding="utf-8")
        print(f"{file}: {len(lines)} operations")


if __name__ == "__main__":
    main()
