"""Texts that end an answer."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["StopStrings", "num_undecided"]


class StopStrings:
    """Looks for texts that end an answer, in text that arrives piece by piece.

    An answer ends where the first of these texts is complete. What may be the beginning of one is held back until more
    has come.

    Parameters
    ----------
    stops : the texts; none is empty.
    is_included : whether the answer ends behind the text that ends it, and not before it.

    Attributes
    ----------
    matched : the one that ended the answer; "" before.
    """

    def __init__(self, stops: Sequence[str], *, is_included: bool = False) -> None:
        self._stops, self._is_included, self._held = tuple(stops), is_included, ""
        self.matched = ""

    def take(self, text: str) -> tuple[str, bool]:
        """Take the next piece; return what is certain to be of the answer, and whether the answer ends with it."""
        text = self._held + text
        places = [(text.find(stop), stop) for stop in self._stops]
        if ends := [(place + len(stop), place, stop) for place, stop in places if place >= 0]:
            self._held = ""
            end, start, self.matched = min(ends)
            return text[: end if self._is_included else start], True
        num = num_undecided(text, self._stops)
        self._held = text[len(text) - num :]
        return text[: len(text) - num], False

    def rest(self) -> str:
        """What was held back, where nothing more comes."""
        held, self._held = self._held, ""
        return held


def num_undecided(text: str, stops: Sequence[str]) -> int:
    """How many of the last characters of a text may begin one of some other texts."""
    most = min(len(text), max(map(len, stops), default=0))
    return next(
        (
            num
            for num in range(most, 0, -1)
            if any(stop.startswith(text[len(text) - num :]) for stop in stops)
        ),
        0,
    )
