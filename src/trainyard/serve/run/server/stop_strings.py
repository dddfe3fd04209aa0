"""Texts that end an answer."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["StopStrings"]


class StopStrings:
    """Looks for texts that end an answer, in text that comes piece by piece.

    What may be the beginning of one is held back until more has come.

    Parameters
    ----------
    stops : the texts; none is empty.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops, self._held = tuple(stops), ""
        self._most = max(map(len, self._stops), default=0)

    def take(self, text: str) -> tuple[str, bool]:
        """Take the next piece; return what is certain to be of the answer, and whether the answer ends with it."""
        text = self._held + text
        places = [place for stop in self._stops if (place := text.find(stop)) >= 0]
        if places:
            self._held = ""
            return text[: min(places)], True
        num = next(num for num in range(min(self._most, len(text)), -1, -1) if self._begins(text, num))
        self._held = text[len(text) - num :]
        return text[: len(text) - num], False

    def rest(self) -> str:
        """What was held back, where nothing more comes."""
        held, self._held = self._held, ""
        return held

    def _begins(self, text: str, num: int) -> bool:
        """Whether the last characters may begin a stop."""
        end = text[len(text) - num :]
        return not end or any(stop.startswith(end) for stop in self._stops)
