"""Attention weights as heat maps: who looks at whom, one panel per head, one colour scale from 0 to 1.

Rows are queries (who looks), columns are keys (who is looked at). A cell that is exactly 0 was blocked, since
softmax gives nothing else a weight of 0: it is hatched, so that "blocked" and "very little" never look alike.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..tensor import Tensor

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

    given = weights.data if isinstance(weights, Tensor) else weights
    w = np.asarray(given, dtype=float)
    w = w[0] if w.ndim == 4 and len(w) == 1 else w[None] if w.ndim == 2 else w
    if w.ndim != 3 or w.size == 0:
        shape = np.shape(given)
        raise ValueError(f"attention weights are (Tq, Tk) or (heads, Tq, Tk), got {shape}; pick one sample of a batch")
    heads, Tq, Tk = w.shape
    rows = _labels(tokens, Tq, "queries (rows)", "tokens")
    columns = _labels(tokens if key_tokens is None else key_tokens, Tk, "keys (columns)", "key_tokens")
    blocked = np.broadcast_to(w == 0 if mask is None else np.asarray(mask, dtype=bool), w.shape)
    if titles is None:
        titles = [f"head {h}" for h in range(heads)] if heads > 1 else [""]
    if len(titles) != heads:
        raise ValueError(f"{heads} heads need as many titles, got {len(titles)}")

    across = min(heads, 4)
    down = math.ceil(heads / across)
    width, height = (min(max(1.1 + 0.42 * n, 2.4), 9 / (across + 1) * 2) for n in (Tk, Tq))  # inches
    fig = Figure(figsize=(across * width + 0.9, down * height + 0.5), layout="constrained", dpi=120)
    panels = fig.subplots(down, across, squeeze=False).ravel()
    for panel in panels[heads:]:
        panel.remove()
    for h, (panel, title) in enumerate(zip(panels, titles)):
        image = _panel(panel, w[h], blocked[h], rows, columns, precision)
        panel.set_title(title, fontsize=10, parse_math=False, fontfamily=_families(title))
        panel.set_xlabel("key: who is looked at", fontsize=9)
        if h % across == 0:
            panel.set_ylabel("query: who looks", fontsize=9)
    bar = fig.colorbar(image, ax=list(panels[:heads]), shrink=0.9, ticks=[0, 0.25, 0.5, 0.75, 1])
    mark = "hatched" if max(Tq, Tk) <= MAX_LABELS else "grey"
    bar.set_label("attention weight" + f"   ({mark}: blocked)" * bool(blocked.any()), fontsize=9)
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
        for i, j in np.argwhere(~blocked):
            text = "NaN" if np.isnan(w[i, j]) else f"{w[i, j]:.{precision}f}"
            ax.text(j, i, text, ha="center", va="center", fontsize=8, color="white" if w[i, j] > 0.6 else "#222222")
    for axis, labels in ((ax.xaxis, columns), (ax.yaxis, rows)):
        shown = np.linspace(0, len(labels) - 1, min(len(labels), MAX_LABELS)).round().astype(int)
        texts = [labels[i] for i in shown]
        # one list of fonts for all labels: matplotlib takes each character from the first that has it
        fonts, size = _families("".join(texts)), 9 if len(shown) <= 24 else 5
        axis.set_ticks(shown.tolist(), texts, fontsize=size, fontfamily=fonts, parse_math=False)
    ax.tick_params(length=0)
    if max(map(len, columns)) > 2 or len(columns) > 24:
        ax.tick_params(axis="x", labelrotation=90)
    return image


def _labels(tokens: Sequence[Any] | None, n: int, what: str, argument: str) -> list[str]:
    tokens = range(n) if tokens is None else tokens
    if len(tokens) != n:
        raise ValueError(f"the weights have {n} {what}, but {argument} has {len(tokens)} labels")
    return [_visible(str(token)) for token in tokens]


def _visible(token: str) -> str:
    """The token with nothing invisible in it, and with code points for glyphs that no installed font has."""
    text = "".join("␣" if c == " " else c if c.isprintable() else c.encode("unicode_escape").decode() for c in token)
    text = text if len(text) <= MAX_LABEL_LENGTH else text[: MAX_LABEL_LENGTH - 1] + "…"
    return "".join(c if _font_with(c) else f"U+{ord(c):04X}" for c in text) or '""'


def _families(text: str) -> list[str]:
    """The fonts that `text` needs, the default one first."""
    return list(dict.fromkeys(["DejaVu Sans", *(font for c in text if (font := _font_with(c)))]))


@functools.cache
def _font_with(character: str) -> str | None:
    """The family of an installed font that can draw the character: the one of matplotlib, else a sans serif."""
    from matplotlib.ft2font import FT2Font

    for name, path in _fonts().items():
        with contextlib.suppress(OSError, RuntimeError):
            font = FT2Font(path)
            if font.scalable and font.get_char_index(ord(character)):  # bitmap emoji cannot be drawn
                return name
    return None


@functools.cache
def _fonts() -> dict[str, str]:
    """The upright fonts by family, the most fitting first, and where their files are."""
    from matplotlib.font_manager import findSystemFonts, fontManager

    for path in sorted(set(findSystemFonts()) - {font.fname for font in fontManager.ttflist}):
        with contextlib.suppress(OSError, RuntimeError):
            fontManager.addfont(path)  # installed after matplotlib made its list
    upright = {f.name: f.fname for f in fontManager.ttflist if f.style == "normal" and f.weight in (400, "normal")}
    by_taste = sorted(upright, key=lambda name: (name != "DejaVu Sans", "Sans" not in name, "Mono" in name, name))
    return {name: upright[name] for name in by_taste}
