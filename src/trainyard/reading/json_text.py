"""JSON as plain values, within limits."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

from trainyard.reading.errors import ReadingError, at_line, shown
from trainyard.reading.limits import MOST_DEPTH, MOST_DIGITS, MOST_VALUES_OF_TABLES
from trainyard.reading.text import check_text, line_of, stranger_in

_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+', re.DOTALL)
_PUNCTUATION = (":", ",")


def parse_json(text: str, source: str | Path) -> Any:
    """The value of a JSON text.

    Parameters
    ----------
    source : what errors call it.

    Raises
    ------
    ReadingError
        If it is not JSON, breaks a limit, or has a key twice; the message says on which line.
    """
    check_text(text, source)
    _check(text, source)
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise at_line(source, error.lineno, f"not JSON: {error.msg}") from error


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object from its members, for a reader of JSON that goes piece by piece.

    Raises
    ------
    ReadingError
        If a key stands twice.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ReadingError(f"key {shown(twice)} stands twice; keep one")
    return found


def _check(text: str, source: str | Path) -> None:
    """Refuse what breaks a limit, before a value is made of it; what is not JSON may pass."""
    levels: list[dict[str, int] | None] = []  # of objects their keys, and where they stand
    num_values, before = 0, ""
    for match in _TOKEN.finditer(text):
        token = match[0]
        if token in _PUNCTUATION:
            before = token
            continue
        said = ""
        if token in ("{", "["):
            levels.append({} if token == "{" else None)
            if len(levels) > MOST_DEPTH:
                said = f"lists or objects too deep in each other; allowed are {MOST_DEPTH} levels"
        elif token in ("}", "]"):
            if levels:
                levels.pop()
        elif token[0] == '"':
            said = _wrong_escape(token)
            if not said and before in ("{", ",") and levels and (keys := levels[-1]) is not None:
                said = _twice(text, token, keys, match.start())
        else:
            said = _wrong_number(token)
        num_values += 1
        if num_values > MOST_VALUES_OF_TABLES:
            said = f"more than {MOST_VALUES_OF_TABLES:,} values; give a smaller file"
        if said:
            raise at_line(source, line_of(text, match.start()), said)
        before = token[0]


def _twice(text: str, token: str, keys: dict[str, int], place: int) -> str:
    """What is wrong with a key."""
    try:
        key = json.loads(token) if "\\" in token else token[1:-1]
    except json.JSONDecodeError:
        return ""
    first = keys.setdefault(key, place)
    return (
        ""
        if first == place
        else f"key {shown(key)} stands twice, first on line {line_of(text, first)}; keep one"
    )


def _wrong_escape(token: str) -> str:
    """What is wrong with what the escapes of a text stand for; what is not JSON may pass."""
    if "\\u" not in token:
        return ""
    try:
        stranger = stranger_in(json.loads(token))
    except json.JSONDecodeError:
        return ""
    return f"character {ord(stranger):#04x} is no text; leave it out" if stranger else ""


def _wrong_number(token: str) -> str:
    """What is wrong with a number."""
    if len(token) > MOST_DIGITS:
        return f"a number of {len(token):,} digits, {shown(token)}; allowed are {MOST_DIGITS}"
    if token in ("NaN", "Infinity", "-Infinity") or (("e" in token or "E" in token) and _is_infinite(token)):
        return f"got {token}, allowed is a finite number"
    return ""


def _is_infinite(token: str) -> bool:
    try:
        return math.isinf(float(token))
    except ValueError:  # true and false have an e
        return False
