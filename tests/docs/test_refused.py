"""Each row of the table of refusals in docs/exact.md is a refusal of the code, and each of the code has a row."""

from __future__ import annotations

import ast
import re
import traceback
from functools import cache
from pathlib import Path

import pytest
from pages import ROOT
from refused_models import REFUSED

from trainyard import program
from trainyard.program.capture import CaptureError, capture

_TABLE = "## What is refused, and what to write instead"
# By what they say: of a model that is served, and of a graph that came out wrong, which no model is known to cause.
_HAVE_NO_ROW = ("cannot be captured without a gradient", "has a gradient in plain PyTorch")


def said_in_the_table() -> list[str]:
    text = (ROOT / "docs" / "exact.md").read_text().partition(_TABLE)[2].partition("\n## ")[0]
    rows = re.findall(r"^\|(.+)\|(.+)\|(.+)\|$", text, re.MULTILINE)
    return [said.strip() for _, said, instead in rows[2:] if instead.strip()]


@cache
def refused(said: str) -> tuple[str, Path, int]:
    """The message, and path and line where it was raised."""
    with pytest.raises(CaptureError, match=re.escape(said)) as caught:
        capture(REFUSED[said]())
    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    return str(caught.value), Path(last.filename).resolve(), last.lineno or 0


def test_the_table_has_a_row_for_each_model() -> None:
    assert said_in_the_table() == list(REFUSED)


@pytest.mark.parametrize("said", REFUSED)
def test_a_row_is_a_refusal_with_these_words(said: str) -> None:
    message, path, _ = refused(said)
    assert said in message
    assert path.is_relative_to(Path(program.__file__).resolve().parent)


def test_each_refusal_of_the_code_has_a_row() -> None:
    known = {(path, line) for _, path, line in map(refused, REFUSED)}
    missing = []
    for path in Path(program.__file__).resolve().parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Raise) or "CaptureError(" not in (source := ast.unparse(node)):
                continue
            lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            is_known = any((path, line) in known for line in lines)
            if not is_known and not any(words in source for words in _HAVE_NO_ROW):
                missing.append(f"{path.name}:{node.lineno}")
    assert not missing, "give these refusals a row in docs/exact.md, and a model in refused_models.py"
