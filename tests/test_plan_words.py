"""Only plans, lowering and strategies name axes, or stages of ZeRO: the rest asks the plan."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from pathlib import Path

SOURCES = Path(__file__).parents[1] / "src" / "trainyard"
KNOWING = ("plan", "lower", "strategies", "auto", "reproduce", "catalog.py", "remesh.py")
AXES = {"data", "tensor", "expert"}
NAMES = {"DATA", "TENSOR", "zero_stage", "data_parallel", "num_data", "num_tensor"}
STAGE_OF_ZERO = re.compile(r"ZeRO(-| |-DP )?(stage )?[0-3]|stages? of ZeRO", re.IGNORECASE)


def words_in(text: str, axes: Collection[str]) -> Iterator[str]:
    """An axis as a string or a name, and a stage of ZeRO anywhere."""
    yield from (found[0] for found in STAGE_OF_ZERO.finditer(text))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and node.value in axes:
            yield str(node.value)
        for name in ("id", "attr", "arg", "name"):
            if getattr(node, name, None) in NAMES:
                yield str(getattr(node, name))


def words_outside() -> Iterator[tuple[str, str]]:
    for path in sorted(SOURCES.rglob("*.py")):
        where = path.relative_to(SOURCES)
        is_served = where.parts[0] == "serve" or where.parts[:2] == ("cli", "serve")
        is_served |= where.parts[0] == "report" and where.name.startswith(
            "serve_"
        )  # its ranks are none of a plan
        if is_served or where.parts[0] in ("fleet", "zoo"):
            continue
        if where.parts[0] == "job" and where.parts[1] in (
            *KNOWING,
            "sources.py",
        ):  # where users' files have data()
            continue
        # Elsewhere these are words of figures and files, too.
        axes = AXES if where.parts[0] == "job" else ()
        yield from ((str(where), word) for word in words_in(path.read_text(), axes))


def test_axes_and_stages_of_zero_are_named_where_plans_are_made_and_lowered() -> None:
    assert list(words_outside()) == []


def test_words_are_found() -> None:
    text = "def f(zero_stage):\n    '''ZeRO stage 3'''\n    return plan.mesh.size('data'), DATA, x.data"
    assert sorted(words_in(text, AXES)) == ["DATA", "ZeRO stage 3", "data", "zero_stage"]
