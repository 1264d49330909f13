"""The step player in a real browser: what it shows is what Python computed, and everyone can use it.

Needs playwright and a Chromium that is installed already; with REQUIRE_BROWSER set, a missing one is a failure.
"""

import json
import math
import os
import re
import shutil
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import tinygrad_attn as ta
from tinygrad_attn.viz.explorer import explain, resource

from .test_explorer import TOKENS, attention, numbers, read

FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
    " --disable-component-update --disable-sync"
)
HOSTILE = [
    "</script><script>window.hacked=1</script>",
    "&lt;b&gt; \u2028 \"'`",
    "妈妈<img src=x onerror=window.hacked=1>",
]


def missing(what):
    if os.environ.get("REQUIRE_BROWSER"):
        pytest.fail(f"must not be skipped here: {what}", pytrace=False)
    pytest.skip(what)


@pytest.fixture(scope="module")
def browser():
    if not find_spec("playwright"):
        missing("playwright is not installed")
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        missing("Chromium is not installed")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=program, args=FLAGS.split())
        yield chromium
        chromium.close()


@pytest.fixture
def show(browser, tmp_path):
    """Opens a page from disk; at the end nothing may have gone wrong in it, and no network may have been asked."""
    troubles, contexts = [], []

    def show(page, fragment="", width=1280, height=800, **options):
        path = tmp_path / f"page{len(contexts)}.html"
        path.write_text(page if isinstance(page, str) else page.html, encoding="utf-8")
        context = browser.new_context(viewport={"width": width, "height": height}, locale="en-GB", **options)
        contexts.append(context)
        view = context.new_page()
        view.on("console", lambda m: troubles.append(m.text) if m.type in ("error", "warning") else None)
        view.on("pageerror", lambda error: troubles.append(str(error)))
        view.on("request", lambda r: None if r.url.startswith(("file:", "about:", "data:")) else troubles.append(r.url))
        view.goto(path.as_uri() + fragment)
        return view

    show.troubles = troubles
    yield show
    for context in contexts:
        context.close()
    assert not troubles


@pytest.fixture(scope="module")
def page():
    loss, leaves = attention()
    return explain(loss, names=leaves, tokens=TOKENS, title="attention of 3 tokens")


@pytest.fixture(scope="module")
def precise():
    """The same page with so many decimals that a sum of printed numbers can be recomputed."""
    loss, leaves = attention()
    return explain(loss, names=leaves, tokens=TOKENS, precision=7)


@pytest.fixture(scope="module")
def batched():
    """Two heads, two samples: four axes, modules within modules, a matrix too large for a table."""
    layer = ta.nn.MultiHeadAttention(16, 2, rng=np.random.default_rng(0))
    x = ta.Tensor(np.random.default_rng(1).normal(size=(2, 3, 16)), requires_grad=True, name="x")
    y, _ = layer(x, return_weights=True)
    return explain((y * y).sum().named("loss"), names=layer, tokens=TOKENS)


def as_number(text):
    return float(text.replace("−", "-").replace("∞", "inf"))


def at(view):
    return view.locator(".card h2 .name").inner_text()


def names_of_steps(page):
    data = read(page)
    return [data["tensors"][step["tensor"]]["name"] for step in data["steps"]]


def press(view, *keys):
    for key in keys:
        view.keyboard.press(key)


def until(view, condition):
    """Waits for a condition; playwright's own way needs eval, which the page forbids."""
    for _ in range(100):
        if view.evaluate(condition):
            return
        view.wait_for_timeout(50)
    pytest.fail(f"never came true: {condition}")


# ------------------------------------------------------------------------------------------------ numbers


def test_every_number_of_every_step_is_the_one_that_was_computed(show, page):
    view, data = show(page), read(page)
    by_name = {t["name"]: t for t in data["tensors"] if t["role"] != "inner"}
    seen = 0
    for i, step in enumerate(data["steps"]):
        assert view.locator("input[type=range]").input_value() == str(i)
        assert at(view) == data["tensors"][step["tensor"]]["name"]
        shown = view.evaluate(
            """() => [...document.querySelectorAll(".stage .matrix")].map((m) => [m.querySelector(".name").textContent,
               [...m.querySelectorAll("td[data-flat] > span:first-child")].map((cell) => cell.textContent)])"""
        )
        assert shown
        for name, cells in shown:
            expected = numbers(by_name[name]).ravel()
            np.testing.assert_allclose([as_number(c) for c in cells], expected, rtol=0.06, atol=0.00051, err_msg=name)
            seen += len(cells)
        press(view, "ArrowRight")
    assert seen > 500


