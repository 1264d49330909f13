"""Attention weights as heat maps: who looks at whom, one panel per head, one colour scale from 0 to 1.

Rows are queries (who looks), columns are keys (who is looked at). A cell that is exactly 0 was blocked, since
softmax gives nothing else a weight of 0: it is hatched, so that "blocked" and "very little" never look alike.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_LABELS = 64  # per axis; more cannot be read
MAX_NUMBERS = 12  # rows and columns up to which the cells carry their numbers
MAX_LABEL_LENGTH = 16


def attention_heatmap(
    weights: Any,
    tokens: Sequence[str] | None = None,
    key_tokens: Sequence[str] | None = None,
    *,
    mask: Any = None,
    titles: Sequence[str] | None = None,
    precision: int = 2,
) -> Figure:
    """Draw attention weights of shape (Tq, Tk), or (H, Tq, Tk) for H heads, as a matplotlib Figure.

    `tokens` label the queries (rows) and, unless `key_tokens` are given, the keys (columns). Any Unicode is
    readable: a font that has the glyph is picked from those installed, else the code point is shown (U+4F60);
    white space appears as ␣, \\n, \\t and an empty token as "". `mask` (True = blocked) marks blocked cells;
    without it they are the cells that are exactly 0. Numbers are written into matrices up to 12 x 12.
    `titles` name the heads.

    Raises ValueError if the shape is no attention matrix or the number of tokens does not fit it.

    >>> fig = attention_heatmap([[1.0, 0.0], [0.4, 0.6]], ["她", "妈妈"])
    >>> [label.get_text() for label in fig.axes[0].get_yticklabels()]
    ['她', '妈妈']
    """
    from matplotlib.figure import Figure

    w = np.asarray(getattr(weights, "data", weights) if hasattr(weights, "requires_grad") else weights, dtype=float)
    shape = w.shape
    if w.ndim == 4 and shape[0] == 1:
        w = w[0]
    if w.ndim == 2:
        w = w[None]
    if w.ndim != 3 or w.size == 0:
        raise ValueError(f"attention weights are (Tq, Tk) or (heads, Tq, Tk), got {shape}; pick one sample of a batch")
    heads, Tq, Tk = w.shape
    rows = _labels(tokens, Tq, "queries (rows)", "tokens")
    columns = _labels(tokens if key_tokens is None else key_tokens, Tk, "keys (columns)", "key_tokens")
    blocked = np.broadcast_to(w == 0 if mask is None else np.asarray(mask, dtype=bool), w.shape)
    if titles is not None and len(titles) != heads:
        raise ValueError(f"{heads} heads need as many titles, got {len(titles)}")

    across = min(heads, 4)
    down = math.ceil(heads / across)
    width, height = (min(max(1.1 + 0.42 * n, 2.4), 9 / (across + 1) * 2) for n in (Tk, Tq))  # inches
    fig = Figure(figsize=(across * width + 0.9, down * height + 0.5), layout="constrained", dpi=120)
    panels = fig.subplots(down, across, squeeze=False).ravel()
    for panel in panels[heads:]:
        panel.remove()
    for h in range(heads):
        image = _panel(panels[h], w[h], blocked[h], rows, columns, precision)
        title = titles[h] if titles is not None else f"head {h}" if heads > 1 else ""
        panels[h].set_title(title, fontsize=10, parse_math=False, fontfamily=_families(title))
        panels[h].set_xlabel("key: who is looked at", fontsize=9)
    for panel in panels[:heads:across]:
        panel.set_ylabel("query: who looks", fontsize=9)
    bar = fig.colorbar(image, ax=list(panels[:heads]), shrink=0.9, ticks=[0, 0.25, 0.5, 0.75, 1])
    mark = "hatched" if max(Tq, Tk) <= MAX_LABELS else "grey"
    bar.set_label("attention weight" + (f"   ({mark}: blocked)" if blocked.any() else ""), fontsize=9)
    bar.ax.tick_params(labelsize=8)
    return fig


def _panel(ax: Axes, w: np.ndarray, blocked: np.ndarray, rows: list[str], columns: list[str], precision: int) -> Any:
    from matplotlib import colormaps
    from matplotlib.collections import PatchCollection
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Rectangle

    image = ax.imshow(w, cmap=colormaps["Blues"].with_extremes(bad="#f4b183"), vmin=0, vmax=1, aspect="auto")
    hidden = np.ma.masked_array(np.zeros(w.shape), ~blocked)
    ax.imshow(hidden, cmap=ListedColormap(["#e4e4e4"]), aspect="auto")
    if max(w.shape) <= MAX_LABELS:
        cells = [Rectangle((j - 0.5, i - 0.5), 1, 1) for i, j in np.argwhere(blocked)]
        hatch = PatchCollection(cells, facecolor="none", edgecolor="#b0b0b0", hatch="////", linewidth=0)
        ax.add_collection(hatch, autolim=False)
    if max(w.shape) <= MAX_NUMBERS:
        for (i, j), value in np.ndenumerate(w):
            if not blocked[i, j]:
                text = "NaN" if np.isnan(value) else f"{value:.{precision}f}"
                color = "white" if value > 0.6 else "#222222"
                ax.text(j, i, text, ha="center", va="center", fontsize=8, color=color)
    ax.set_xlim(-0.5, w.shape[1] - 0.5)
    ax.set_ylim(w.shape[0] - 0.5, -0.5)
    for axis, labels in ((ax.xaxis, columns), (ax.yaxis, rows)):
        shown = np.unique(np.linspace(0, len(labels) - 1, min(len(labels), MAX_LABELS)).round().astype(int))
        axis.set_ticks(shown.tolist())
        size = 9 if len(shown) <= 24 else 5
        # one list of fonts for all labels: matplotlib takes each character from the first that has it
        families = _families("".join(labels[i] for i in shown))
        axis.set_ticklabels([labels[i] for i in shown], fontsize=size, fontfamily=families, parse_math=False)
    if max((len(label) for label in columns), default=0) > 2 or len(columns) > 24:
        ax.tick_params(axis="x", labelrotation=90)
    ax.tick_params(length=0)
    return image


def _labels(tokens: Sequence[str] | None, n: int, what: str, argument: str) -> list[str]:
    if tokens is None:
        return [str(i) for i in range(n)]
    if len(tokens) != n:
        raise ValueError(f"the weights have {n} {what}, but {argument} has {len(tokens)} labels")
    return [_visible(str(token)) for token in tokens]


def _visible(token: str) -> str:
    """The token with nothing invisible in it, and with code points for glyphs that no installed font has."""
    if token == "":
        return '""'
    text = "".join("␣" if c == " " else c if c.isprintable() else c.encode("unicode_escape").decode() for c in token)
    text = text if len(text) <= MAX_LABEL_LENGTH else text[: MAX_LABEL_LENGTH - 1] + "…"
    return "".join(c if _font_with(c) else f"U+{ord(c):04X}" for c in text)


def _families(text: str) -> list[str]:
    """The fonts that `text` needs, the default one first."""
    return list(dict.fromkeys(["DejaVu Sans", *(font for c in text if (font := _font_with(c)))]))


@functools.cache
def _font_with(character: str) -> str | None:
    """The family of an installed font that can draw the character, a sans serif if there is one."""
    from matplotlib.font_manager import findfont, findSystemFonts, fontManager

    if _has_glyph(findfont("DejaVu Sans"), character):  # comes with matplotlib
        return "DejaVu Sans"
    known = {entry.fname for entry in fontManager.ttflist}
    for path in sorted(set(findSystemFonts()) - known):  # installed after matplotlib made its list
        try:
            fontManager.addfont(path)
        except (OSError, RuntimeError):
            continue
    upright = {e.name: e.fname for e in fontManager.ttflist if e.style == "normal" and e.weight in (400, "normal")}
    by_taste = sorted(upright, key=lambda name: ("Sans" not in name, "Mono" in name, name))
    return next((name for name in by_taste if _has_glyph(upright[name], character)), None)


def _has_glyph(path: str, character: str) -> bool:
    from matplotlib.ft2font import FT2Font

    try:
        font = FT2Font(path)
    except (OSError, RuntimeError):
        return False
    return font.scalable and font.get_char_index(ord(character)) != 0  # bitmap emoji cannot be drawn
