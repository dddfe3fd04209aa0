"""Print a verb's result to stdout, and its messages and progress to stderr."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Annotated, Any

import tyro
from rich.console import Console, RenderableType

from trainyard.cli.outputs import writing
from trainyard.cli.progress import showing_progress
from trainyard.progress import Progress
from trainyard.reading import visible

__all__ = ["Common", "Outcome", "Screen"]

_WIDTH = 110  # of a line where no terminal says otherwise


@dataclass(frozen=True, kw_only=True)
class Common:
    """Options that every verb has."""

    heading = "output"
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print one JSON document instead of text."""


@dataclass(frozen=True)
class Outcome:
    """Result of a verb.

    Attributes
    ----------
    document : numbers, strings, lists and mappings, for ``--json``; units are in its names.
    body : what a person reads; strings are printed as they are, without wrapping.
    failure : why it is not what was asked for, and what to do; the command then ends with status 1. Empty if it is.
    """

    document: Mapping[str, Any]
    body: Sequence[RenderableType] = field(default_factory=tuple)
    failure: str = ""


class Screen:
    """Writes for one verb.

    Parameters
    ----------
    as_json : print the outcome as JSON.
    is_silent : print nothing, because another process does.
    """

    def __init__(self, as_json: bool, is_silent: bool = False) -> None:
        self.as_json, self.is_silent = as_json, is_silent
        self.out = _console(sys.stdout, is_silent)
        self.messages = _console(sys.stderr, is_silent)

    def say(self, message: RenderableType) -> None:
        """A message for people, never part of the outcome."""
        wraps = not isinstance(message, str)
        message = visible(message) if isinstance(message, str) else message
        self.messages.print(message, markup=False, highlight=False, soft_wrap=not wraps)

    def keep(self, text: str, path: Path, what: str = "page") -> None:
        """Write what was asked for beside the outcome, and say so."""
        with writing(what, path):
            path.write_text(text)
        self.say(f"{what} written to {path}")

    def waiting(self, stage: str) -> AbstractContextManager[Progress]:
        """Show the stage that runs, until the end of the block; see `showing_progress`."""
        return showing_progress(self.messages, stage)

    def show(self, outcome: Outcome) -> None:
        """Print what a verb found."""
        if self.is_silent:
            return
        if self.as_json:
            print(json.dumps(plain(outcome.document), indent=2))
            return
        for part in outcome.body:
            if isinstance(part, str):
                print(visible(part))
            else:
                self.out.print(part)


def _console(stream: IO[str], is_silent: bool) -> Console:
    found = Console(file=stream, highlight=False, quiet=is_silent)
    return (
        found if found.is_terminal else Console(file=stream, highlight=False, quiet=is_silent, width=_WIDTH)
    )


def plain(value: Any) -> Any:
    """A value as JSON has them: tuples become lists, keys strings, numbers that are not finite null."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, bool | int | str) or value is None:
        return value
    number = float(value)
    return number if math.isfinite(number) else None
