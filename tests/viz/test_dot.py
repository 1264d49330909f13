"""DOT text and rendered pictures: every value once, every use once, all text as it is."""

import html
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from hypothesis import given, settings

import tinygrad_attn as ta
from tinygrad_attn.viz import draw_backward, draw_graph, to_dot, trace, trace_backward
from tinygrad_attn.viz.drawing import layout_program

from .test_backward import attention, gpt
from .test_trace import build, leaf, recipes

SVG = "{http://www.w3.org/2000/svg}"
needs_dot = pytest.mark.skipif(
    not any(map(__import__("shutil").which, ["dot", "graphviz-pure"])), reason="no `dot` and no graphviz-pure installed"
)


class Rendered:
    """A picture read back from its SVG."""

    def __init__(self, drawing):
        self.svg = drawing.pipe("svg", encoding="utf-8")
        root = ET.fromstring(self.svg)
        groups = [g for g in root.iter(SVG + "g") if "class" in g.attrib]
        self.nodes = [g for g in groups if g.attrib["class"].startswith("node")]
        self.edges = [g for g in groups if g.attrib["class"].startswith("edge")]
        self.clusters = [g for g in groups if g.attrib["class"].startswith("cluster")]
        self.reads = [g for g in self.edges if "reads" in g.attrib["class"]]

    def texts(self, group):
        return ["".join(t.itertext()).replace("\u00a0", " ") for t in group.iter(SVG + "text")]

    def names(self):
        return [self.texts(node)[0] for node in self.nodes]

    def pairs(self, edges):
        """(from, to) of each edge, by name."""
        name = {node.find(SVG + "title").text: self.texts(node)[0] for node in self.nodes}
        ends = (edge.find(SVG + "title").text.split("->") for edge in edges)
        return sorted((name[a], name[b]) for a, b in ends)


@pytest.fixture(scope="module")
def ladder():
    return Rendered(draw_backward(attention()[2]))


@needs_dot
@pytest.mark.parametrize(
    "name",
    ["\\", "a\\", "<b>", "<<>>", "<> <>", 'say "hi"', "x<y>z", "100%s", "a\nb", "\\N", "\\G", "&amp;", "</script>",
     "{add|x<y}", "matmul | grad {1}", "a  b", "layer:0", "层.0", "注意 力é😀", "$x$", "n0 -> n1", "]", "]]>", "--"],
)  # fmt: skip
def test_C02_C04_C16_a_label_shows_exactly_its_text(name):
    picture = Rendered(draw_graph(leaf(name) * 2, legend=False))
    assert len(picture.nodes) == 2 and len(picture.edges) == 1
    assert picture.texts(picture.nodes[0])[: name.count("\n") + 1] == name.split("\n")


@needs_dot
def test_invisible_characters_are_spelled_out():
    picture = Rendered(draw_graph(leaf("a\x00b\u2028"), legend=False))
    assert picture.names() == ["a\\x00b\\u2028"]


@needs_dot
def test_C01_names_with_a_colon_make_no_phantom_nodes():
    picture = Rendered(draw_graph((leaf("layer:0") * 2).named("layer:1")))
    assert picture.pairs(picture.edges) == [("layer:0", "layer:1")]


def test_C06_the_same_graph_gives_the_same_text_without_addresses():
    _, _, loss = gpt()
    first, second = to_dot(loss), to_dot(loss)
    assert first == second
    assert not re.search(r"0x[0-9a-f]{6,}|\d{9,}", first)


def test_C06_two_processes_give_the_same_bytes():
    script = (
        "import numpy as np, tinygrad_attn as ta; from tinygrad_attn.viz import *;"
        "m = ta.nn.MultiHeadAttention(4, 2, rng=np.random.default_rng(0));"
        "loss = (m(ta.Tensor(np.ones((1, 3, 4), np.float32))) ** 2).sum();"
        "print(to_dot(loss), draw_backward(loss).source)"
    )
    environments = [{"PYTHONHASHSEED": seed, "PYTHONIOENCODING": "utf-8", "PATH": ""} for seed in ("1", "2")]
    outputs = [
        subprocess.run([sys.executable, "-c", script], env=e, capture_output=True, check=True).stdout
        for e in environments
    ]
    assert outputs[0] == outputs[1] and len(outputs[0]) > 1000


def test_C06_intermediates_that_nothing_else_refers_to_are_all_there():
    x = leaf("x")
    total = x
    for _ in range(100):
        total = total + x * 2
    assert len(trace(total).nodes) == 201
    assert len(re.findall(r"^ +n\d+ \[", to_dot(total), re.M)) == 201


@needs_dot
def test_C09_a_leaf_a_constant_nothing():
    assert len(Rendered(draw_graph(leaf("x"))).nodes) == 1
    constant = Rendered(draw_graph(ta.Tensor(3.0)))
    assert "constant" in " ".join(constant.texts(constant.nodes[0]))
    assert "nothing to draw" in to_dot([])
    assert len(Rendered(draw_graph([])).nodes) == 0
    empty = draw_backward(ta.Tensor(3.0, name="c"))
    assert "no backward pass: c depends on nothing" in empty.source
    assert len(Rendered(empty).nodes) == 1
    assert "no backward pass" in draw_backward(ta.Tensor(3.0), style="graph").source


