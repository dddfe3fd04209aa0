"""The error of everything that reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from reprlib import Repr

from trainyard.errors import TrainyardError

_MOST_LISTED = 40
_MOST_SAID = 200
_SHORT = Repr()
_SHORT.maxlevel = _SHORT.maxlist = _SHORT.maxdict = 2
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 80


class ReadingError(TrainyardError, ValueError):
    """A text that cannot be read: where that is, what was given, and what is allowed."""


def at_line(source: str | Path, line: int, said: str) -> ReadingError:
    """Return the error about a line; lines count from 1."""
    return ReadingError(f"{source}, line {line}: {said}")


def shown(value: object) -> str:
    """A value for a message, cut where it is long or deep."""
    return _SHORT.repr(value)


def shortened(text: str) -> str:
    """Return the message of another error, cut if it is long."""
    return text if len(text) <= _MOST_SAID else f"{text[:_MOST_SAID]}..."


def listed(names: Iterable[str]) -> str:
    """Names for a message, the first of them where they are many."""
    each = [name if len(name) <= _SHORT.maxstring else shown(name) for name in names]
    more = f" and {len(each) - _MOST_LISTED} more" if len(each) > _MOST_LISTED else ""
    return ", ".join(each[:_MOST_LISTED]) + more


def count_text(num: int, what: str) -> str:
    """Write a number of things: ``1 request``, ``2,000 requests``, ``2 batches``."""
    ending = "" if num == 1 else "es" if what.endswith(("ch", "sh", "s", "x")) else "s"
    return f"{num:,} {what}{ending}"


@contextmanager
def raised_as(kind: type[ValueError]) -> Iterator[None]:
    """Errors of reading as the error of what is read, with the same message."""
    try:
        yield
    except ReadingError as error:
        raise kind(str(error)) from error