# What the words in a worked cell mean.
MEANING = {
    **{name: getattr(math, name) for name in ("exp", "log", "sqrt", "tanh", "sin", "cos", "inf")},
    "mean": lambda *x: np.mean(x),
    "std": lambda *x: np.std(x),
    "var": lambda *x: np.var(x),
    "norm": lambda *x: np.linalg.norm(x),
    "prod": lambda *x: np.prod(x),
    "logsumexp": lambda *x: np.log(np.sum(np.exp(x))),
    "maximum": max,
    "minimum": min,
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "gelu": lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "clip": lambda x, low, high: min(max(x, low), high),
    "abs": abs,
}


LOOK_INTO_EVERY_CELL = """() => {
    const lines = [...document.querySelectorAll(".stage .matrix.result td[data-flat]")].flatMap((cell) => {
        cell.focus();
        return [...document.querySelectorAll(".cell .working.numbers")].map((line) => line.textContent);
    });
    document.querySelector(".card").focus();
    return lines;
}"""


def check_worked_cells(view, data):
    """Plays all steps and recomputes every cell from the numbers that the page fills in; how many there were."""
    worked = 0
    for _ in data["steps"]:
        for line in view.evaluate(LOOK_INTO_EVERY_CELL):
            left, *right = re.split(r" ?= ", line.strip())[1:]
            if not right or "…" in left:
                continue
            code = left.replace("−", "-").replace("·", "*").replace("^", "**").replace("∞", "inf")
            code = re.sub(r"√([\d.]+)", r"sqrt(\1)", code).replace("√(", "sqrt(")
            assert eval(code, dict(MEANING)) == pytest.approx(as_number(right[0]), rel=2e-4, abs=4e-6), line
            worked += 1
        press(view, "ArrowRight")
    return worked


def test_the_formula_of_each_cell_gives_the_cell(show, precise):
    assert check_worked_cells(show(precise), read(precise)) > 60


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.softmax(axis=0) * x,
        lambda x: x.log_softmax() * x,
        lambda x: ta.layer_norm(x, x[0], x[1]) * x,
        lambda x: x.mean(0) * x.sum(axis=1, keepdims=True) - x.var(axis=1, keepdims=True),
        lambda x: ta.logsumexp(x, axis=1) + ta.max(x, axis=1) * ta.norm(x, axis=1) - x.prod(axis=1),
        lambda x: ta.where(x.data > 0.5, x / 2, -x) ** 3 + ta.maximum(x, 0.4),
        lambda x: ta.concatenate([x, x.mT.reshape(2, 3)], axis=1) @ ta.concatenate([x.mT, x.mT]),
        lambda x: ta.embedding(x, [1, 1, 0]) * x[:, [2, 0, 0]][1] + ta.tril(x).cumsum(axis=0)[0],
        lambda x: x[0] @ x.mT + ta.sigmoid(ta.tanh(x)).sum(axis=1) + ta.sqrt(ta.exp(x)).mean(axis=1),
        lambda x: ta.einsum("ij,kj->ik", x, x).split(2)[1] + ta.take_along_axis(x, np.array([[2, 1]]), axis=1),
        lambda x: ta.cross_entropy(x, [2, 0]) * ta.gelu(x) + ta.clip(x, 0.2, 0.6),
        lambda x: (x.expand_dims(0) * x.expand_dims(1)).sum(axis=(0, 2)) - ta.abs(x).sum(),
    ],
)
def test_the_cells_of_any_operation_can_be_looked_into(show, function):
    x = ta.Tensor(np.random.default_rng(2).normal(size=(2, 3)) ** 2 + 0.1, requires_grad=True, name="x")
    page = explain((function(x) * 1.5).sum().named("loss"), precision=7)
    assert check_worked_cells(show(page), read(page)) > 6