def test_C10_a_chain_of_5000_additions():
    y = leaf(shape=(1,))
    for _ in range(5000):
        y = y + 1.0
    assert to_dot(y).count('class="operation') + to_dot(y).count('class="output') == 5000


@needs_dot
def test_C12_a_chain_of_100_doublings_is_quick():
    a = leaf("a", ())
    for _ in range(100):
        a = a + a
    start = time.monotonic()
    picture = Rendered(draw_graph(a))
    assert (len(picture.nodes), len(picture.edges)) == (101, 200)
    assert time.monotonic() - start < 20


def test_20_000_values_as_text_take_less_than_two_seconds():
    x = leaf(shape=(1,))
    values = [x]
    for i in range(20_000):
        values.append(values[-1] + values[max(0, i - 7)] if i % 3 else values[-1] * 0.1)
    start = time.process_time()
    text = to_dot(values[-1])
    assert time.process_time() - start < 4  # twice the goal, since tests share the machine
    assert text.count(" -> ") > 26_000


@needs_dot
@settings(max_examples=12)
@given(recipes())
def test_nodes_and_edges_of_the_picture_are_those_of_the_trace(recipe):
    y = build(recipe)
    t = trace(y)
    picture = Rendered(draw_graph(y))
    assert len(picture.nodes) == len(t.nodes)
    names = [n.name for n in t.nodes]
    assert picture.pairs(picture.edges) == sorted((names[e.source], names[e.target]) for e in t.edges)


@needs_dot
def test_module_calls_are_nested_boxes_that_collapse():
    _, model, loss = gpt()
    opened = Rendered(draw_graph(loss, names=model))
    assert len(opened.clusters) == len(trace(loss).modules)
    titles = ["".join(opened.texts(c)) for c in opened.clusters]
    assert "h.0.attn  MultiHeadAttention" in titles
    collapsed = Rendered(draw_graph(loss, names=model, depth=1))
    assert {"h.0", "h.1", "ln_f"} <= set(collapsed.names())
    assert len(collapsed.clusters) == 1
    assert len(Rendered(draw_graph(loss, depth=0)).nodes) == 1
    assert "c_attn.weight" in to_dot(loss, depth=2)  # what was collapsed is named


def test_max_nodes_collapses_as_far_as_needed_and_says_so():
    _, _, loss = gpt()
    assert "collapsed" not in to_dot(loss)
    text = to_dot(loss, max_nodes=30)
    assert len(re.findall(r"^ +[nm]\d+ \[", text, re.M)) <= 30
    assert "calls below depth" in text
    assert to_dot(loss, max_nodes=None) == to_dot(loss)


@needs_dot
def test_the_ladder_of_attention(ladder):
    names = set(ladder.names())
    assert names >= {"X", "W_Q", "W_K", "W_V", "Q", "K", "V", "scores", "masked", "weights", "output", "loss"}
    assert names >= {"dloss", "doutput", "dweights", "dmasked", "dscores", "dQ", "dK", "dV", "dX", "dX₁", "dX₂", "dX₃"}
    assert [c.find(SVG + "title").text for c in ladder.clusters] == ["cluster_forward", "cluster_backward"]


@needs_dot
def test_the_ladder_shows_the_textbook_formulas(ladder):
    shown = {ladder.texts(node)[0]: " ".join(ladder.texts(node)[1:-1]).strip() for node in ladder.nodes}
    assert shown["scores"] == "Q @ Kᵀ / √d"
    assert shown["dV"] == "weightsᵀ @ doutput"
    assert shown["dweights"] == "doutput @ Vᵀ"
    assert shown["dmasked"] == "weights ⊙ (dweights − Σ₋₁(dweights ⊙ weights))"
    assert shown["dQ"] == "(dscores / √d) @ K"
    assert shown["dK"] == "(dscores / √d)ᵀ @ Q"
    assert shown["dX"] == "dX₁ + dX₂ + dX₃"


@needs_dot
def test_a_dotted_line_stands_exactly_where_a_rule_reads_a_value(ladder):
    reads = {
        "X": ("dW_Q", "dW_K", "dW_V"), "W_V": ("dX₁",), "W_K": ("dX₂",), "W_Q": ("dX₃",), "Q": ("dK",), "K": ("dQ",),
        "V": ("dweights",), "weights": ("dV", "dmasked"), "output": ("doutput",),
    }  # fmt: skip
    assert ladder.pairs(ladder.reads) == sorted((name, rule) for name, rules in reads.items() for rule in rules)


@needs_dot
def test_each_gradient_stands_at_the_height_of_its_value(ladder):
    height = {}
    for node in ladder.nodes:
        text = next(node.iter(SVG + "polygon"), None)
        shape = text if text is not None else next(node.iter(SVG + "path"))
        numbers = [float(y) for y in re.findall(r",(-?[\d.]+)", shape.get("points") or shape.get("d"))]
        height[ladder.texts(node)[0]] = (min(numbers) + max(numbers)) / 2
    for name in ("X", "Q", "K", "V", "scores", "masked", "weights", "output", "loss", "W_Q"):
        assert abs(height[name] - height[f"d{name}"]) < 6, name


