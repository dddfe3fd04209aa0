"""Run the cells of docs/notebook-train.ipynb in a process of plain Python, on its stdin, and keep what they show.

python docs/run_notebook.py            runs the notebook and writes its outputs
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).parent / "notebook-train.ipynb"
_END, _VALUE = "\x1e", "\x1d"
_BEGIN = f"""
import json
def _show(value):
    if value is not None:
        html = getattr(value, "_repr_html_", None)
        shown = {{"text/plain": repr(value)}} | ({{"text/html": html()}} if html else {{}})
        print({_VALUE!r} + json.dumps(shown))
"""


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    """The cells with code, in order."""
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def source_of(cell: dict[str, Any]) -> str:
    """The text of a cell."""
    return "".join(cell["source"])


def program_of(cells: list[dict[str, Any]]) -> str:
    """A script that does what the cells do, and shows the value of an expression that ends one."""
    parts = [_BEGIN]
    for cell in cells:
        source = source_of(cell)
        last = ast.parse(source).body[-1]
        lines = source.splitlines()
        if isinstance(last, ast.Expr):
            expression = "\n".join(lines[last.lineno - 1 : last.end_lineno])
            lines[last.lineno - 1 :] = [f"_show({expression}\n)"]
        parts += [*lines, f"print({_END!r})"]
    return "\n".join(parts) + "\n"


def run_cells(cells: list[dict[str, Any]], folder: Path) -> list[tuple[str, dict[str, str]]]:
    """What each cell prints, and its value by kind of text; the cells run in one process.

    Raises
    ------
    RuntimeError
        If a cell fails.
    """
    done = subprocess.run(
        [sys.executable, "-"],
        input=program_of(cells),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    shown = []
    for part in done.stdout.split(f"{_END}\n")[:-1]:
        printed, _, value = part.partition(_VALUE)
        shown.append((printed, json.loads(value) if value else {}))
    return shown


def outputs_of(printed: str, value: dict[str, str], count: int) -> list[dict[str, Any]]:
    """The outputs of a cell as notebooks have them."""
    outputs: list[dict[str, Any]] = []
    if printed:
        outputs.append({"name": "stdout", "output_type": "stream", "text": printed.splitlines(keepends=True)})
    if value:
        data = {kind: text.splitlines(keepends=True) for kind, text in value.items()}
        outputs.append(
            {"data": data, "execution_count": count, "metadata": {}, "output_type": "execute_result"}
        )
    return outputs


def main() -> None:
    """Run the notebook, and write its outputs."""
    notebook = json.loads(NOTEBOOK.read_text())
    cells = code_cells(notebook)
    for count, (cell, (printed, value)) in enumerate(
        zip(cells, run_cells(cells, NOTEBOOK.parent), strict=True), 1
    ):
        cell["execution_count"], cell["outputs"] = count, outputs_of(printed, value, count)
    NOTEBOOK.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
