"""Boxes, edges and nested clusters as DOT text that any Graphviz gets right.

Every kind of picture goes through this one vocabulary. A box is called by a short counter in recording order
and all text stands in labels, so nothing that a user calls a tensor can break a picture, and equal graphs
give equal text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

FONT = "Arial"
GREY, BLUE, RED = "#5f6b7a", "#2c4a6e", "#b3261e"

# kind -> (shape, fill, border, explanation); shape, border and word tell kinds apart without colour
STYLES = {
    "parameter": ("rect", "#fff0c9", "#9a6700", "parameter: trained"),
    "leaf": ("tab", "#ffe3d0", "#a84300", "leaf: wants a gradient"),
    "input": ("component", "#e2f2dc", "#2e7d32", "input: no gradient"),
    "constant": ("note", "#eeeeee", "#777777", "constant"),
    "operation": ("box", "#ffffff", BLUE, "operation"),
    "output": ("box", "#dce9fb", BLUE, "output"),
    "module": ("box", "#e9e4f5", "#5b4a91", "module call, collapsed"),
    "gradient": ("box", "#ffffff", RED, "gradient"),
    "sum": ("box", "#fde3e1", RED, "sum of gradients"),
}
CALL = {"style": "rounded,filled", "fillcolor": "#f6f8fb", "color": "#c3cddb", "fontcolor": GREY}
SHORT_TYPES = {"float": "f", "int": "i", "uint": "u"}
Edge = tuple[str, str, dict[str, str]]  # from, to, attributes


@dataclass
class Box:
    """One box: key, HTML label, kind (of STYLES), clusters around it from the outside in, SVG classes."""

    key: str
    label: str
    kind: str
    clusters: tuple[str, ...]
    classes: Iterable[str]
    tooltip: str


@dataclass
class Picture:
    """What is to be laid out; `clusters` gives each its attributes."""

    boxes: list[Box]
    edges: list[Edge]
    clusters: dict[str, dict[str, str]]
    attributes: dict[str, str]
    rows: Iterable[tuple[str, ...]] = ()  # boxes at the same height
    ordered: Iterable[tuple[str, ...]] = ()  # the same, from left to right
    apart: Iterable[tuple[str, str]] = ()  # two boxes whose clusters stand left and right

    def text(self) -> str:
        """The DOT text. Edges stand at top level: inside a cluster they would pull boxes into it."""
        graph = {"fontname": FONT, "fontsize": "11", "newrank": "true", **self.attributes}
        lines = [
            "digraph {",
            _statement("graph", graph),
            _statement("node", {"fontname": FONT, "fontsize": "11", "margin": "0.10,0.05", "height": "0.3"}),
            _statement("edge", {"fontname": FONT, "fontsize": "8", "arrowsize": "0.6", "color": BLUE}),
        ]
        inside: dict[tuple[str, ...], list[Box]] = {(): []}
        for box in self.boxes:
            for depth in range(1, len(box.clusters) + 1):
                inside.setdefault(box.clusters[:depth], [])
            inside[box.clusters].append(box)
        lines += self._cluster((), inside)
        lines += [f"  {{rank=same; {'; '.join(row)}}}" for row in self.rows]
        lines += [f"  {{rank=same; {' -> '.join(row)} [style=invis]}}" for row in self.ordered]
        for left, right in self.apart:  # order between clusters is only kept by what hangs below them
            lines += [f"  {end} [shape=point style=invis width=0 height=0]" for end in ("left", "right")]
            lines += ["  {rank=same; left -> right [style=invis]}"]
            lines += [f"  {a} -> {b} [style=invis weight=0]" for a, b in ((left, "left"), (right, "right"))]
        lines += [_statement(f"{source} -> {target}", attributes) for source, target, attributes in self.edges]
        return "\n".join([*lines, "}\n"])

    def _cluster(self, chain: tuple[str, ...], inside: dict[tuple[str, ...], list[Box]]) -> Iterator[str]:
        yield from (_statement(box.key, _attributes(box)) for box in inside[chain])
        for child in inside:
            if child and child[:-1] == chain:
                yield f"  subgraph cluster_{child[-1]} {{"
                yield _statement("graph", {"labeljust": "l", "labelloc": "t", **self.clusters[child[-1]]})
                yield from self._cluster(child, inside)
                yield "  }"


def _attributes(box: Box) -> dict[str, str]:
    shape, fill, border, _ = STYLES[box.kind]
    style = {"box": "filled,rounded", "note": "filled,dashed"}.get(shape, "filled")
    marks = {"parameter": {"penwidth": "2"}, "output": {"peripheries": "2"}, "module": {"peripheries": "2"}}
    look = {"shape": shape, "style": style, "fillcolor": fill, "color": border, **marks.get(box.kind, {})}
    classes = " ".join((box.kind, *box.classes))
    return {"label": f"<{box.label}>", **look, "class": classes, "tooltip": visible(box.tooltip) or " "}


def _statement(subject: str, attributes: dict[str, str]) -> str:
    inside = " ".join(f"{k}={v if k == 'label' else _quote(v)}" for k, v in attributes.items())
    return f"  {subject} [{inside}]" if inside else f"  {subject}"


def _quote(value: str) -> str:
    """A DOT string in which nothing is read as an escape, an entity or HTML."""
    if re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*|[0-9]+(\.[0-9]+)?", value):
        return value
    for character, escaped in (("\\", "\\\\"), ("&", "&amp;"), ('"', '\\"'), ("\n", "\\n")):
        value = value.replace(character, escaped)
    return f'"{value}"'


# ------------------------------------------------------------------------------------------------ labels


def label(name: str, formula: str, details: Sequence[str] = (), tables: Sequence[str] = ()) -> str:
    """Name in bold, then its formula, then type and remarks in small print, then arrays side by side."""
    text = f"<B>{html(name)}</B>"
    if formula:
        text += ("&#160; " if len(name) + len(formula) < 34 else "<BR/>") + html(formula)
    span = f' COLSPAN="{len(tables)}"' if len(tables) > 1 else ""
    rows = "".join(f"<TR><TD{span}>{row}</TD></TR>" for row in (text, *(small(d) for d in details if d)))
    if tables:
        rows += f"<TR>{''.join(f'<TD>{table}</TD>' for table in tables)}</TR>"
    return f'<TABLE BORDER="0" CELLBORDER="0" CELLSPACING="0" CELLPADDING="1">{rows}</TABLE>'


def html(text: str) -> str:
    """Text that shows as itself: markup and invisible characters escaped, a newline as a new line."""
    shown = escape(visible(text)).replace("\\", "\\\\")  # \\N would be replaced by the box's key
    shown = re.sub(r"^\]", "&#93;", shown, flags=re.M)  # a syntax error to dot 2.43
    return "<BR/>".join(line or "&#160;" for line in shown.split("\n"))


def visible(text: str) -> str:
    """Text in which control characters and such are spelled out."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def small(text: str, color: str = GREY) -> str:
    return f'<FONT POINT-SIZE="9" COLOR="{color}">{html(text)}</FONT>'


