"""DOT text that can become a picture, and files that are either complete or not there.

A `Drawing` is a `graphviz.Digraph` (`.source`, `.pipe`, `.render` and notebook display are what people know),
with a layout program chosen per call (`dot` on PATH, else `graphviz-pure`), a time limit, and SVG without
ids, so that any number of pictures can stand in one page: what a script needs to find carries a class instead
(`n3`, `s5`, `m0`).
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import graphviz

from .dot import to_dot

IMAGE_FORMATS = ("svg", "png", "pdf")
TIMEOUT = 60.0  # seconds
INSTALL = (
    "the program `dot` (Graphviz) is not on PATH; install it with\n"
    "  Debian, Ubuntu:  sudo apt install graphviz\n"
    "  macOS:           brew install graphviz\n"
    "  Windows:         winget install graphviz\n"
    "  anywhere:        pip install graphviz-pure      (SVG and PNG)\n"
    "DOT text needs no program: to_dot(...), or save(..., 'x.dot')"
)


class DotNotFound(graphviz.ExecutableNotFound):
    """No program to lay out pictures is installed; the message says how to get one."""

    def __init__(self, remark: str = "") -> None:
        RuntimeError.__init__(self, INSTALL + remark)


class LayoutTimeout(TimeoutError):
    """Laying out the picture took longer than allowed; the program was stopped and nothing was written."""


class Drawing(graphviz.Digraph):
    """A `graphviz.Digraph` made from DOT text.

    >>> d = Drawing("digraph {\\n  n0 [label=a]\\n}\\n")
    >>> print(d.source, end="")
    digraph {
      n0 [label=a]
    }
    """

    def __init__(self, text: str, *, engine: str = "dot", timeout: float = TIMEOUT) -> None:
        super().__init__(format="svg", engine=engine, encoding="utf-8")
        self.body[:] = text.splitlines(keepends=True)[1:-1]
        self.timeout = timeout

    def pipe(  # type: ignore[override]
        self, format: str | None = None, *, engine: str | None = None, encoding: str | None = None, **_: Any
    ) -> Any:
        """The picture as bytes, or as text if an `encoding` is given."""
        data = lay_out(self.source, format or self.format, engine or self.engine, self.timeout)
        return data.decode(encoding) if encoding else data

    def render(
        self, filename: Any = None, directory: Any = None, view: bool = False, cleanup: bool = False, **more: Any
    ) -> str:
        """Write the DOT text to `filename` and the picture beside it; or the picture to `outfile`. Its path."""
        outfile = more.get("outfile")
        source = self._path(filename or (outfile and Path(outfile).with_suffix(".gv")), directory)
        target = Path(outfile or f"{source}.{more.get('format') or self.format}")
        if not cleanup:
            write(source, self.source.encode())
        write(target, self.pipe(_format(target), engine=more.get("engine")))
        if view:
            graphviz.view(str(target))
        return str(target)

    def save(self, filename: Any = None, directory: Any = None, **_: Any) -> str:
        """Write `x.svg`, `x.png`, `x.pdf`, or the DOT text for any other name (and where no `dot` is). Its path."""
        path = self._path(filename, directory)
        try:
            data = self.pipe(_format(path)) if _format(path) in IMAGE_FORMATS else self.source.encode()
        except DotNotFound:
            text = path.with_suffix(".dot")
            write(text, self.source.encode())
            raise DotNotFound(f"\nThe DOT text is in {text}.") from None
        write(path, data)
        return str(path)

    def _path(self, filename: Any, directory: Any) -> Path:
        return Path(str(directory or self.directory or ""), str(filename or self.filename or "drawing.gv"))

    def _repr_mimebundle_(self, include: Iterable[str] | None = None, exclude: Any = None, **_: Any) -> dict[str, Any]:
        """SVG for the notebook; where it cannot be made, the reason and the DOT text instead of an error."""
        try:
            return {"image/svg+xml": self.pipe("svg", encoding="utf-8")}
        except (graphviz.ExecutableNotFound, graphviz.CalledProcessError, LayoutTimeout) as problem:
            return {"text/plain": f"{problem}\n\n{self.source}"}


def save(obj: Any, path: str | os.PathLike[str], *, timeout: float = TIMEOUT) -> Path:
    """Write a drawing, a matplotlib figure or the graph of a tensor to `path`: .svg, .png, .pdf or .dot.

    Folders are made as needed. The file is complete or not there: it is written beside its place and moved.
    Raises ValueError for another ending, `DotNotFound` without a layout program, `LayoutTimeout` after
    `timeout` seconds.
    """
    path, figure = Path(path), hasattr(obj, "savefig")
    endings = IMAGE_FORMATS if figure else (*IMAGE_FORMATS, "dot", "gv")
    if _format(path) not in endings:
        raise ValueError(f"cannot save to {path.name!r}: the name must end in {', '.join('.' + e for e in endings)}")
    if figure:
        write(path, _figure_bytes(obj, _format(path)))
    else:
        drawing = obj if isinstance(obj, graphviz.Digraph) else Drawing(to_dot(obj))
        Drawing(drawing.source, engine=drawing.engine, timeout=timeout).save(path)
    return path


def _figure_bytes(figure: Any, format: str) -> bytes:
    """A matplotlib figure as bytes that are the same every time, its SVG ids made its own."""
    from matplotlib import rc_context

    buffer = io.BytesIO()
    undated: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    with rc_context({"svg.hashsalt": "tinygrad_attn"}):
        figure.savefig(buffer, format=format, metadata=undated.get(format))
    data = buffer.getvalue()
    own = rb"\1p" + hashlib.sha256(data).hexdigest()[:8].encode() + b"-"
    return re.sub(rb'(\bid="|url\(#|href="#)', own, data) if format == "svg" else data


def lay_out(source: str, format: str, engine: str, timeout: float) -> bytes:
    """Run the layout program on DOT text."""
    command = [*layout_program(), f"-K{engine}", f"-T{format}"]
    try:
        done = subprocess.run(command, input=source.encode(), capture_output=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        raise LayoutTimeout(
            f"laying out {source.count('[label=')} boxes took longer than {timeout:g} s and was stopped."
            " Collapse modules (depth=1), draw a part of the graph, raise timeout=, try .pipe(engine='sfdp'),"
            " or keep the text: to_dot(...)"
        ) from None
    complaints = done.stderr.decode(errors="replace").splitlines()
    complaint = "\n".join(line for line in complaints if "width of non-ASCII" not in line).strip()
    if done.returncode:
        raise graphviz.CalledProcessError(done.returncode, command, done.stdout, complaint)
    if complaint:
        hint = "; an .svg has no size limit" if "too large" in complaint else ""
        warnings.warn(f"{command[0]}: {complaint}{hint}", stacklevel=3)
    return re.sub(rb'(<(?:g|svg|a)\b[^>]*?) id="[^"]*"', rb"\1", done.stdout) if format == "svg" else done.stdout


def layout_program() -> list[str]:
    """`dot` where it is on PATH, else the pip-installable graphviz-pure, found beside Python too."""
    for name, folders in (("dot", None), ("graphviz-pure", None), ("graphviz-pure", os.path.dirname(sys.executable))):
        if found := shutil.which(name, path=folders):
            return [found]
    raise DotNotFound


def write(path: Path, data: bytes) -> None:
    """Write a file so that it is complete or not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".") as folder:
        temporary = Path(folder, "file")
        temporary.write_bytes(data)
        os.replace(temporary, path)


def _format(path: Path) -> str:
    return path.suffix[1:].lower()
