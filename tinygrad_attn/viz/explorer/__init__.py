"""The step player: one HTML page that plays a computation forward, value by value, and backward, gradient by gradient.

Python writes the data (`data.py`) and puts it, with the style sheet and the scripts beside this file, into `page.html`.
The page needs no network and no build step; a content-security policy forbids both requests and foreign scripts.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..backward import Backward, trace_backward
from ..dot import DEFAULTS, Options, ladder_picture
from ..drawing import DotNotFound, Drawing, LayoutTimeout, write
from ..trace import trace
from .data import Collector

SCRIPTS = ("strings.js", "cells.js", "axes.js", "matrix.js", "ladder.js", "timeline.js", "card.js", "player.js")
LANGUAGES = ("en", "zh")
LARGE = 50  # boxes: a larger drawing is not what the page opens with
LONGEST = 10.0  # seconds for the layout of one drawing
RATIO = "1.05"  # height to width of the pane that shows a drawing, whose space the rows then use
BARE = Options(legend=False, show_shapes=False, show_formulas=False, max_nodes=None)
LARGEST = 400  # boxes: a larger drawing is left out where a collapsed one shows the whole


class Page:
    """A finished page: `.html` is its text, `.save(path)` writes it; a notebook shows it in a sandboxed frame."""

    def __init__(self, text: str) -> None:
        self.html = text

    def __repr__(self) -> str:
        return f"<step player, {len(self.html.encode()) / 1e3:,.0f} kB of HTML; .save('page.html') writes it>"

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page, complete or not at all, and return where."""
        target = Path(path)
        write(target, self.html.encode())
        return target

    def _repr_html_(self) -> str:
        frame = 'sandbox="allow-scripts allow-modals" style="width: 100%; height: 46rem; border: 1px solid #8884"'
        return f'<iframe title="step player" {frame} srcdoc="{html.escape(self.html)}"></iframe>'


def explain(
    loss: Any,
    path: str | os.PathLike[str] | None = None,
    *,
    wrt: Any = None,
    names: Any = None,
    tokens: Sequence[str] | None = None,
    axes: Mapping[str, Sequence[str]] | None = None,
    title: str | None = None,
    language: str | None = None,
    precision: int = 3,
    depth: int | None = None,
    max_nodes: int | None = 400,
    max_values: int = 4096,
) -> Page:
    """The page that plays the computation of `loss` and its gradients step by step.

    Args:
        loss: a single number that was computed with gradients on; its graph is kept and no `.grad` is touched.
        path: where to write the page; left out, nothing is written, and a notebook shows what is returned.
        wrt, names: as in `draw_backward`: whose gradients are wanted (default: every leaf), and further names.
        tokens: the text of each position; stands on the axes called T, query and key.
        axes: names of axes by the name of the tensor, such as `{"H": ("T", "d_ff")}`, beside those of attention.
        title: the heading; by default the name of the loss.
        language: "en" or "zh"; by default the reader's browser decides.
        precision: decimals of the numbers in the matrices.
        depth: down to which depth module calls are open at first; by default as far as the drawing stays readable.
        max_nodes: a graph of more values is refused, because its page would crawl; None for no limit.
        max_values: a tensor of more numbers is summarised by its range and a histogram.

    Raises:
        ValueError: the loss is not a single number, or the graph is too large.
        RuntimeError: the loss does not depend on anything that requires gradients.

    >>> x = ta.Tensor([[1.0, 2.0]], requires_grad=True, name="X")
    >>> page = ta.viz.explain((x * x).sum().named("loss"))
    >>> page.html.startswith("<!DOCTYPE html>")
    True
    """
    if language is not None and language not in LANGUAGES:
        raise ValueError(f"explain: language is one of {LANGUAGES} or None, not {language!r}")
    count = len(trace(loss).nodes)
    if max_nodes is not None and count > max_nodes:
        raise ValueError(
            f"explain: {count:,} values are too many to step through (max_nodes={max_nodes}). Explain a smaller input,"
            " fewer layers or a part of the graph (one block), or draw it collapsed: draw_backward(..., depth=1)"
        )
    backward = trace_backward(loss, wrt, names=names)
    if not backward.steps:
        raise RuntimeError(
            "explain: the loss does not depend on anything that requires gradients, so there is no backward pass to"
            " play; create a leaf with requires_grad=True, and check that it was not computed under no_grad()"
        )
    lengths = {n for node in backward.forward.nodes for n in getattr(node.tensor, "shape", ())}
    if tokens is not None and len(tokens) not in lengths:
        raise ValueError(f"explain: {len(tokens)} tokens, but no value has an axis of that length")
    collected = Collector(backward, max_values)
    loss_node = backward.forward.nodes[backward.forward.outputs[0]]
    data = {
        "title": title or loss_node.name,
        "loss": collected.number[id(loss_node.tensor)],
        "precision": precision,
        "language": language,
        "tokens": None if tokens is None else [str(token) for token in tokens],
        "axes": {name: list(names) for name, names in (axes or {}).items()},
        "modules": [asdict(module) for module in backward.forward.modules],
        "tensors": collected.tensors,
        "steps": collected.steps,
        **drawings(backward, depth),
    }
    page = Page(fill(data))
    if path is not None:
        page.save(path)
    return page


def drawings(backward: Backward, depth: int | None) -> dict[str, Any]:
    """The ladder at each depth of modules, from collapsed to open, and which of them is shown first."""
    ladders: list[str] = []
    level = 0
    deepest = max((len(module.chain) for module in backward.forward.modules), default=0)
    for limit in [*range(1, deepest), None]:
        picture = ladder_picture(backward, DEFAULTS | BARE | Options(depth=limit))
        picture.attributes["ratio"] = RATIO
        picture.attributes.pop("label", None)  # remarks for a picture that stands alone
        for box in picture.boxes:
            box.tooltip = ""  # the page says more
        if len(picture.boxes) > LARGEST and ladders:
            break
        try:
            ladders.append(Drawing(picture.text(), timeout=LONGEST).pipe("svg", encoding="utf-8"))
        except (DotNotFound, LayoutTimeout):
            break
        if (limit or deepest) <= depth if depth is not None else len(picture.boxes) <= LARGE:
            level = len(ladders) - 1
    return {"ladders": ladders or [None], "level": level}


def fill(data: dict[str, Any]) -> str:
    """The template with its style, its scripts and the data in place."""
    script = "\n".join(map(resource, SCRIPTS))  # as one: modules cannot be loaded from a file on disk
    parts = {
        "title": html.escape(data["title"]),
        "style": resource("style.css"),
        "script": script,
        "script_hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        "data": as_json(data),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], resource("page.html"))


def as_json(data: Any) -> str:
    """JSON that can stand in HTML: nothing in it can end the script element, open a tag or break a line."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return re.sub("[<>&\u2028\u2029]", lambda match: f"\\u{ord(match[0]):04x}", text)


@cache
def resource(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
