"""`trainyard fleet logs`: what a job did last."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro

from trainyard.cli.bounds import COUNT
from trainyard.cli.fleet.server import ServerOptions
from trainyard.cli.screen import Outcome, Screen

__all__ = ["Options", "act"]


@dataclass(frozen=True)
class Options(ServerOptions):
    """Print the last steps of a job of yours, and the last that its processes printed."""

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]
    """Name of the job."""
    lines: Annotated[int, tyro.conf.arg(metavar="N"), COUNT] = 20
    """How many lines of each."""


def act(options: Options, screen: Screen) -> Outcome:
    """Ask and print."""
    text = options.client().log(options.name, options.lines)
    return Outcome({"job": options.name, "log": text}, (text.rstrip(),))
