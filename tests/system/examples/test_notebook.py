"""The notebook of the examples runs from its first cell to its last, and shows the expected results."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT

NOTEBOOK = ROOT / "examples" / "notebook.ipynb"


def read() -> Any:
    import nbformat

    return nbformat.read(NOTEBOOK, as_version=4)


def outputs_by_source(notebook: Any) -> dict[str, list[dict[str, str]]]:
    """Return the displayed data of each cell by the cell's last line; printed text counts as text."""
    outputs = {}
    for cell in notebook.cells:
        if cell.cell_type == "code":
            shown = [output.get("data") or {"text/plain": output.get("text", "")} for output in cell.outputs]
            outputs[cell.source.splitlines()[-1]] = shown
    return outputs


def test_notebook_is_stored_without_outputs() -> None:
    for cell in read().cells:
        assert cell.cell_type != "code" or (cell.outputs == [] and cell.execution_count is None)


# Of the kernel's process and its sockets, which the client leaves to the garbage collector.
@pytest.mark.filterwarnings("default::ResourceWarning", "default::DeprecationWarning")
@pytest.mark.slow
@pytest.mark.usefixtures("built")
def test_notebook_runs_and_shows_its_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from nbclient import NotebookClient

    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    notebook = read()
    NotebookClient(notebook, timeout=110, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = outputs_by_source(notebook)
    # The last update of the cell is the state when the query had ended.
    for cell in ("view.watch()", "view"):
        state = shown[cell][-1]["text/html"]
        assert "<b>words</b>" in state
        assert "has ended, batch 2 of " in state
        assert "<td>stateStoreSave</td>" in state
        assert 'src="data:image/png;base64,iVBOR' in state
    (frame,) = (data[-1]["text/html"] for line, data in shown.items() if line.startswith("frame[["))
    assert re.findall(r"<td>stateStoreSave</td>\s*<td>(\d+)</td>", frame) == ["4", "6", "6"]
    assert shown["savepoint.kind, savepoint.batch"][-1]["text/plain"] == "('canonical', 2)"
    tables = {line: data[-1]["text/plain"] for line, data in shown.items() if data}
    assert re.search(r"\| *teh\| *3\|", tables["""spark.table("words").where("word = 'teh'").show()"""])
    corrected = tables["""spark.table("words").where("word in ('teh', 'the')").show()"""]
    assert re.findall(r"\| *(\w+)\| *(\d+)\|", corrected) == [("the", "6")]
    (top,) = (text for line, text in tables.items() if line.startswith("duckdb.sql"))
    assert re.findall(r"│ (\w+) +│ +(\d+) │", top) == [("the", "6"), ("fox", "2"), ("brown", "1")]
    # The kernel ends without Python's exit handlers; the next configure removes the archive that this one
    # shipped.
    remaining = [path.name for path in temporary.iterdir() if not path.name.startswith("spark-statestore-")]
    assert remaining == [], "the notebook left files behind"