def test_autograd_and_finite_differences_agree_in_every_cell_of_the_backward_pass(show, page):
    view, data = show(page), read(page)
    compared = 0
    for step in data["steps"]:
        checks = view.evaluate(
            """() => [...document.querySelectorAll(".stage .result td[data-flat]")].map((cell) => {
                cell.focus();
                return [...document.querySelectorAll(".check :is(.auto, .finite, .agrees)")].map((e) => e.textContent);
            })"""
        )
        if "check" in step:
            for auto, finite, verdict in checks:
                assert as_number(auto) == pytest.approx(as_number(finite), abs=2e-4)
                assert verdict == "✓ agrees"
                compared += 1
        press(view, "Escape", "ArrowRight")
    assert compared > 80


def test_a_wrong_gradient_is_seen_to_differ(show, monkeypatch):
    monkeypatch.setattr(ta.PRIMITIVES["tanh"], "by_position", (lambda g, out, x: g * (1 - out),))
    x = ta.Tensor(np.array([0.3, -0.7]), requires_grad=True, name="x")
    view = show(explain(ta.tanh(x).sum().named("loss")))
    press(view, "End", "Enter")
    assert "differs" in view.locator(".check .differs").inner_text()


def test_the_page_answers_why_dscores_is_zero_above_the_diagonal_and_why_its_rows_sum_to_zero(show, page):
    data = read(page)
    name = {s["tensor"]: i + 1 for i, s in enumerate(data["steps"])}
    step = {t["name"]: name[i] for i, t in enumerate(data["tensors"]) if i in name}
    view = show(page, f"#step={step['dscores']}&cell=0,2")
    assert "its gradient is exactly 0" in view.locator(".say").inner_text()
    assert "masked" in view.locator(".cell .why").inner_text()
    assert view.locator(".result td.hatched").count() == 3
    assert as_number(view.locator(".row-sum").inner_text()) == 0
    view = show(page, f"#step={step['dmasked']}&cell=2,1")
    assert "every row sums to 0" in view.locator(".say").inner_text()
    assert as_number(view.locator(".row-sum").inner_text()) == 0


def test_a_large_matrix_is_a_heat_map_with_a_table_behind_it(show, batched):
    data = read(batched)
    step = next(i for i, s in enumerate(data["steps"]) if data["tensors"][s["tensor"]]["name"] == "x")
    view = show(batched, f"#step={step + 1}")
    view.locator(".result canvas").hover()
    assert view.locator(".cell .working").count()
    view.locator(".result summary").click()
    view.locator(".result table.plain").wait_for()
    assert view.locator(".result table.plain td:not(.corner)").count() == 3 * 16
    assert "96 numbers" in view.locator(".result .statistics").inner_text()


def test_too_many_numbers_are_summarised(show):
    x = ta.Tensor(np.linspace(-1, 3, 600), requires_grad=True, name="x")
    view = show(explain((x * x).sum(), max_values=500))
    assert "600 numbers: min −1.000, mean 1.000, max 3.000" in view.locator(".result .summary").inner_text()
    press(view, "End")
    assert at(view) == "dx"


# --------------------------------------------------------------------------------------- moving about


def test_keys_move_through_time(show, page):
    view, data = show(page), read(page)
    names = [data["tensors"][s["tensor"]]["name"] for s in data["steps"]]
    for keys, expected in (
        (["ArrowRight"], names[1]),
        (["j"], names[2]),
        (["ArrowLeft", "k"], names[0]),
        (["End"], names[-1]),
        (["ArrowRight"], names[-1]),
        (["Home"], names[0]),
        (["ArrowLeft"], names[0]),
    ):
        press(view, *keys)
        assert at(view) == expected


def test_b_goes_from_a_tensor_to_its_gradient_and_back_and_keeps_the_cell(show, page):
    view = show(page, "#step=3&cell=2,1")
    assert at(view) == "Q"
    press(view, "b")
    assert at(view) == "dQ"
    assert view.evaluate("location.hash").endswith("cell=2,1")
    assert view.locator(".matrix td.selected").count() == 2  # the cell and its twin
    press(view, "b")
    assert at(view) == "Q"


