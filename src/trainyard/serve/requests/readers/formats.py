"""What a format of request traces is, and what all of them read alike."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from trainyard.reading.head import Matches
from trainyard.reading.left_out import LeftOut
from trainyard.reading.rows import Row
from trainyard.serve.requests.request import TracedRequest


class Reader(Protocol):
    """What reads a file."""

    def __call__(
        self, path: Path, max_tokens: int, left_out: LeftOut | None = None
    ) -> Iterator[TracedRequest]:
        """The requests of a file in the order in which they come.

        Parameters
        ----------
        max_tokens : that a client takes at most, where the trace does not say.
        left_out : gets the rows that give no request; without, they are errors.
        """


@dataclass(frozen=True)
class Format:
    """A format of request traces.

    Attributes
    ----------
    name : for ``read_requests`` and the command line.
    about : one line.
    matches : whether a file that begins so is of it.
    read : what reads a file.
    """

    name: str
    about: str
    matches: Matches
    read: Reader


class LengthColumns(NamedTuple):
    """Where a row has the lengths of a request.

    Attributes
    ----------
    prompt, output : names of the columns, in tokens.
    no_output : what it means that there is no output, in words.
    """

    prompt: str
    output: str
    no_output: str = "has no output"

    def why_not(self, row: Row, max_tokens: int) -> str:
        """Why a row is no request to replay, in words; "" if it is one.

        Raises
        ------
        RowError
            If a length is no number of tokens.
        """
        output = row.count(self.output)
        if not output:
            return self.no_output
        if not row.count(self.prompt):
            return "has no prompt"
        return too_long(output, max_tokens)


def too_long(output_tokens: int, max_tokens: int) -> str:
    """Why an output cannot be: its client takes less; "" if it can."""
    return "output longer than max_tokens" if output_tokens > max_tokens else ""
