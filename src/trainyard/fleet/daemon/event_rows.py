"""Changes that an event of a job makes to the tables: a new row of events, the job's row, its span on devices."""

from __future__ import annotations

import json
from typing import Any

import sqlalchemy as sql

from trainyard.fleet.daemon.tables import EVENTS, JOBS, SPANS, State
from trainyard.fleet.run.event import Event, Happening
from trainyard.reading import visible

__all__ = ["end_span", "job_values", "write_event_row"]

_ON_DEVICES = (Happening.RUNS, Happening.STAYS)


def write_event_row(connection: sql.Connection, event: Event, key: str = "") -> None:
    """Write an event, and the span on devices that it begins or ends.

    Parameters
    ----------
    key : of the event; "" draws one.
    """
    text = visible(event.text)
    values = {"at_s": event.now_s, "job": event.job.name, "what": str(event.what), "text": text}
    connection.execute(EVENTS.insert().values(values | ({"key": key} if key else {})))
    if event.what in _ON_DEVICES:
        _begin_span(connection, event)
    elif event.what is not Happening.ARRIVES:
        end_span(connection, event.job.name, event.now_s)


def _begin_span(connection: sql.Connection, event: Event) -> None:
    """Begin a span; a job that stays on its devices keeps its span."""
    assert event.grant is not None, "a job that runs has devices"
    devices = json.dumps(event.grant.devices)
    now = (SPANS.c.job == event.job.name, SPANS.c.end_s.is_(None))
    query = sql.select(SPANS.c.devices).where(*now)
    if event.what is Happening.STAYS and connection.execute(query).scalar() == devices:
        return
    end_span(connection, event.job.name, event.now_s)
    values = {"job": event.job.name, "devices": devices, "start_s": event.now_s}
    connection.execute(SPANS.insert().values(values))


def end_span(connection: sql.Connection, job: str, now_s: float) -> None:
    """End the open span of a job, if it has one."""
    now = (SPANS.c.job == job, SPANS.c.end_s.is_(None))
    connection.execute(SPANS.update().where(*now).values(end_s=now_s))


def job_values(event: Event) -> dict[str, Any]:
    """Return the new values in the row of an event's job."""
    now_s, c, why = event.now_s, JOBS.c, visible(event.why)  # databases take no other text
    over = {"granted": None, "reason": why, "finish_s": now_s}
    match event.what:
        case Happening.RUNS | Happening.STAYS:
            assert event.grant is not None
            granted = json.dumps(event.grant._asdict())
            first_start_s = sql.func.coalesce(c.first_start_s, now_s)
            return _unless_cancelling(State.RUNNING) | {
                "granted": granted,
                "first_start_s": first_start_s,
                "reason": "",
            }
        case Happening.LEAVES | Happening.FAILS | Happening.LOSES_NODE:
            return _unless_cancelling(State.WAITING) | {"granted": None, "reason": why}
        case Happening.ENDS:
            return over | {"state": State.ENDED, "done": event.job.work}
        case Happening.CANCELLED:
            return over | {"state": State.CANCELLED}
        case Happening.REFUSED:
            return over | {"state": State.REFUSED}
        case _:
            return over | {"state": State.FAILED}


def _unless_cancelling(state: State) -> dict[str, Any]:
    return {"state": sql.case((JOBS.c.state == State.CANCELLING, State.CANCELLING), else_=state)}
