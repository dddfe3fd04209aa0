"""Help of a verb: groups, defaults with their units, lines that fit."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import pytest
import tyro

from trainyard.cli.option_help import options_help, text_of_value
from trainyard.cli.outputs import Output
from trainyard.cli.quantities import Duration, DurationOrNever, DurationOrZero, Size
from trainyard.cli.screen import Common
from trainyard.reading.quantities import bytes_as_given, parse_bytes, parse_seconds, seconds_as_given


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits."""

    heading = "limits"
    drain: Duration = 30.0
    """How long work may go on."""
    stall: DurationOrNever = float("inf")
    """How long it may stand."""
    start: DurationOrZero = 0.0
    """How long it takes to start."""
    most: Annotated[Size | None, "anything"] = None
    """Memory. By default there is no limit."""


@dataclass(frozen=True, kw_only=True)
class Options(Limits, Common):
    """Do something.

    It takes a while.
    """

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """A model."""
    kind: Literal["a", "b"] | None = None
    """What is done, in a description of many words that do not fit into one line of sixty characters."""
    page: Annotated[Path | None, tyro.conf.arg(metavar="FILE"), Output.FILE] = None
    """Write a page."""


def test_help():
    assert (
        options_help("do", Options, 60)
        == """\
usage: trainyard do MODEL [OPTIONS]

Do something.

It takes a while.

arguments:
  MODEL                   A model.

options:
  --kind {a,b}            What is done, in a description of
                          many words that do not fit into
                          one line of sixty characters.

limits:
  --drain TIME            How long work may go on. (default:
                          30s)
  --stall TIME            How long it may stand. (default:
                          never)
  --start TIME            How long it takes to start.
                          (default: 0s)
  --most SIZE             Memory. By default there is no
                          limit.

output:
  --page FILE             Write a page.
  --json                  Print one JSON document instead of
                          text."""
    )


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("drain", 90.0, "90s"),
        ("stall", float("inf"), "never"),
        ("most", 4_000_000_000, "4GB"),
        ("kind", "b", "b"),
    ],
)
def test_values_are_written_as_the_command_line_reads_them(name, value, text):
    assert text_of_value(Options, name, value) == text


@pytest.mark.parametrize("text", ["500ms", "30s", "10min", "1h", "1500ms", "8us", "31us", "90s"])
def test_seconds_are_shown_as_they_are_given(text):
    assert seconds_as_given(parse_seconds(text)) == text


@pytest.mark.parametrize(("size", "text"), [(8 * 2**20, "8MiB"), (100 * 10**9, "100GB"), (1500, "1.5kB")])
def test_sizes_are_shown_as_they_are_given(size, text):
    assert bytes_as_given(size) == text
    assert parse_bytes(text) == size
