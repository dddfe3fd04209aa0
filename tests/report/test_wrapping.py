"""Cells of tables break long words where one of their parts ends, and lose nothing."""

from __future__ import annotations

import random

import pytest
from rich.console import Console
from rich.text import Text

from trainyard.report.wrapping import WrappedText


def lines(text: Text, width: int) -> list[str]:
    return [line.plain for line in text.wrap(Console(width=200), width, overflow="fold")]


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (33, ["fifo(backfill='conservative', ", "order='priority', max=1,234)"]),
        (20, ["fifo(backfill=", "'conservative', ", "order='priority', ", "max=1,234)"]),
        (9, ["fifo(", "backfill=", "'conserva", "tive', ", "order=", "'priority", "', max=", "1,234)"]),
    ],
)
def test_a_policy_breaks_between_its_options(width: int, shown: list[str]) -> None:
    assert lines(WrappedText("fifo(backfill='conservative', order='priority', max=1,234)"), width) == shown


def test_a_word_that_fits_a_line_is_whole() -> None:
    assert lines(WrappedText("nodes (0,a) are away"), 8) == lines(Text("nodes (0,a) are away"), 8)


def test_nothing_is_lost_and_plain_words_break_as_ever() -> None:
    chance = random.Random(0)
    for _ in range(500):
        width = chance.randrange(1, 15)
        plain, other = ("".join(chance.choices(kind, k=40)) for kind in ("ab ab ab\n", "ab(=, 1"))
        assert lines(WrappedText(plain), width) == lines(Text(plain), width)
        shown = lines(WrappedText(other), width)
        assert "".join(shown).replace(" ", "") == other.replace(" ", "")
        assert max(map(len, shown)) <= width
