"""Files are whole or not there, programs are found or named, and several pictures can stand in one page."""

import os
import re
import stat
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import graphviz
import numpy as np
import pytest

import tinygrad_attn as ta
from tinygrad_attn.viz import attention_heatmap, draw_backward, draw_graph, save, to_dot
from tinygrad_attn.viz.drawing import DotNotFound, Drawing, LayoutTimeout
from tinygrad_attn.viz.notebook import module_html, tensor_html

from .test_backward import attention
from .test_dot import needs_dot
from .test_trace import leaf


@pytest.fixture
def no_dot(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))


@pytest.fixture
def fake_dot(monkeypatch, tmp_path):
    """Put a `dot` on PATH that does what a line of shell says."""

    def install(line):
        program = tmp_path / "bin" / "dot"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\n{line}\n")
        program.chmod(program.stat().st_mode | stat.S_IEXEC)
        monkeypatch.setenv("PATH", f"{program.parent}:/bin:/usr/bin")

    return install


@needs_dot
@pytest.mark.parametrize("ending", ["svg", "png", "dot"])
def test_save_writes_what_the_name_says(ending, tmp_path):
    path = save(leaf("x") * 2, tmp_path / "new folder" / f"x.{ending}")
    start = {"svg": b"<?xml", "png": b"\x89PNG", "dot": b"digraph {"}[ending]
    assert path.read_bytes().startswith(start)
    assert [p.name for p in path.parent.iterdir()] == [path.name]  # nothing temporary is left


def test_a_wrong_ending_lists_the_right_ones(tmp_path):
    with pytest.raises(ValueError, match=r"\.svg, \.png, \.pdf, \.dot"):
        save(leaf(), tmp_path / "x.jpeg")
    with pytest.raises(TypeError, match="expected a tensor"):
        save(object(), tmp_path / "x.dot")


@needs_dot
def test_a_drawing_is_a_digraph_as_people_know_it(tmp_path):
    d = draw_graph(leaf("x") * 2)
    assert isinstance(d, graphviz.Digraph)
    assert d.source == to_dot(leaf("x") * 2)
    assert Path(d.render(tmp_path / "g")).read_text().startswith("<?xml")
    assert (tmp_path / "g").read_text() == d.source
    assert d.render(outfile=tmp_path / "h.png") == str(tmp_path / "h.png")
    assert d.pipe("svg", encoding="utf-8") == d.pipe().decode()
    d.save(tmp_path / "k.svg")
    assert (tmp_path / "k.svg").read_bytes() == d.pipe()
    d.node("mine")
    assert "mine" in d.source


def test_C11_without_any_program_text_works_and_a_picture_is_one_clear_error(no_dot, tmp_path):
    d = draw_graph(leaf("x") * 2)
    assert save(d, tmp_path / "x.dot").read_text() == d.source
    with pytest.raises(graphviz.ExecutableNotFound, match=r"apt install graphviz(.|\n)*brew(.|\n)*winget(.|\n)*pip"):
        save(d, tmp_path / "z.svg")
    assert (tmp_path / "z.dot").read_text() == d.source and not (tmp_path / "z.svg").exists()
    with pytest.raises(DotNotFound):
        d.render(tmp_path / "y")
    bundle = d._repr_mimebundle_()
    assert "apt install" in bundle["text/plain"] and d.source in bundle["text/plain"]


def test_C11_a_failing_dot_surfaces_what_it_said(fake_dot, tmp_path):
    fake_dot("echo 'something is wrong with me' >&2; exit 1")
    with pytest.raises(subprocess.CalledProcessError, match="something is wrong with me"):
        save(leaf("x"), tmp_path / "x.svg")
    assert not (tmp_path / "x.svg").exists()


def test_C13_what_dot_says_about_a_picture_reaches_the_user(fake_dot):
    fake_dot("cat >/dev/null; echo 'graph is too large for cairo-renderer bitmaps. Scaling by 0.5 to fit' >&2; echo x")
    with pytest.warns(UserWarning, match="too large .* an .svg has no size limit"):
        assert draw_graph(leaf("x")).pipe("png") == b"x\n"


