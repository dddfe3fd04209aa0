"""The notebook of the documentation runs, and shows what it shows: in plain Python on stdin, and in a kernel."""

from __future__ import annotations

import json
import sys

import pytest
from pages import ROOT, matches

sys.path.insert(0, str(ROOT / "docs"))
import run_notebook

NOTEBOOK = json.loads(run_notebook.NOTEBOOK.read_text())
CELLS = run_notebook.code_cells(NOTEBOOK)


def kept(cell):
    """What a cell of the file prints, and the kinds of text that its value has, with the plain one."""
    printed, plain, kinds = "", "", set()
    for output in cell["outputs"]:
        if output["output_type"] == "stream":
            printed += "".join(output["text"])
        else:
            plain, kinds = "".join(output["data"]["text/plain"]), set(output["data"])
    return printed, plain, kinds


def compare(cell, printed, plain, kinds):
    expected, expected_plain, expected_kinds = kept(cell)
    source = run_notebook.source_of(cell)
    assert matches(expected, printed), f"{source}\n--- prints ---\n{printed}"
    assert matches(expected_plain, plain), f"{source}\n--- is ---\n{plain}"
    assert kinds == expected_kinds


def test_cells_run_in_order_in_plain_python_on_stdin(tmp_path):
    pytest.importorskip("cloudpickle", reason="needs cloudpickle: pip install cloudpickle")
    shown = run_notebook.run_cells(CELLS, tmp_path)
    for cell, (printed, value) in zip(CELLS, shown, strict=True):
        compare(cell, printed, value.get("text/plain", ""), set(value))
    assert [printed for printed, _ in shown if printed == "equal\n"]


def test_a_cell_that_fails_is_told(tmp_path):
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        run_notebook.run_cells([{"source": ["1 / 0"]}], tmp_path)


def test_the_file_is_a_notebook_whose_cells_were_run_in_order():
    assert (NOTEBOOK["nbformat"], NOTEBOOK["nbformat_minor"]) == (4, 5)
    assert [cell["execution_count"] for cell in CELLS] == list(range(1, len(CELLS) + 1))
    assert all(cell["outputs"] for cell in CELLS)
    assert len({cell["id"] for cell in NOTEBOOK["cells"]}) == len(NOTEBOOK["cells"])


@pytest.mark.long
def test_cells_run_in_a_kernel(tmp_path):
    pytest.importorskip("ipykernel", reason="needs ipykernel: pip install ipykernel nbclient")
    nbclient = pytest.importorskip("nbclient", reason="needs nbclient: pip install nbclient")
    import nbformat

    notebook = nbformat.read(run_notebook.NOTEBOOK, as_version=4)
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    for before, cell in zip(CELLS, run_notebook.code_cells(notebook), strict=True):
        compare(before, *kept(cell))
