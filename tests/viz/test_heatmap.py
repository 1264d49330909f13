"""A heat map shows who looks at whom, in the right place, readable in any language."""

import time
import warnings

import numpy as np
import pytest

import tinygrad_attn as ta
from tinygrad_attn.viz import attention_heatmap

pytest.importorskip("matplotlib", reason="matplotlib is not installed")


def labels(figure, axis="y"):
    ax = figure.axes[0]
    return [t.get_text() for t in (ax.get_yticklabels() if axis == "y" else ax.get_xticklabels())]


def causal(n, heads=1):
    scores = np.random.default_rng(0).standard_normal((heads, n, n))
    return ta.Tensor(scores).masked_fill(~np.tri(n, dtype=bool)).softmax()


def rendered(figure):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure.canvas.draw()


def test_C18_any_token_is_readable_without_warnings():
    figure = attention_heatmap(causal(9), ["你", "好", " ", "\n", "\t", "", "é", "$a_b$", "\U000e0fff"])
    rendered(figure)
    assert len(labels(figure)) == 9
    assert labels(figure)[2:8] == ["␣", "\\n", "\\t", '""', "é", "$a_b$"]
    assert all(text in ("你", "U+4F60") for text in labels(figure)[:1])  # as the installed fonts allow
    assert labels(figure)[8].startswith(("\\U", "U+"))


def test_C18_a_character_that_no_font_has_shows_its_code_point(monkeypatch):
    from tinygrad_attn.viz import heatmap

    monkeypatch.setattr(heatmap, "_font_with", lambda c: "DejaVu Sans" if c.isascii() else None)
    assert heatmap._visible("你") == "U+4F60"


def test_C19_rows_are_queries_and_columns_are_keys():
    W = np.array([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]])
    figure = attention_heatmap(W, ["q0", "q1"], ["k0", "k1", "k2"])
    rendered(figure)
    ax = figure.axes[0]
    assert labels(figure) == ["q0", "q1"] and labels(figure, "x") == ["k0", "k1", "k2"]
    assert list(ax.get_xticks()) == [0, 1, 2] and list(ax.get_yticks()) == [0, 1]
    assert ax.get_ylim()[0] > ax.get_ylim()[1]  # the first row on top
    image = ax.images[0]
    assert np.array_equal(image.get_array(), W)
    assert image.get_clim() == (0, 1)
    assert [t.get_text() for t in ax.texts] == ["0.70", "0.20", "0.10", "0.10", "0.10", "0.80"]


def test_C19_a_wrong_number_of_labels_says_so():
    with pytest.raises(ValueError, match=r"3 queries .*tokens has 2 labels"):
        attention_heatmap(np.eye(3), ["a", "b"])
    with pytest.raises(ValueError, match=r"3 keys .*key_tokens has 2 labels"):
        attention_heatmap(np.eye(3), list("abc"), ["a", "b"])


def test_C19_repeated_labels_not_a_number_and_equal_weights():
    figure = attention_heatmap(np.eye(3), ["a", "b", "a"])
    assert labels(figure, "x") == ["a", "b", "a"]
    with_nan = attention_heatmap([[np.nan, 1.0], [0.5, 0.5]])
    rendered(with_nan)
    assert "NaN" in [t.get_text() for t in with_nan.axes[0].texts]
    assert attention_heatmap(np.full((2, 2), 0.5)).axes[0].images[0].get_clim() == (0, 1)


def test_C20_a_thousand_tokens_are_drawn_in_seconds(tmp_path):
    tokens = ["x" * (1 + i % 12) for i in range(1024)]
    start = time.monotonic()
    figure = attention_heatmap(causal(1024)[0], tokens)
    ta.viz.save(figure, tmp_path / "big.png")
    assert time.monotonic() - start < 30
    assert (tmp_path / "big.png").stat().st_size < 3e6
    ticks = figure.axes[0].get_xticks()
    assert len(ticks) <= 64 and ticks[0] == 0 and ticks[-1] == 1023
    assert max(figure.get_size_inches() * figure.dpi) < 4000


def test_one_panel_per_head_on_one_scale():
    figure = attention_heatmap(causal(3, heads=5), titles=["one", "two", "three", "four", "$5"])
    panels = [ax for ax in figure.axes if ax.get_title()]
    assert [p.get_title() for p in panels] == ["one", "two", "three", "four", "$5"]
    assert {p.images[0].get_clim() for p in panels} == {(0, 1)}
    rendered(figure)


def test_blocked_cells_are_hatched_and_carry_no_number():
    figure = attention_heatmap(causal(3))
    (hatched,) = figure.axes[0].collections
    assert len(hatched.get_paths()) == 3 and hatched.get_hatch()
    assert len(figure.axes[0].texts) == 6
    small = attention_heatmap([[1.0, 0.0], [0.5, 0.5]], mask=[[False, False], [False, True]])
    assert [t.get_text() for t in small.axes[0].texts] == ["1.00", "0.00", "0.50"]


@pytest.mark.parametrize("shape", [(3,), (2, 2, 3, 3), (0, 3)])
def test_what_is_no_attention_matrix_is_refused(shape):
    with pytest.raises(ValueError, match=r"\(Tq, Tk\) or \(heads, Tq, Tk\)"):
        attention_heatmap(np.ones(shape))