def test_search_finds_a_name_and_enter_goes_there(show, page):
    view = show(page)
    press(view, "/")
    view.keyboard.type("dscor")
    press(view, "Enter")
    assert at(view) == "dscores"
    press(view, "/")
    view.keyboard.type("no such tensor")
    assert "No tensor" in view.locator(".search").inner_text()
    press(view, "Escape")
    assert at(view) == "dscores"


def test_the_address_remembers_step_and_cell(show, page):
    view = show(page)
    press(view, "End")
    view.locator(".result td[data-flat='3']").click()
    fragment = view.evaluate("location.hash")
    assert fragment == f"#step={len(read(page)['steps'])}&cell=1,1"
    again = show(page, fragment)
    assert at(again) == at(view)
    assert again.locator(".result td.selected").get_attribute("data-flat") == "3"
    for nonsense in ("#step=999", "#step=-1", "#step=x&cell=9,9", "#cell=,"):
        view.evaluate(f"location.hash = '{nonsense}'")
        assert view.locator(".card h2").count() == 1


def test_space_plays_and_pauses(show, page):
    view = show(page)
    view.locator(".transport select").select_option("4")
    view.locator(".card").focus()
    press(view, " ")
    until(view, "document.querySelector('input[type=range]').value >= 2")
    press(view, " ")
    stopped = view.locator("input[type=range]").input_value()
    view.wait_for_timeout(900)
    assert view.locator("input[type=range]").input_value() == stopped


def test_the_timeline_goes_where_one_points(show, page):
    view, count = show(page), len(read(page)["steps"])
    box = view.locator(".track").bounding_box()
    view.mouse.click(box["x"] + box["width"] * 0.999, box["y"] + 5)
    assert view.locator("input[type=range]").input_value() == str(count - 1)
    assert view.locator(".segment.now").count() == 1


def test_a_name_in_a_formula_leads_to_its_tensor(show, page):
    view = show(page, "#step=3")
    view.locator(".formula .symbol", has_text="W_Q").hover()
    assert view.locator(".ladder .node.lit").count() == 1
    view.locator(".formula .symbol", has_text="W_Q").click()
    assert at(view) == "W_Q"


def test_a_click_on_the_graph_goes_there(show, page):
    view = show(page)
    view.locator(".ladder .node[aria-label=dQ]").click()
    assert at(view) == "dQ"
    assert view.locator(".ladder .node.current").get_attribute("aria-label") == "dQ"
    assert view.locator(".ladder .node[aria-label=dW_Q].ahead").count() == 1
    assert view.locator(".ladder .node[aria-label=dscores].ahead").count() == 0


def test_the_graph_zooms_pans_and_fits(show, page):
    view = show(page)
    svg = view.locator(".ladder svg")
    home = svg.get_attribute("viewBox")
    view.locator("[data-action=zoomIn]").click()
    zoomed = svg.get_attribute("viewBox")
    box = svg.bounding_box()
    view.mouse.move(box["x"] + 20, box["y"] + 200)
    view.mouse.down()
    view.mouse.move(box["x"] + 90, box["y"] + 240, steps=4)
    view.mouse.up()
    assert len({home, zoomed, svg.get_attribute("viewBox")}) == 3
    press(view, "f")
    assert svg.get_attribute("viewBox") == home


def test_hovering_lights_row_and_column_of_a_product_and_the_row_of_a_softmax(show, page):
    data = read(page)
    step = {data["tensors"][s["tensor"]]["name"]: i + 1 for i, s in enumerate(data["steps"])}

    view = show(page)

    def lit(name, flat):
        view.evaluate(f"location.hash = '#step={step[name]}'")
        until(view, f"document.querySelector('.card h2 .name').textContent == '{name}'")
        view.locator(f".result td[data-flat='{flat}']").hover()
        return view.evaluate(
            """() => Object.fromEntries([...document.querySelectorAll(".stage .matrix")].map((matrix) => [
               matrix.querySelector(".name").textContent,
               [...matrix.querySelectorAll("td.lit")].map((cell) => +cell.dataset.flat)]))"""
        )

    assert lit("Q", 3) == {"X": [2, 3], "W_Q": [1, 3], "Q": []}
    assert lit("weights", 7) == {"masked": [6, 7, 8], "weights": []}
    assert lit("masked", 1) == {"scores": [], "mask": [1], "masked": []}
    assert lit("dmasked", 7) == {"weights": [6, 7, 8], "dweights": [6, 7, 8], "masked": [], "dmasked": []}
    assert lit("dX₁₊₂", 2) == {"dX₁": [2], "dX₂": [2], "dX₁₊₂": [], "X": []}