def test_C12_a_layout_that_takes_too_long_is_stopped_with_advice(tmp_path):
    rng = np.random.default_rng(0)
    x = leaf(shape=(1,))
    values = [x]
    for i in range(1500):
        values.append(sum((values[int(j)] for j in rng.integers(max(0, i - 300), i + 1, 3)), start=x))
    start = time.monotonic()
    with pytest.raises(LayoutTimeout, match=r"took longer than 1 s .*depth=1"):
        save(values[-1], tmp_path / "big.svg", timeout=1)
    assert time.monotonic() - start < 30
    assert list(tmp_path.iterdir()) == []


@needs_dot
def test_C16_any_file_name_and_label_in_any_locale(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, tinygrad_attn as ta; x = ta.Tensor([1.0], requires_grad=True, name='注意 力é😀');"
        "ta.viz.save(x * 2, sys.argv[1]); ta.viz.save(x * 2, sys.argv[2])",
        encoding="utf-8",
    )
    svg, dot = tmp_path / "图_ü dir" / "注意力.svg", tmp_path / "-a b.dot"
    env = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONPATH": str(Path(ta.__file__).parents[1])}
    subprocess.run([sys.executable, script, os.fsencode(svg), os.fsencode(dot)], env=env, check=True)
    for path in (svg, dot):
        assert "注意 力é😀" in path.read_text(encoding="utf-8").replace("&#45;", "-")


def test_an_interrupted_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "x.dot"
    save(leaf("old"), path)
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        save(leaf("new"), path)
    assert "old" in path.read_text() and len(list(tmp_path.iterdir())) == 1


@needs_dot
def test_several_pictures_stand_in_one_page(tmp_path):
    """No two share an id, and every reference resolves inside its own picture."""
    _, _, loss = attention()
    pictures = [draw_graph(loss).pipe().decode(), draw_graph(loss).pipe().decode(), draw_backward(loss).pipe().decode()]
    for i in range(2):
        figure = attention_heatmap(np.eye(3 + i), list("她妈开心")[: 3 + i])
        pictures.append(save(figure, tmp_path / f"{i}.svg").read_text(encoding="utf-8"))
    seen = set()
    for svg in pictures:
        ids = set(re.findall(r'\bid="([^"]*)"', svg))
        assert not ids & seen
        assert set(re.findall(r'(?:url\(|href=")#([^)"]*)', svg)) <= ids
        seen |= ids
        ET.fromstring(svg)


def test_a_figure_gives_the_same_bytes_every_time(tmp_path):
    first, second = (save(attention_heatmap(np.eye(3)), tmp_path / n).read_bytes() for n in ("a.svg", "b.svg"))
    assert first == second


@needs_dot
def test_the_layout_program_is_chosen_per_call():
    before = graphviz.backend.dot_command.DOT_BINARY
    draw_graph(leaf()).pipe()
    assert before == graphviz.backend.dot_command.DOT_BINARY


@needs_dot
def test_a_notebook_shows_a_drawing_as_svg():
    assert "<svg" in Drawing("digraph {\n}\n")._repr_mimebundle_()["image/svg+xml"]


def test_a_notebook_shows_a_tensor_and_a_module():
    x = ta.Tensor([[1.0, 2.5]], requires_grad=True, name="<W>")
    shown = tensor_html(x)
    assert "&lt;W&gt;" in shown and "<TD>2.5000</TD>" in shown and "no gradient yet" in shown
    (x * 2).sum().backward()
    assert ">gradient<" in tensor_html(x) and "no gradient yet" not in tensor_html(x)
    assert "made by multiply" in tensor_html(x * 2)
    assert "min … mean … max" in tensor_html(ta.Tensor(np.arange(1000.0)))
    table = module_html(ta.nn.Linear(2, 3))
    assert "9 parameters" in table and "f32[2,3]" in table
    assert x._repr_html_() == tensor_html(x)
    assert ta.nn.Linear(2, 3)._repr_html_() == table


def test_importing_the_package_loads_no_pictures():
    script = "import sys, tinygrad_attn; assert not {m for m in sys.modules if 'viz' in m or 'graphviz' in m}"
    subprocess.run([sys.executable, "-c", script], check=True, cwd=Path(ta.__file__).parents[1])
