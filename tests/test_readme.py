"""The README keeps its word, in both languages: its code runs and prints what it says, its tables are true."""

import doctest
import pydoc
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tinygrad_attn as ta

ROOT = Path(__file__).parents[1]
READMES = {name: (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "README.zh.md")}
ENGLISH = READMES["README.md"]
each = pytest.mark.parametrize("readme", READMES.values(), ids=READMES)


def blocks(text, language):
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def commands():
    """Every line of the shell blocks, without the two that set up an environment first."""
    lines = [line for block in blocks(ENGLISH, "sh") for line in block.splitlines()]
    assert [i for i, line in enumerate(lines) if "-m venv" in line] == [0, 1]
    return lines[2:]


def test_both_languages_have_the_same_code():
    for language in ("sh", "python"):
        assert blocks(READMES["README.zh.md"], language) == blocks(ENGLISH, language)
    fences = [line for text in READMES.values() for line in text.splitlines() if line.startswith("```")]
    assert set(fences) == {"```sh", "```python", "```"}


def test_the_examples_print_what_they_say(tmp_path, monkeypatch, own_operations):
    monkeypatch.chdir(tmp_path)
    source = "\n".join(blocks(ENGLISH, "python"))
    assert all(line.startswith(">>> ") for block in blocks(ENGLISH, "python") for line in [block.splitlines()[0]])
    example = doctest.DocTestParser().get_doctest(source, {}, "README.md", "README.md", 0)
    report = []
    failed, _ = doctest.DocTestRunner().run(example, out=report.append)
    assert not failed, "".join(report)
    assert (tmp_path / "attention.html").stat().st_size > 10_000


def test_the_example_has_twelve_lines():
    assert blocks(ENGLISH, "python")[0].count(">>> ") == 12


def test_a_model_is_trained_sampled_and_plotted_by_the_commands_given(tmp_path):
    shorter = {"train_next_token": ["--max-iters", "60", "--eval-interval", "30"]}
    (tmp_path / "demos").symlink_to(ROOT / "demos")
    lines = [line for line in commands() if "runs/" in line]
    assert [Path(shlex.split(line)[1]).stem for line in lines] == ["train_next_token", "sample", "plot_run"]
    for line in lines:
        program, script, *arguments = shlex.split(line)
        assert program == ".venv/bin/python"
        command = [sys.executable, script, *arguments, *shorter.get(Path(script).stem, [])]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, f"{line}\n{done.stderr}"
    assert {"loss.png", "gradients.png", "attention.png"} <= {p.name for p in (tmp_path / "runs/first").iterdir()}


def test_every_other_command_is_a_demo_that_a_test_runs():
    tests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests/demos").glob("test_*.py"))
    for line in commands():
        _, script, *arguments = shlex.split(line)
        assert (ROOT / script).is_file()
        if not arguments:
            assert Path(script).stem in tests, f"no test runs {script}"


@each
def test_links_lead_somewhere(readme):
    targets = re.findall(r"\]\((?!http)([^)]+)\)", readme)
    headings = {
        re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in re.findall(r"^#+ (.+)$", readme, re.MULTILINE)
    }
    assert len(targets) >= 3
    for target in targets:
        assert (target[1:] in headings) if target.startswith("#") else (ROOT / target).exists(), target


@each
def test_demos_and_files_that_are_named_exist(readme):
    for name in re.findall(r"`((?:demos|tests|tools|tinygrad_attn)/[\w./]+)`", readme):
        assert (ROOT / name).exists(), name
    for name in re.findall(r"^\| [^|]+ \| `(\w+)`[:：]", readme, re.MULTILINE):
        assert (ROOT / "demos" / f"{name}.py").exists(), name


@each
def test_the_table_of_what_is_proven_lists_every_operation(readme):
    listed = re.findall(r"^\| `(\w+)` \| (\d+) \| (\S+) \| (\S+) \|$", readme, re.MULTILINE)
    proven = runpy.run_path(str(ROOT / "tools" / "proven.py"))
    cases = {name: str(len(group)) for name, group in proven["cases"]().items()}
    assert {name: n for name, n, _, _ in listed} == cases, "run `python tools/proven.py`"
    errors = np.array([[float(first), float(second)] for *_, first, second in listed])
    assert errors.max() < 1e-6


@each
def test_the_ladder_has_as_many_boxes_as_the_comparison_says(readme):
    source = (ROOT / "demos/pictures/attention_ladder.dot").read_text(encoding="utf-8")
    boxes = len(re.findall(r"^ +[ns]\d+ \[label", source, re.MULTILINE))
    assert re.search(rf"\b{boxes} (boxes|个框)", readme), boxes


def test_help_shows_signature_and_example():
    for thing in (ta.softmax, ta.nn.SelfAttention):
        text = pydoc.render_doc(thing, renderer=pydoc.plaintext)
        assert ">>> " in text and "(" in text.splitlines()[2]
