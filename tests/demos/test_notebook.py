"""The notebook runs from top to bottom, shows its pictures, and is kept without outputs."""

import json
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "demos" / "walk_through_attention.ipynb"


def test_runs_and_shows_drawings_heat_map_and_step_player(tmp_path):
    nbformat = pytest.importorskip("nbformat")
    client = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [
        kind
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        for kind in output.get("data", {})
        if kind != "text/plain"
    ]
    tensor, heat_map, drawing, player = "text/html", "image/png", "image/svg+xml", "text/html"
    assert shown == [tensor, heat_map, drawing, drawing, player]


def test_is_kept_without_outputs():
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert code and all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
