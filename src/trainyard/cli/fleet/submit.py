"""`trainyard fleet submit`: hand the jobs of a file to a daemon."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from trainyard.cli.fleet.server import ServerOptions
from trainyard.cli.screen import Outcome, Screen

if TYPE_CHECKING:
    from trainyard.fleet.workload.job import Job

__all__ = ["Options", "act"]


@dataclass(frozen=True)
class Options(ServerOptions):
    """Hand trainings, and commands if it allows them, to the daemon; they arrive now, all at once."""

    file: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
    """Jobs in Trainyard's own form, CSV or YAML, or one job as a YAML mapping: trainings (steps, model, batch_size) or
    commands."""


def act(options: Options, screen: Screen) -> Outcome:
    """Submit."""
    from trainyard.fleet.workload.own import values_of

    jobs, client = _read(options.file), options.client()
    if any(job.arrival_s for job in jobs):
        screen.say("the jobs arrive now, not when the file says")
    given = []
    for job in jobs:
        form = values_of(_arriving_now(job))
        del form["arrival_s"]
        given.append(client.submit(form))
        screen.say(f"{job.name} is submitted")
    names = " ".join(job.name for job in jobs)
    return Outcome(
        {"jobs": given}, (f"submitted {len(jobs)}: {names}; `trainyard fleet status` shows how they are",)
    )


def _read(path: Path) -> Sequence[Job]:
    """Read jobs, whose files are run: who submits them trusts them."""
    from trainyard.fleet.workload.own import read_form, read_own
    from trainyard.reading import read_text

    if path.suffix in (".yaml", ".yml"):
        text = read_text(path)
        if not any(line.startswith("jobs:") for line in text.splitlines()):
            return (read_form(text, path, own_files=True),)
    return tuple(read_own(path, own_files=True))


def _arriving_now(job: Job) -> Job:
    """The same job with its times counted from its arrival."""
    deadline_s = None if job.deadline_s is None else max(0.0, job.deadline_s - job.arrival_s)
    return replace(job, arrival_s=0.0, deadline_s=deadline_s, attempts=())
