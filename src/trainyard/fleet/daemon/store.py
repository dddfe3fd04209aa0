"""What the daemon must not forget, in a database: SQLite in a file, or PostgreSQL.

What happens to a job is written here before the backend hears of it. So after a crash the database never knows less than
what runs: at most a job was not started that it says runs, or not stopped that it says waits. `Driver.restore` sets both
right. Of a cancelled job the wish is written first, and the deed when it is done.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import sqlalchemy as sql
from sqlalchemy.exc import (
    DatabaseError,
    DataError,
    IntegrityError,
    InterfaceError,
    NotSupportedError,
    ProgrammingError,
    SQLAlchemyError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from trainyard.distribution import install_command
from trainyard.fleet.daemon.address import with_driver, without_password
from trainyard.fleet.daemon.event_rows import end_span, job_values, write_event_row
from trainyard.fleet.daemon.refusal import Refusal
from trainyard.fleet.daemon.tables import ABOUT, EVENTS, FINAL, JOBS, SPANS, TABLES, Record, State, record_of
from trainyard.fleet.errors import FleetError
from trainyard.fleet.run.event import Event, Happening
from trainyard.fleet.run.past import Done
from trainyard.fleet.span import Span
from trainyard.fleet.workload.job import Job
from trainyard.reading import visible

_NEW, _NEW_TRAINING = "not looked at yet", "not looked at yet; its speed is predicted first"
_LIVES = JOBS.c.finish_s.is_(None)
# All other faults pass: of a database that is locked, full, being restarted or not reached, or damaged and put back.
_OF_STATEMENTS = (DataError, IntegrityError, NotSupportedError, ProgrammingError)
_CONNECT = {
    "sqlite": {"timeout": 5.0},
    # A host that is gone answers nothing; without these a statement would wait for it for minutes.
    "postgresql": {
        "connect_timeout": 5,
        "keepalives_idle": 5,
        "keepalives_interval": 5,
        "tcp_user_timeout": 15_000,
    },
}


class StateError(FleetError):
    """The state cannot be read or written now; it may be later."""


class Store:
    """The tables.

    Parameters
    ----------
    url : as SQLAlchemy reads it; tables are made where there are none.

    Raises
    ------
    FleetError
        If there is no such database.
    """

    def __init__(self, url: str) -> None:
        try:
            address = sql.make_url(with_driver(url))
            connect = _CONNECT.get(address.get_backend_name(), {})
            self._engine = sql.create_engine(address, pool_pre_ping=True, connect_args=connect)
            if self._engine.dialect.name == "sqlite":
                # Readers do not wait for the writer.
                sql.event.listen(self._engine, "connect", lambda c, _: c.execute("PRAGMA journal_mode=WAL"))
            TABLES.create_all(self._engine)
            look = sql.inspect(self._engine)
            missing = [
                f"{table.name} have no {column.name}"
                for table in (JOBS, EVENTS)
                for column in table.columns
                if column.name not in {known["name"] for known in look.get_columns(table.name)}
            ]
        except (SQLAlchemyError, ModuleNotFoundError, ValueError) as error:
            shown, reason = without_password(url), str(error).splitlines()[0]
            if shown != url and url.count("@") > 1:
                # What follows the first one is taken for the host, and may be the end of a password.
                reason = "it has more than one @; inside a password it is written %40"
            if getattr(error, "name", None) == "psycopg":
                reason = f"it needs psycopg, which is not installed: {install_command('postgres')}"
            raise FleetError(
                f"the state cannot be kept in {shown!r}: {reason}; give --state as "
                "sqlite:////FOLDER/FILE or postgresql://USER@HOST/DATABASE"
            ) from error
        is_file = self._engine.dialect.name == "sqlite" and address.database not in (None, "", ":memory:")
        self._file = Path(str(address.database)) if is_file else None
        self._inode = self._found_inode()
        if missing:
            raise FleetError(
                f"this state was made by another version of Trainyard: its {', its '.join(missing)}; give another "
                "--state, or let that version end its jobs"
            )

    def _begins(self) -> AbstractContextManager[sql.Connection]:
        self._check_file()
        return _passing(self._engine.begin)

    def _reads(self) -> AbstractContextManager[sql.Connection]:
        self._check_file()
        return _passing(self._engine.connect)

    def _check_file(self) -> None:
        """Whether the file is still there: SQLite would go on in one that was deleted, and all be lost at the next start.

        Raises
        ------
        StateError
            If not.
        """
        if self._found_inode() != self._inode:
            raise StateError(
                f"the state cannot be read or written now: {self._file} was deleted or replaced; put it back as it "
                "was, or start the daemon again, which knows no more than what is there then"
            )

    def _found_inode(self) -> int | None:
        try:
            return None if self._file is None else self._file.stat().st_ino
        except OSError:
            return 0

    def claim(self, **facts: str) -> None:
        """Note what this state is of, such as the folder and the cluster.

        Raises
        ------
        FleetError
            If it is of another one.
        """
        with self._begins() as connection:
            known = {row.name: row.text for row in connection.execute(sql.select(ABOUT))}
            for name, text in facts.items():
                if known.get(name, text) != text:
                    raise FleetError(
                        f"this state is of the {name} {known[name]}, not {text}; start the daemon as before, or give it "
                        "another --state"
                    )
                if name not in known:
                    connection.execute(ABOUT.insert().values(name=name, text=text))

    def add(self, job: Job, owner: str, form: str, now_s: float) -> None:
        """A job is submitted; it waits.

        Raises
        ------
        Refusal
            If there is or was one of its name.
        """
        arrival = Event(now_s, job, Happening.ARRIVES)
        try:
            with self._begins() as connection:
                connection.execute(
                    JOBS.insert().values(
                        name=job.name,
                        owner=owner,
                        form=form,
                        model=job.model,
                        num_devices=job.num_devices,
                        work=job.work,
                        steps=int(job.work) if job.command is None else job.command.steps or None,
                        state=State.WAITING,
                        reason=_NEW_TRAINING if job.command is None else _NEW,
                        arrival_s=now_s,
                        settled_s=now_s,
                    )
                )
                write_event_row(connection, arrival)
        except IntegrityError as error:
            raise Refusal(
                409, f"there is or was a job {job.name!r} already; give this one another name"
            ) from error

    def cancel(self, name: str) -> State | None:
        """Note that a job is to be cancelled; its state until now, None if there is no such job."""
        with self._begins() as connection:
            state = connection.execute(sql.select(JOBS.c.state).where(JOBS.c.name == name)).scalar()
            connection.execute(
                JOBS.update().where(JOBS.c.name == name, _LIVES).values(state=State.CANCELLING)
            )
        return None if state is None else State(state)

    def write_event(self, event: Event, done: Done | None, key: str = "") -> None:
        """Write down what happens to a job.

        Parameters
        ----------
        done : how far it is; None leaves that.
        key : the event's own, by which it is known if it was written before; "" draws one.
        """
        if event.what is Happening.ARRIVES:
            return  # written when it was submitted
        values = job_values(event)
        if done is not None:
            values = _columns(done, event.now_s) | values
        with suppress(IntegrityError), self._begins() as connection:
            write_event_row(connection, event, key)
            connection.execute(JOBS.update().where(JOBS.c.name == event.job.name, _LIVES).values(values))

    def fail(self, name: str, why: str, now_s: float) -> None:
        """Write down that a job has failed of which nothing else can be said, such as one whose form cannot be read."""
        why = visible(why)
        values = {"granted": None, "reason": why, "finish_s": now_s, "state": State.FAILED}
        with self._begins() as connection:
            connection.execute(JOBS.update().where(JOBS.c.name == name, _LIVES).values(values))
            text = f"is given up: {why}"
            connection.execute(
                EVENTS.insert().values(at_s=now_s, job=name, what=Happening.GIVEN_UP, text=text)
            )
            end_span(connection, name, now_s)

    def note_reason(self, name: str, why: str) -> None:
        """Write down why a job waits."""
        waits = (JOBS.c.name == name, JOBS.c.state == State.WAITING)
        with self._begins() as connection:
            connection.execute(JOBS.update().where(*waits).values(reason=why))

    def note_progress(
        self,
        done: Mapping[str, Done],
        reasons: Mapping[str, str],
        admitted: Set[str],
        now_s: float,
    ) -> None:
        """Write down how far jobs are, why those wait that do, and which of them the policy has admitted."""
        rows = [
            _columns(far, now_s)
            | {"job": name, "reason": reasons.get(name, ""), "admitted": name in admitted}
            for name, far in done.items()
        ]
        if rows:
            update = JOBS.update().where(JOBS.c.name == sql.bindparam("job"), _LIVES)
            with self._begins() as connection:
                connection.execute(update, rows)

    def remember(self, name: str, text: str) -> None:
        """Write a text of the scheduler by name, such as its usage, in place of the earlier text."""
        with self._begins() as connection:
            connection.execute(ABOUT.delete().where(ABOUT.c.name == name))
            connection.execute(ABOUT.insert().values(name=name, text=text))

    def remembered(self, name: str) -> str | None:
        """Return the text that `remember` wrote by a name; None if there is none."""
        with self._reads() as connection:
            text = connection.execute(sql.select(ABOUT.c.text).where(ABOUT.c.name == name)).scalar()
        return None if text is None else str(text)

    def job(self, name: str) -> Record | None:
        """One job; None if there is none of this name."""
        found = self._records(JOBS.c.name == name) if visible(name) == name else ()
        return found[0] if found else None

    def jobs(self, *states: State) -> Sequence[Record]:
        """Jobs in any of some states, all if none are named, as they were submitted."""
        return self._records(JOBS.c.state.in_(states) if states else sql.true())

    def recent(self, last: int, owner: str | None = None, states: Sequence[State] = ()) -> Sequence[Record]:
        """Return all jobs that are not over and the ``last`` submitted jobs, in the order of submission.

        Parameters
        ----------
        owner, states : only jobs of this user and in these states count; by default all jobs.
        """
        wanted = _owned_by(owner) & (JOBS.c.state.in_(states) if states else sql.true())
        newest = sql.select(JOBS.c.number).where(wanted).order_by(JOBS.c.number.desc()).limit(last)
        live = JOBS.c.state.in_(
            [state for state in State if state not in FINAL]
        )  # of which there is an index
        return self._records(wanted & (live | JOBS.c.number.in_(newest)))

    def _records(self, where: sql.ColumnElement[bool]) -> Sequence[Record]:
        query = sql.select(JOBS).where(where).order_by(JOBS.c.number)
        with self._reads() as connection:
            rows = connection.execute(query).mappings().all()
        return [record_of(row) for row in rows]

    def counts(self) -> dict[State, int]:
        """Number of jobs in every state."""
        query = sql.select(JOBS.c.state, sql.func.count()).group_by(JOBS.c.state)
        with self._reads() as connection:
            found = {State(state): int(count) for state, count in connection.execute(query)}
        return {state: found.get(state, 0) for state in State}

    def latest_s(self) -> float:
        """The latest moment that is written down; 0 if there is none."""
        moments = (sql.func.max(EVENTS.c.at_s), sql.func.max(JOBS.c.settled_s))
        with self._reads() as connection:
            return max(float(connection.execute(sql.select(each)).scalar() or 0.0) for each in moments)

    def totals(self) -> tuple[float, float, float]:
        """Sums over the jobs that ended: of completion times, of times before the first devices, and of device times."""
        c = JOBS.c
        sums = (c.finish_s - c.arrival_s, c.first_start_s - c.arrival_s, c.attained_device_s)
        query = sql.select(*(sql.func.coalesce(sql.func.sum(each), 0.0) for each in sums))
        with self._reads() as connection:
            jct_s, queueing_s, device_s = connection.execute(query.where(c.state == State.ENDED)).one()
        return float(jct_s), float(queueing_s), float(device_s)

    def events(self, last: int, job: str | None = None, owner: str | None = None) -> list[dict[str, Any]]:
        """Return the last events, the newest first: all, or those of one job or of one user's jobs."""
        shown = [column for column in EVENTS.c if column is not EVENTS.c.key]
        query = sql.select(*shown).order_by(EVENTS.c.number.desc()).limit(last)
        if job is not None:
            query = query.where(EVENTS.c.job == job if visible(job) == job else sql.false())
        if owner is not None:
            query = query.where(EVENTS.c.job.in_(sql.select(JOBS.c.name).where(_owned_by(owner))))
        with self._reads() as connection:
            return [dict(row) for row in connection.execute(query).mappings()]

    def spans(self, since_s: float, last: int) -> list[Span]:
        """Return the last spans of jobs on devices that are open or ended after a time, the newest first.

        An open span ends at infinity.
        """
        c = SPANS.c
        query = sql.select(c.job, c.start_s, c.end_s, c.devices).order_by(c.number.desc()).limit(last)
        with self._reads() as connection:
            rows = connection.execute(query.where(c.end_s.is_(None) | (c.end_s > since_s))).all()
        return [
            Span(job, start_s, math.inf if end_s is None else end_s, tuple(json.loads(devices)))
            for job, start_s, end_s, devices in rows
        ]


def _owned_by(owner: str | None) -> sql.ColumnElement[bool]:
    """Return the condition that a job belongs to a user; None is any user."""
    if owner is None:
        return sql.true()
    return JOBS.c.owner == owner if visible(owner) == owner else sql.false()


def _columns(done: Done, now_s: float) -> dict[str, Any]:
    """What says how far a job is."""
    return {
        "done": done.work,
        "attained_s": done.attained_s,
        "attained_device_s": done.attained_device_s,
        "measured": json.dumps(done.timings),
        "settled_s": now_s,
    }


@contextmanager
def _passing(connect: Callable[[], AbstractContextManager[sql.Connection]]) -> Iterator[sql.Connection]:
    """A connection; faults that pass are raised as `StateError`."""
    try:
        with connect() as connection:
            try:
                yield connection
            except DatabaseError as error:
                if (
                    type(error) is DatabaseError
                ):  # of a damaged file: what SQLite has kept of that is not asked again
                    connection.invalidate()
                raise
    except _OF_STATEMENTS:
        raise
    except (DatabaseError, InterfaceError, PoolTimeoutError) as error:
        reason = str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
        raise StateError(f"the state cannot be read or written now: {reason}") from error
