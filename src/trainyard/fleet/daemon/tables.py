"""The tables of the daemon, and a job as it stands in them. Times are seconds since 1970."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import sqlalchemy as sql

from trainyard.fleet.workload.goodput import Timing
from trainyard.fleet.workload.job import Grant, Job
from trainyard.fleet.workload.own import reread_form


class State(StrEnum):
    """State of a job."""

    WAITING = "waiting"
    RUNNING = "running"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"
    ENDED = "ended"
    REFUSED = "refused"
    FAILED = "failed"


FINAL = (State.CANCELLED, State.ENDED, State.REFUSED, State.FAILED)

TABLES = sql.MetaData()
JOBS = sql.Table(
    "jobs",
    TABLES,
    sql.Column("number", sql.Integer, primary_key=True),
    sql.Column("name", sql.String(100), nullable=False, unique=True),
    sql.Column("owner", sql.String(100), nullable=False),
    sql.Column("form", sql.Text, nullable=False),
    sql.Column("model", sql.Text, nullable=False),
    sql.Column("num_devices", sql.Integer, nullable=False),
    sql.Column("work", sql.Double, nullable=False),
    sql.Column("steps", sql.Integer),  # none if the job counts no steps
    sql.Column("state", sql.String(16), nullable=False, index=True),
    sql.Column("reason", sql.Text, nullable=False, default=""),
    sql.Column("admitted", sql.Boolean, nullable=False, default=False),
    sql.Column("granted", sql.Text),  # a grant as JSON
    sql.Column("done", sql.Double, nullable=False, default=0.0),
    sql.Column("attained_s", sql.Double, nullable=False, default=0.0),
    sql.Column("attained_device_s", sql.Double, nullable=False, default=0.0),
    sql.Column("measured", sql.Text, nullable=False, default="[]"),  # timings as JSON
    sql.Column("settled_s", sql.Double, nullable=False),
    sql.Column("arrival_s", sql.Double, nullable=False),
    sql.Column("first_start_s", sql.Double),
    sql.Column("finish_s", sql.Double),
)
EVENTS = sql.Table(
    "events",
    TABLES,
    sql.Column("number", sql.Integer, primary_key=True),
    sql.Column("at_s", sql.Double, nullable=False),
    sql.Column("job", sql.String(100), nullable=False, index=True),
    sql.Column("what", sql.String(16), nullable=False),
    sql.Column("key", sql.String(16), nullable=False, unique=True, default=lambda: secrets.token_hex(8)),
    sql.Column("text", sql.Text, nullable=False),
)
SPANS = sql.Table(
    "spans",
    TABLES,
    sql.Column("number", sql.Integer, primary_key=True),
    sql.Column("job", sql.String(100), nullable=False, index=True),
    sql.Column("devices", sql.Text, nullable=False),  # numbers as JSON
    sql.Column("start_s", sql.Double, nullable=False),
    sql.Column("end_s", sql.Double, index=True),  # none while the job has the devices
)
ABOUT = sql.Table(
    "about",
    TABLES,
    sql.Column("name", sql.String(16), primary_key=True),
    sql.Column("text", sql.Text, nullable=False),
)


@dataclass(frozen=True)
class Record:
    """A job as the database has it.

    Attributes
    ----------
    owner : who submitted it.
    form : as it was submitted; the fields up to ``steps`` are of it.
    steps : number of steps; None for a command that does not say it.
    reason : why it waits, was refused, or failed.
    admitted : whether the policy has decided on it, and did not refuse it.
    done, attained_s, attained_device_s : of its work, time in which it had devices, and that times their number, at
        ``settled_s``.
    measured : what it measured of its steps.
    """

    number: int
    name: str
    owner: str
    form: str
    model: str
    num_devices: int
    work: float
    steps: int | None
    state: State
    reason: str
    admitted: bool
    grant: Grant | None
    done: float
    attained_s: float
    attained_device_s: float
    measured: tuple[Timing, ...]
    settled_s: float
    arrival_s: float
    first_start_s: float | None
    finish_s: float | None

    @property
    def job(self) -> Job:
        """The job; times of its form are counted from its arrival."""
        job = reread_form(self.form, Path(f"job {self.name}"))
        deadline_s = None if job.deadline_s is None else self.arrival_s + job.deadline_s
        return replace(job, arrival_s=self.arrival_s, deadline_s=deadline_s, user=self.owner)


def record_of(row: sql.RowMapping) -> Record:
    """A row of the jobs."""
    values: dict[str, Any] = {str(name): value for name, value in row.items()}
    values["state"] = State(values["state"])
    granted = values.pop("granted")
    given = None if granted is None else json.loads(granted)
    grant = given and Grant(**given | {name: tuple(given[name]) for name in ("devices", "partners")})
    measured = tuple(Timing(*timing) for timing in json.loads(values.pop("measured")))
    return Record(**values, grant=grant, measured=measured)
