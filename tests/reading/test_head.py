"""How files begin, and which of the known formats they are of for that."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import NamedTuple

import pytest

from trainyard.reading import ReadingError
from trainyard.reading.head import Head, Matches, has_columns, has_keys, recognised


class Entry(NamedTuple):
    matches: Matches


FORMATS = {
    "narrow": Entry(has_columns("a", "b", without=("c",))),
    "wide": Entry(has_columns("a", "c")),
    "also wide": Entry(has_columns("c", "d")),
    "lines": Entry(has_keys("a", "b")),
}


@pytest.mark.parametrize(
    ("text", "name"),
    [("a, b\r\n1,2\n", "narrow"), ("a,b,c\n", "wide"), ('{"b": 1, "a": 2}\n', "lines"), ("d,c", "also wide")],
)
def test_recognised_by_its_first_line(tmp_path: Path, text: str, name: str) -> None:
    path = tmp_path / "trace.gz"
    path.write_bytes(gzip.compress(text.encode()))
    assert recognised(path, FORMATS, "thing") is FORMATS[name]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty; a trace has a line for each thing"),
        (
            "x,b\n",
            r"is of no known format; name one: narrow, wide, also wide, lines\. It begins with 'x,b'",
        ),
        ('{"a": 1}\n', "is of no known format"),
        ('[{"a": 1, "b": 2}]\n', "is of no known format"),
        ("a,c,d\n", "could be wide, also wide; name one"),
    ],
)
def test_what_is_of_no_format(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(ReadingError, match=said):
        recognised(path, FORMATS, "thing")


def test_whole_lines_of_a_file_that_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text("123456789\n" * 6554)
    head = Head.of(path)
    assert (head.is_cut, len(head.lines), head.first) == (True, 6553, "123456789")