# ------------------------------------------------------------------------------ axes, slices and modules


def test_axes_have_names_and_tokens(show, page, batched):
    def facts(view):
        return view.locator(".card h2 small").inner_text().split("shape ")[1], view.locator(
            ".result th"
        ).all_inner_texts()

    tensors = {name: i + 1 for i, name in enumerate(names_of_steps(page))}
    view = show(page, f"#step={tensors['weights']}")
    assert facts(view) == ("(query 3, key 3)", TOKENS * 2)
    press(view, "b")
    assert facts(view) == ("(query 3, key 3)", TOKENS * 2)
    assert facts(show(page, f"#step={tensors['Q']}")) == ("(T 3, d_k 2)", ["0", "1", *TOKENS])
    assert facts(show(page, f"#step={tensors['Kᵀ']}")) == ("(d_k 2, T 3)", [*TOKENS, "0", "1"])
    view = show(batched, f"#step={names_of_steps(batched).index('Q') + 1}")
    assert facts(view)[0].startswith("(batch 2, head 2, T 3, d_k 8)")


def test_axes_can_be_named(show):
    hidden = ta.Tensor(np.ones((2, 3)), requires_grad=True, name="H")
    view = show(explain(hidden.sum(), axes={"H": ("T", "d_ff")}))
    assert "(T 2, d_ff 3)" in view.locator(".card h2").inner_text()


def test_the_slicer_shows_one_sample_and_head_of_all_matrices(show, batched):
    data = read(batched)
    i, tensor = next(
        (i, data["tensors"][s["tensor"]])
        for i, s in enumerate(data["steps"])
        if data["tensors"][s["tensor"]]["name"] == "weights"
    )
    view = show(batched, f"#step={i + 1}")
    for batch, head in ((0, 0), (0, 1), (1, 0), (1, 1)):
        view.locator(".slicer select").nth(0).select_option(str(batch))
        view.locator(".slicer select").nth(1).select_option(str(head))
        cells = view.locator(".result td[data-flat] > span:first-child").all_inner_texts()
        np.testing.assert_allclose([as_number(c) for c in cells], numbers(tensor)[batch, head].ravel(), atol=5.1e-4)
    assert view.locator(".slicer label").all_inner_texts()[0].startswith("batch")


def test_a_linked_cell_opens_its_slice(show, batched):
    data = read(batched)
    i = next(i for i, s in enumerate(data["steps"]) if data["tensors"][s["tensor"]]["name"] == "weights")
    view = show(batched, f"#step={i + 1}&cell=1,1,2,0")
    assert [view.locator(".slicer select").nth(n).input_value() for n in (0, 1)] == ["1", "1"]
    assert view.locator(".result td.selected").count() == 1


def test_modules_collapse_and_open_and_a_collapsed_one_is_one_stop(show, batched):
    view = show(batched)
    opened = view.locator(".ladder .node").count()

    def stops():
        press(view, "Home")
        count = 1
        while view.locator("input[type=range]").input_value() != view.locator("input[type=range]").get_attribute("max"):
            press(view, "ArrowRight")
            count += 1
        return count

    all_stops = stops()
    press(view, "c")
    assert view.locator(".ladder .node").count() != opened
    assert stops() != all_stops
    press(view, "c")
    assert view.locator(".ladder .node").count() == opened


def test_shift_and_arrow_leave_the_module(show, batched):
    data = read(batched)
    view = show(batched)
    first = data["tensors"][data["steps"][0]["tensor"]]["module"]
    press(view, "Shift+ArrowRight")
    here = int(view.locator("input[type=range]").input_value())
    assert data["tensors"][data["steps"][here]["tensor"]]["module"] != first
    assert here == 1 or data["tensors"][data["steps"][here - 1]["tensor"]]["module"] == first
    press(view, "Shift+ArrowLeft")
    assert int(view.locator("input[type=range]").input_value()) < here