def test_an_unnamed_value_that_would_make_a_long_formula_keeps_its_box():
    x, w = leaf("x"), leaf("w")
    loss = ((x @ w + 1.0).tanh().softmax() * w).sum().named("loss")
    source = draw_backward(loss).source
    assert all(f"<B>{name}</B>" in source for name in ("tanh", "softmax", "dtanh", "dsoftmax"))


@needs_dot
def test_the_ladder_collapses_modules_on_both_sides():
    _, model, loss = gpt()
    picture = Rendered(draw_backward(loss, model, depth=2))
    assert {"h.0.attn", "d h.0.attn", "h.1.mlp", "d h.1.mlp"} <= set(picture.names())


@needs_dot
def test_the_recorded_backward_pass_is_boxed_under_the_operations_it_serves():
    _, _, loss = attention()
    picture = Rendered(draw_backward(loss, style="graph"))
    assert "backward of weights" in ["".join(picture.texts(c)) for c in picture.clusters]
    backward = trace_backward(loss)
    made = [n for n in backward.graph.nodes if n.tensor.origin is not None]
    assert len([n for n in picture.nodes if re.search("gradient|sum", n.attrib["class"])]) == len(made) + 1  # the seed


def test_no_gradient_yet_is_said_and_never_0():
    x = leaf("x")
    y = (x * 2).sum()
    assert "no gradient yet" in to_dot(y, show_grads=True)
    y.backward(retain_graph=True)
    text = to_dot(y, show_grads=True)
    assert "— no gradient yet" not in text and "2.000" in text


def test_small_values_are_tables_and_large_ones_statistics():
    small, large = to_dot(leaf("x"), show_values=True, precision=1), to_dot(leaf(shape=(99, 9)), show_values=True)
    assert small.count("1.0</TD>") == 4
    assert "min … mean … max" in large
    odd = to_dot(ta.Tensor([np.nan, np.inf, -np.inf, -1.0]), show_values=True)
    assert all(f"<TD>{text}</TD>" in odd for text in ("NaN", "∞", "−∞", "−1.000"))


def test_operand_numbers_stand_where_order_matters():
    a, b = leaf("a"), leaf("b")
    assert to_dot(a @ b).count("headlabel") == 2
    assert "headlabel" not in to_dot(a + b)


def test_kinds_are_told_apart_by_words_and_a_legend():
    text = to_dot(ta.nn.Linear(2, 2, rng=np.random.default_rng(0)), leaf("x"))
    assert all(word in text for word in ("parameter f32[2,2]", "leaf f64[2,2]", "parameter: trained"))
    assert "parameter: trained" not in to_dot(leaf() * 2, legend=False)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"show_value": True}, TypeError, "did you mean 'show_values'"),
        ({"rankdir": "UP"}, ValueError, "TB, BT, LR, RL"),
    ],
)
def test_wrong_options_name_the_right_ones(options, error, message):
    with pytest.raises(error, match=message):
        to_dot(leaf(), **options)
    with pytest.raises(ValueError, match="ladder, graph"):
        draw_backward(leaf().sum(), style="lader")


def test_a_module_and_its_inputs_can_be_drawn_directly():
    model = ta.nn.Linear(2, 2, rng=np.random.default_rng(0))
    assert "<B>x</B>" in draw_graph(model, ta.Tensor(np.ones((1, 2), np.float32))).source


@needs_dot
def test_pure_and_plain_dot_show_the_same(monkeypatch, ladder):
    program = __import__("shutil").which("graphviz-pure", path=str(__import__("pathlib").Path(sys.executable).parent))
    if program is None:
        pytest.skip("graphviz-pure is not installed")
    monkeypatch.setattr("tinygrad_attn.viz.drawing.layout_program", lambda: [program])
    other = Rendered(draw_backward(attention()[2]))
    assert sorted(other.names()) == sorted(ladder.names())
    assert other.pairs(other.edges) == ladder.pairs(ladder.edges)
    assert len(other.clusters) == len(ladder.clusters)
    assert html.unescape(other.svg).count("√d") == html.unescape(ladder.svg).count("√d")


def test_the_layout_program_is_found_on_this_machine():
    assert layout_program()[0]


@needs_dot
@pytest.mark.parametrize("bias", [False, True])
def test_the_forward_pass_is_on_the_left(bias):
    layer = ta.nn.Linear(2, 2, bias=bias, rng=np.random.default_rng(0))
    picture = Rendered(draw_backward((layer(leaf("x")).tanh() ** 2).mean()))
    start = {
        c.find(SVG + "title").text: float(re.search(r"M(-?[\d.]+)", c.find(SVG + "path").get("d"))[1])
        for c in picture.clusters
    }
    assert start["cluster_forward"] < start["cluster_backward"]


def test_a_formula_with_a_repeated_part_is_not_folded_into_another():
    x, t = leaf("x"), leaf("t")
    assert ", where" not in draw_backward((((x.tanh() * 2.0 - t) ** 2).mean()).named("loss"), x).source
