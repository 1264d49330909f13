"""Counts lines of code beside the budget that keeps the package small enough to read: what is over can ask what can go.

A line counts if it holds code: blank lines, comments and docstrings don't.
"""

import ast
import sys
import tokenize
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "tinygrad_attn"
CORE = ("tensor.py", "autograd.py", "modes.py", "ops")
BUDGETS = {"core": 1_200, "package": 4_000}
CEILINGS = {"core": 1_200, "package": 4_596}  # where it stands: it may only shrink, until the budget is met

NOT_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def code_lines(path: Path) -> int:
    with tokenize.open(path) as file:
        source = file.read()
    lines: set[int] = set()
    for token in tokenize.generate_tokens(iter(source.splitlines(keepends=True)).__next__):
        if token.type not in NOT_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str()), lineno=first, end_lineno=last):
                lines.difference_update(range(first, last + 1))
    return len(lines)


def main() -> int:
    counts = {path.relative_to(PACKAGE): code_lines(path) for path in sorted(PACKAGE.rglob("*.py"))}
    for path, count in counts.items():
        print(f"{count:6,}  {path.as_posix()}")
    totals = {
        "core": sum(count for path, count in counts.items() if path.parts[0] in CORE),
        "package": sum(counts.values()),
    }
    for name, total in totals.items():
        over = total - BUDGETS[name]
        print(f"{total:6,}  {name} (budget {BUDGETS[name]:,}{f', {over:,} over' if over > 0 else ''})")
    return int(any(total > CEILINGS[name] for name, total in totals.items()))


if __name__ == "__main__":
    sys.exit(main())
