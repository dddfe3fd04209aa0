"""Text files: their size, their encoding, and what is no text."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable
from pathlib import Path

from trainyard.reading.errors import ReadingError, at_line
from trainyard.reading.limits import MOST_BYTES
from trainyard.reading.plain import open_plain

# Halves of surrogate pairs come from escapes in JSON; nothing can write them.
_NO_TEXT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")

# What moves the cursor of a terminal, changes its colours, or worse.
_COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def visible(text: str) -> str:
    """A text for a terminal: characters that are commands to it are written out, but for tabs and ends of lines.

    Examples
    --------
    >>> visible("a\\x1b[31m")
    'a\\\\x1b[31m'
    """
    return _COMMANDS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def read_text(
    path: Path, most_bytes: int = MOST_BYTES, check: Callable[[Path, int], None] = lambda *_: None
) -> str:
    """The whole text of a file.

    Parameters
    ----------
    check : called with the path and a descriptor of what was opened there, before any of it is read.

    Raises
    ------
    ReadingError
        If it cannot be opened, is too large, or is no text in UTF-8.
    """
    try:
        with path.open("rb") as file:
            check(path, file.fileno())
            data = file.read(most_bytes + 1)
    except OSError as error:
        raise ReadingError(f"cannot read {path}: {error.strerror}") from error
    if len(data) > most_bytes:
        raise ReadingError(
            f"{path} has more than {most_bytes:,} bytes, which is the most for such a file; give a smaller one"
        )
    text = _decoded(data.removeprefix(codecs.BOM_UTF8), path)
    check_text(text, path)
    return text


def _decoded(data: bytes, source: str | Path, line: int = 1) -> str:
    """Bytes as text.

    Parameters
    ----------
    line : of the source, on which they begin.

    Raises
    ------
    ReadingError
        If they are not in UTF-8.
    """
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise at_line(
            source,
            line + data.count(b"\n", 0, error.start),
            f"byte {data[error.start]:#04x} is not UTF-8; give a text file, saved in UTF-8",
        ) from error


def undecodable(path: Path) -> ReadingError:
    """Return the error of a file that is read piece by piece and is not in UTF-8; it names the line."""
    with open_plain(path) as file:
        for line, data in enumerate(file, 1):
            try:
                _decoded(data, path, line)
            except ReadingError as error:
                return error
    return ReadingError(f"{path}: not in UTF-8; give a text file, saved in UTF-8")


def stranger_in(value: str) -> str:
    """The first character of a value that no text has, as it may come from escapes; "" if there is none."""
    found = _NO_TEXT.search(value)
    return found[0] if found else ""


def check_text(text: str, source: str | Path) -> None:
    """Refuse characters that no text has, such as NUL.

    Raises
    ------
    ReadingError
        Names the first line that has one.
    """
    found = _NO_TEXT.search(text)
    if found:
        raise at_line(
            source,
            line_of(text, found.start()),
            f"character {ord(found[0]):#04x} is no text; give a text file, saved in UTF-8",
        )


def line_of(text: str, place: int) -> int:
    """Number of the line on which a character stands."""
    return text.count("\n", 0, place) + 1
