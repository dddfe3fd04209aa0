"""Text that breaks long words, such as a policy with its options, where one of their parts ends."""

from __future__ import annotations

import re
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.containers import Lines
from rich.text import Text

__all__ = ["WrappedText"]

_WORD = re.compile(r"\s*\S+\s*")
# Behind a parenthesis or an equals sign, and behind a comma that is not within a number.
_WITHIN_WORD = re.compile(r"(?<=[(=])|(?<=,)(?=[^\s\d])")


class WrappedText(Text):
    """Text that breaks a word wider than the line behind a parenthesis, an equals sign or a comma, if it has one."""

    def wrap(self, console: Console, width: int, **how: Any) -> Lines:
        """Return the lines; see `Text.wrap`."""
        lines = Lines()
        for line in self.split(allow_blank=True):
            for part in line.divide(_breaks(line.plain, width)):
                lines.extend(part.wrap(console, width, **how))
        return lines


def _breaks(text: str, width: int) -> list[int]:
    """Return the places at which a text breaks, so that no line is wider unless a part has no place to break."""
    breaks, place, used, width = list[int](), 0, 0, max(1, width)
    for word in _WORD.findall(text):
        parts = _WITHIN_WORD.split(word) if cell_len(word.rstrip()) > width else [word]
        for part in parts:
            if used and used + cell_len(part.rstrip()) > width:
                breaks.append(place)
                used = 0
            place, used = place + len(part), used + cell_len(part)
            if cell_len(part.rstrip()) > width:  # it fills some lines, and the next in part
                used = (used - 1) % width + 1
    return breaks