def type_of(data: Any) -> str:
    """The short type of an array, or how many arrays there are.

    >>> type_of(np.zeros((3, 2), np.float32))
    'f32[3,2]'
    """
    if isinstance(data, tuple):
        return f"{len(data)} arrays"
    dtype = data.dtype.name
    letters = dtype.rstrip("0123456789")
    return f"{SHORT_TYPES.get(letters, letters)}{dtype[len(letters) :]}[{','.join(map(str, data.shape))}]"


def table(title: str, array: np.ndarray, precision: int) -> str:
    """A small array as a table, a larger one as a line of statistics."""
    rows = array.reshape(-1, array.shape[-1] if array.ndim else 1)
    if array.size == 0 or max(rows.shape) > 6:
        values = [f(array) for f in (np.min, np.mean, np.max)] if array.size else []
        text = " … ".join(number(v, precision) for v in values)
        return f"{small(title)}<BR/>{text or 'empty'}" + ("<BR/>" + small("min … mean … max") if text else "")
    cells = "".join(f"<TR>{''.join(f'<TD>{number(v, precision)}</TD>' for v in row)}</TR>" for row in rows)
    return (
        '<TABLE BORDER="0" CELLBORDER="1" CELLSPACING="0" CELLPADDING="2" COLOR="#c9ced6">'
        f'<TR><TD BORDER="0" COLSPAN="{rows.shape[1]}">{small(title)}</TD></TR>{cells}</TABLE>'
    )


def number(value: Any, precision: int) -> str:
    """A number for a cell: real minus sign, ∞, a mark for a boolean."""
    if isinstance(value, (bool, np.bool_)):
        return "✓" if value else "·"
    if isinstance(value, (int, np.integer)):
        return str(value)
    text = f"{value:.{precision}{'e' if np.isfinite(value) and abs(value) >= 1e6 else 'f'}}"
    return text.replace("-", "−").replace("inf", "∞").replace("nan", "NaN")


def legend(
    boxes: Iterable[Box], shown: bool, notes: Sequence[str], lines: Sequence[tuple[str, str]] = ()
) -> dict[str, str]:
    """The graph's label: what the kinds of boxes that occur (and the lines) mean, and remarks."""
    kinds = {box.kind for box in boxes} if shown else set()
    cells = [
        f'<TD BORDER="1" BGCOLOR="{fill}" COLOR="{border}">{html(meaning)}</TD>'
        for kind, (_, fill, border, meaning) in STYLES.items()
        if kind in kinds
    ]
    cells += [f'<TD><FONT COLOR="{color}">{html(meaning)}</FONT></TD>' for color, meaning in lines if kinds]
    rows = ["".join(cells)] * bool(cells)
    rows += [f'<TD COLSPAN="{max(len(cells), 1)}">{html(note)}</TD>' for note in notes if note]
    if not rows:
        return {}
    body = "".join(f"<TR>{row}</TR>" for row in rows)
    table = f'<TABLE BORDER="0" CELLSPACING="6" CELLPADDING="3">{body}</TABLE>'
    return {"label": f'<<FONT POINT-SIZE="9" COLOR="{GREY}">{table}</FONT>>', "labelloc": "b"}
