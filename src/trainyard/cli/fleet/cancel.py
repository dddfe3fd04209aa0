"""`trainyard fleet cancel`: stop a job for good."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro

from trainyard.cli.fleet.server import ServerOptions
from trainyard.cli.screen import Outcome, Screen

__all__ = ["Options", "act"]


@dataclass(frozen=True)
class Options(ServerOptions):
    """Cancel a job of yours: it stops after its present step, and its checkpoints stay."""

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]
    """Name of the job."""


def act(options: Options, screen: Screen) -> Outcome:
    """Cancel."""
    job = options.client().cancel(options.name)
    return Outcome(job, (f"{job['name']} is {job['state']}",))