# ---------------------------------------------------------------------------------------- badges, languages


def test_a_badge_says_why_there_is_no_gradient(show):
    x = ta.Tensor(np.ones((2, 2)), requires_grad=True, name="x")
    y = (x * 2).named("y")
    constant = ta.Tensor(np.ones((2, 2)), name="c")
    loss = (y * y.detach().named("cut") + constant).masked_fill(np.ones((2, 2), bool), 0).sum().named("loss")
    page = explain(loss)
    data = read(page)
    view = show(page)
    badges = {}
    for _ in data["steps"]:
        badge = view.locator(".badge:not(.later)")
        badges[at(view)] = badge.inner_text() if badge.count() else ""
        press(view, "ArrowRight")
    assert "constant" in badges["c"]
    assert "detached" in badges["cut"]
    assert badges["x"] == badges["y"] == ""
    assert "masked" in badges["dadd"]


def test_before_its_step_a_gradient_is_not_there_yet(show, page):
    view = show(page, "#step=3")
    assert "No gradient yet" in view.locator(".badge.later").inner_text()
    view.locator(".badge button").click()
    assert at(view) == "dQ"


def test_both_languages_have_every_string(show, page):
    view = show(page)
    keys = view.evaluate(f"(() => {{ {resource('strings.js')}; return Object.values(STRINGS).map(Object.keys); }})()")
    assert sorted(keys[0]) == sorted(keys[1])
    texts = view.evaluate(f"(() => {{ {resource('strings.js')}; return STRINGS; }})()")
    for key, english in texts["en"].items():
        assert sorted(re.findall(r"\{\w+\}", english)) == sorted(re.findall(r"\{\w+\}", texts["zh"][key])), key


def test_no_step_shows_the_key_of_a_missing_string(show, page):
    view = show(page)
    for lane in ("forward", "前向"):
        assert lane in view.locator(".labels").inner_text()
        for _ in read(page)["steps"]:
            assert not re.search(
                r"\b(say|kind|role|why|help|check|scale)_?[A-Z_]\w+", view.locator("body").inner_text()
            )
            press(view, "ArrowRight")
        view.locator("[data-action=language]").click()
        press(view, "Home")


def test_a_chinese_page_opens_in_chinese(show):
    x = ta.Tensor(np.ones(2), requires_grad=True, name="x")
    view = show(explain((x * x).sum(), language="zh"))
    assert view.locator("html").get_attribute("lang") == "zh-Hans"
    assert "共" in view.locator(".card h2").inner_text()


# -------------------------------------------------------------------------------------- safety, notebooks


def test_hostile_names_and_tokens_show_literally_and_do_not_run(show):
    x = ta.Tensor(np.ones((3, 2)), requires_grad=True, name=HOSTILE[0])
    y = (x * x).named(HOSTILE[2])
    page = explain(y.sum().named(HOSTILE[1]), tokens=HOSTILE, axes={HOSTILE[0]: ("T", HOSTILE[1])}, title=HOSTILE[0])
    view = show(page)
    assert view.locator(".title").inner_text() == HOSTILE[0]
    assert at(view) == HOSTILE[0]
    assert view.locator(".result tbody th").all_text_contents() == HOSTILE
    for _ in read(page)["steps"]:
        assert view.evaluate("window.hacked") is None
        assert view.locator("img, .stage script").count() == 0
        press(view, "ArrowRight")
    assert HOSTILE[2] in view.locator(".ladder text").all_text_contents()


def test_two_pages_in_one_notebook_do_not_collide(show, page):
    frames = page._repr_html_() + explain(attention(seed=1)[0], title="the other")._repr_html_()
    view = show(f"<!DOCTYPE html><title>notebook</title><meta charset=utf-8><body>{frames}")
    first, second = (view.frame_locator("iframe").nth(i) for i in (0, 1))
    assert first.locator(".title").inner_text() == "attention of 3 tokens"
    assert second.locator(".title").inner_text() == "the other"
    first.locator("[data-action=forward]").click()
    assert first.locator("input[type=range]").input_value() == "1"
    assert second.locator("input[type=range]").input_value() == "0"


