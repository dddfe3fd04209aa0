"""Tables of a JSON object a line."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainyard.reading import ReadingError
from trainyard.reading.json_lines import JsonLines
from trainyard.reading.left_out import LeftOut


def lines(tmp_path: Path, *texts: str, left_out: LeftOut | None = None) -> JsonLines:
    path = tmp_path / "table.jsonl"
    path.write_text("".join(f"{text}\n" for text in texts))
    return JsonLines(path, ("at", "size"), left_out=left_out)


def test_fields_are_texts_and_null_is_none(tmp_path: Path) -> None:
    table = lines(tmp_path, '{"at": 2, "size": [1, 2.5], "name": "it", "more": null, "is": true}')
    (row,) = table.rows()
    assert row.fields == {"at": "2", "size": "[1, 2.5]", "name": "it", "is": "true"}
    assert row.line == 1


def test_rows_come_in_the_order_of_their_moments(tmp_path: Path) -> None:
    table = lines(
        tmp_path, '{"at": 2, "size": 1}', "", '{"at": 1.5, "size": 2}', '{"size": 3, "at": 2, "b": 4}'
    )
    made = table.in_order(lambda row: row.number("at"), lambda row, at_s: (at_s, row.line, row.count("size")))
    assert list(made) == [(1.5, 3, 2), (2.0, 1, 1), (2.0, 4, 3)]


@pytest.mark.parametrize(
    ("text", "reason", "said"),
    [
        ('{"at": 1,', "not JSON", "line 2: not JSON: Expecting property name"),
        ('{"at": 1, "size": NaN}', "not JSON", "line 2: got NaN, allowed is a finite number"),
        ('{"at": 1, "at": 2}', "not JSON", "line 2: key 'at' stands twice"),
        ("[1, 2]", "no JSON object", r"line 2: got \[1, 2\], allowed is an object with at, size"),
        ("{}", "no field at, size", "line 2: no field at, size; it has none"),
        ('{"at": 1, "size": null, "b": 2}', "no field size", "line 2: no field size; it has at, b"),
    ],
)
def test_lines_that_cannot_be_read_are_counted(tmp_path: Path, text: str, reason: str, said: str) -> None:
    texts = ('{"at": 1, "size": 1}', text, '{"at": 3, "size": 1}')
    left_out = LeftOut()
    assert [row.line for row in lines(tmp_path, *texts, left_out=left_out).rows()] == [1, 3]
    assert [(each.text, each.is_fault, each.count) for each in left_out.reasons] == [(reason, True, 1)]
    with pytest.raises(ReadingError, match=said):
        list(lines(tmp_path, *texts).rows())


def test_a_line_that_is_too_long(tmp_path: Path) -> None:
    with pytest.raises(ReadingError, match="line 1: more than 1,048,576 bytes"):
        list(lines(tmp_path, '{"at": 1, "size": "' + "x" * 2**20 + '"}').rows())
