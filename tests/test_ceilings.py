"""No file has more than 400 lines, and no function more than 60."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
MOST_LINES, MOST_LINES_OF_A_FUNCTION = 400, 60


def too_long(text: str, name: str) -> Iterator[str]:
    if (count := len(text.splitlines())) > MOST_LINES:
        yield f"{name}: {count} lines"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            count = (node.end_lineno or 0) - node.lineno + 1
            if count > MOST_LINES_OF_A_FUNCTION:
                yield f"{name}: {node.name} has {count} lines"


def test_files_and_functions_are_short() -> None:
    folders = ("src", "tests", "benchmarks", "examples", "docs")
    paths = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    assert len(paths) > 500
    assert [each for path in paths for each in too_long(path.read_text(), str(path.relative_to(ROOT)))] == []


def test_what_is_too_long_is_found() -> None:
    text = "\n".join(["def f():"] + ["    pass"] * 60 + ["x = 1"] * 340)
    assert list(too_long(text, "a.py")) == ["a.py: 401 lines", "a.py: f has 61 lines"]