def test_a_foreign_script_does_not_run(show, page):
    foreign = "<script>window.hacked = 1</script><b onclick='window.hacked = 1'>x</b>"
    view = show(page.html.replace("</header>", f"</header>{foreign}"))
    view.locator("header ~ b").dispatch_event("click")
    assert view.evaluate("window.hacked") is None
    assert len(show.troubles) == 2 and all("Content Security Policy" in t for t in show.troubles)
    show.troubles.clear()


def test_without_dot_the_graph_is_a_list(show, monkeypatch):
    monkeypatch.setattr("tinygrad_attn.viz.drawing.layout_program", no_program)
    loss, leaves = attention()
    view = show(explain(loss, names=leaves))
    assert "Graphviz" in view.locator(".listed p").inner_text()
    view.locator(".listed button", has_text=re.compile("^dQ$")).click()
    assert at(view) == "dQ"


def no_program():
    from tinygrad_attn.viz.drawing import DotNotFound

    raise DotNotFound


# ------------------------------------------------------------------------------------------ for everyone


def test_the_keyboard_reaches_every_button_and_the_cells(show, page):
    view = show(page, "#step=3")
    reached = set()
    for _ in range(60):
        press(view, "Tab")
        reached.add(view.evaluate("document.activeElement.dataset.action ?? document.activeElement.tagName"))
    assert {
        "twin",
        "search",
        "language",
        "theme",
        "print",
        "help",
        "back",
        "play",
        "forward",
        "fit",
        "INPUT",
        "TD",
    } <= reached
    view.locator(".card").focus()
    press(view, "Enter", "ArrowDown", "ArrowRight")
    assert view.evaluate("location.hash") == "#step=3&cell=1,1"
    assert at(view) == "Q"
    press(view, "Escape", "ArrowRight")
    assert at(view) != "Q"


def test_each_step_is_spoken(show, page):
    view = show(page)
    press(view, "ArrowRight", "ArrowRight")
    sentence = view.locator("[role=status]").inner_text()
    assert "Q" in sentence and sentence == view.locator("input[type=range]").get_attribute("aria-valuetext")


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_wider_than_the_window(show, page, batched, width, scheme):
    for each in (page, batched):
        view = show(each, width=width, height=800, color_scheme=scheme)
        for _ in range(0, len(read(each)["steps"]), 5):
            assert view.evaluate("document.documentElement.scrollWidth") <= width
            press(view, *["ArrowRight"] * 5)
        assert view.locator("html").get_attribute("data-theme") == scheme


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_axe_finds_no_barrier(show, page, batched, width, scheme):
    script = os.environ.get("AXE_CORE_JS")
    if script is None:
        if not find_spec("axe_playwright_python"):
            missing("axe-core is not installed: pip install axe-playwright-python, or name axe.min.js in AXE_CORE_JS")
        script = Path(find_spec("axe_playwright_python").origin).parent / "axe.min.js"
    source = Path(script).read_text(encoding="utf-8")
    for each in (page, batched):
        view = show(each, width=width, color_scheme=scheme)
        view.evaluate(source)
        steps = len(read(each)["steps"])
        for i in range(0, steps, steps // 3):
            view.evaluate(f"location.hash = '#step={i + 1}&cell=0,0'")
            until(view, f"document.querySelector('input[type=range]').value == '{i}'")
            found = view.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
            assert not found, json.dumps(
                [[v["id"], [n["html"][:200] + n["failureSummary"] for n in v["nodes"][:3]]] for v in found], indent=1
            )


def test_the_handout_prints_every_step(show, page):
    view = show(page)
    view.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert view.locator(".handout article").count() == len(read(page)["steps"])
    view.emulate_media(media="print")
    assert not view.locator(".tools").is_visible()
    assert view.locator(".handout article").first.is_visible()
    view.evaluate("dispatchEvent(new Event('afterprint'))")
    assert view.locator(".handout article").count() == 0
