"""What the daemon keeps, in SQLite and in a real PostgreSQL."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import sys
from pathlib import Path

import pytest

from trainyard.fleet.daemon import store as stores
from trainyard.fleet.daemon.address import state_address
from trainyard.fleet.daemon.app import job_document
from trainyard.fleet.daemon.refusal import Refusal
from trainyard.fleet.daemon.store import StateError, Store
from trainyard.fleet.daemon.tables import State
from trainyard.fleet.errors import FleetError
from trainyard.fleet.run.event import Event, Happening
from trainyard.fleet.run.past import Done
from trainyard.fleet.workload.goodput import Timing
from trainyard.fleet.workload.job import Grant, Job
from trainyard.fleet.workload.own import read_form

FORM = {"num_devices": 2, "model": "gpt-tiny", "batch_size": 4, "steps": 12, "deadline_s": 50}
GRANT = Grant((0, 3), share=0.5, partners=("other",))


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'state.sqlite'}"
    found = str(request.getfixturevalue("postgres"))
    name = f"test_{abs(hash(request.node.name))}"
    import psycopg

    with psycopg.connect(found, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    return found.replace("/postgres?", f"/{name}?")


def added(store: Store, name: str, now_s: float) -> Job:
    text = json.dumps({"name": name, **FORM})
    job = read_form(text, Path("form"))
    store.add(job, "ann", text, now_s)
    return job


COMMAND = {"num_devices": 1, "command": "true", "folder": "/", "length_s": 300}


@pytest.mark.parametrize(
    ("form", "steps", "half", "reason"),
    [
        (FORM, 12, 6, "not looked at yet; its speed is predicted first"),
        (COMMAND | {"steps": 40}, 40, 20, "not looked at yet"),
        (COMMAND, None, None, "not looked at yet"),
        (COMMAND | {"length_s": 0}, None, None, "not looked at yet"),
    ],
)
def test_steps_are_shown_of_jobs_that_count_them(
    form: dict[str, object], steps: int | None, half: int | None, reason: str, tmp_path: Path
) -> None:
    store, text = Store(f"sqlite:///{tmp_path / 'state.sqlite'}"), json.dumps({"name": "a", **form})
    job = read_form(text, Path("form"))
    store.add(job, "ann", text, 100.0)
    new = store.job("a")
    store.note_progress({"a": Done(job.work / 2, 5.0, 6.0)}, {}, set(), 101.0)
    record = store.job("a")
    assert new is not None
    assert record is not None
    assert new.reason == reason
    shown = job_document(record)
    assert (shown["steps"], shown["steps_done"], shown["share_done"]) == (
        steps,
        half,
        0.5 if job.work else 0.0,
    )


def test_the_life_of_a_job(url: str) -> None:
    store = Store(url)
    job = added(store, "a", 100.0)
    record = store.job("a")
    assert record is not None
    assert (record.state, record.grant, record.owner, record.number) == (State.WAITING, None, "ann", 1)
    assert not record.admitted
    assert (record.job.arrival_s, record.job.deadline_s, record.job.user) == (100.0, 150.0, "ann")
    assert record.job.profile == job.profile
    store.write_event(Event(101.0, job, Happening.RUNS, GRANT), Done())
    timings = (Timing("local", 1, 2, 4, 0.5, 0.75),)
    store.note_progress({"a": Done(5.0, 4.0, 8.0, timings)}, {}, {"a"}, 105.0)
    record = Store(url).job("a")
    assert record is not None
    assert (record.state, record.grant, record.first_start_s) == (State.RUNNING, GRANT, 101.0)
    assert record.admitted
    assert record.measured == timings
    assert (record.done, record.attained_s, record.attained_device_s, record.settled_s) == (
        5.0,
        4.0,
        8.0,
        105.0,
    )
    store.write_event(Event(106.0, job, Happening.LEAVES, GRANT), Done(6.0, 5.0, 10.0))
    store.note_progress({"a": Done(6.0, 5.0, 10.0)}, {"a": "others come first"}, {"a"}, 107.0)
    record = store.job("a")
    assert record is not None
    assert (record.state, record.grant, record.reason) == (State.WAITING, None, "others come first")
    store.write_event(Event(108.0, job, Happening.RUNS, GRANT), None)
    store.write_event(Event(110.0, job, Happening.ENDS, GRANT), Done(11.0, 7.0, 14.0))
    record = store.job("a")
    assert record is not None
    assert (record.state, record.grant, record.done, record.finish_s) == (State.ENDED, None, 12.0, 110.0)
    assert (record.first_start_s, record.reason) == (101.0, "")
    assert [event["what"] for event in store.events(99)] == ["ends", "runs", "leaves", "runs", "arrives"]
    assert store.totals() == (10.0, 1.0, 14.0)
    assert {state: count for state, count in store.counts().items() if count} == {State.ENDED: 1}


def test_what_is_over_stays_so(url: str) -> None:
    store = Store(url)
    job = added(store, "a", 1.0)
    store.write_event(Event(2.0, job, Happening.GIVEN_UP, why="it failed"), None)
    store.write_event(Event(3.0, job, Happening.LEAVES, GRANT), None)
    store.note_progress({"a": Done(9.0, 9.0, 9.0)}, {"a": "no"}, set(), 4.0)
    assert store.cancel("a") is State.FAILED
    record = store.job("a")
    assert record is not None
    assert (record.state, record.reason, record.finish_s, record.done) == (
        State.FAILED,
        "it failed",
        2.0,
        0.0,
    )


def test_a_wish_to_cancel_outlives_what_happens_until_then(url: str) -> None:
    store = Store(url)
    job = added(store, "a", 1.0)
    assert store.cancel("a") is State.WAITING
    store.write_event(Event(2.0, job, Happening.RUNS, GRANT), None)
    (record,) = store.jobs(State.CANCELLING)
    assert record.grant == GRANT
    store.write_event(Event(3.0, job, Happening.FAILS, GRANT, "its processes are gone"), None)
    assert [each.state for each in store.jobs()] == [State.CANCELLING]
    store.write_event(Event(4.0, job, Happening.CANCELLED), None)
    assert [each.state for each in store.jobs()] == [State.CANCELLED]
    assert store.cancel("nobody") is None


def test_what_no_database_can_hold_is_written_out_and_is_no_name(url: str) -> None:
    """Such as what is left of a reason after a crash of the machine."""
    store = Store(url)
    job = added(store, "a", 1.0)
    store.write_event(Event(2.0, job, Happening.FAILS, GRANT, "no\x00\ud800 room"), None)
    record = store.job("a")
    assert record is not None
    assert record.reason == r"no\x00\ud800 room"
    store.fail("a", "lost\x00", 3.0)
    record = store.job("a")
    assert record is not None
    assert record.reason == r"lost\x00"
    assert r"no\x00\ud800 room" in store.events(9)[1]["text"]
    for name in ("\x00", "a\x00", "\ud800", "a'--", "A", "a ", "é" * 1000, "../a"):
        assert store.job(name) is None


def test_names_are_used_once_and_jobs_come_in_order(url: str) -> None:
    store = Store(url)
    for i in range(5):
        added(store, f"job{4 - i}", float(i))
    with pytest.raises(Refusal, match="there is or was a job 'job0' already"):
        added(store, "job0", 9.0)
    assert [record.name for record in store.jobs()] == ["job4", "job3", "job2", "job1", "job0"]
    assert len(store.events(99)) == 5, "what is refused has not arrived"


def test_recent_jobs_are_the_last_and_all_that_are_not_over(url: str) -> None:
    store = Store(url)
    for i in range(6):
        job = added(store, f"job{i}", float(i))
        if i not in (0, 2):
            store.write_event(Event(10.0, job, Happening.ENDS, GRANT), None)
    assert store.cancel("job2") is State.WAITING
    for last, shown in ((0, "job0 job2"), (1, "job0 job2 job5"), (4, "job0 job2 job3 job4 job5")):
        assert " ".join(record.name for record in store.recent(last)) == shown
    assert len(store.recent(99)) == 6


def test_a_state_is_of_one_folder_and_cluster(url: str) -> None:
    Store(url).claim(folder="/here", cluster="2x2xlocal")
    Store(url).claim(folder="/here", cluster="2x2xlocal", backend="local")
    with pytest.raises(FleetError, match="this state is of the cluster 2x2xlocal, not 1x1xlocal"):
        Store(url).claim(folder="/here", cluster="1x1xlocal")


@pytest.mark.parametrize(
    "url", ["nonsense", "oracle://x", "sqlite:////nowhere/at/all", "postgresql://me@127.0.0.1:9/x"]
)
def test_a_database_that_is_not_there(url: str) -> None:
    with pytest.raises(FleetError, match=r"the state cannot be kept in .* give --state as"):
        Store(url)


def test_the_driver_of_postgresql_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(
        FleetError, match=r"psycopg, which is not installed: pip install 'trainyard-ml\[postgres\]'"
    ):
        Store("postgresql://me@127.0.0.1:9/x")


@pytest.mark.parametrize("replace", [False, True], ids=["deleted", "replaced"])
def test_nothing_is_promised_where_the_file_is_not_the_one_that_was_opened(
    replace: bool, tmp_path: Path
) -> None:
    file = tmp_path / "state.sqlite"
    store = Store(f"sqlite:///{file}")
    added(store, "a", 100.0)
    kept = file.rename(tmp_path / "elsewhere.sqlite")
    if replace:
        file.write_bytes(kept.read_bytes())
    for ask in (lambda: added(store, "b", 101.0), store.jobs):
        with pytest.raises(StateError, match=r"state\.sqlite was deleted or replaced"):
            ask()
    kept.replace(file)
    added(store, "b", 102.0)
    assert [record.name for record in store.jobs()] == ["a", "b"]


def test_a_damaged_file_may_be_put_back(tmp_path: Path) -> None:
    file = tmp_path / "state.sqlite"
    store = Store(f"sqlite:///{file}")
    added(store, "a", 100.0)
    with sqlite3.connect(file) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    whole = file.read_bytes()
    file.write_bytes(b"no database" * 1000)
    for ask in (lambda: added(store, "b", 101.0), store.jobs):
        with pytest.raises(StateError, match=r"cannot be read or written now: (file is not a|.*malformed)"):
            ask()
    file.write_bytes(whole)
    added(store, "b", 102.0)
    assert [record.name for record in store.jobs()] == ["a", "b"]


@pytest.mark.parametrize("how", ["IMMEDIATE", "EXCLUSIVE"])
def test_a_state_that_another_process_has_locked_is_read_and_waited_for(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(stores._CONNECT, "sqlite", {"timeout": 0.01})
    store = Store(f"sqlite:///{tmp_path / 'state.sqlite'}")
    job = added(store, "a", 100.0)
    other = sqlite3.connect(tmp_path / "state.sqlite", isolation_level=None)
    other.execute(f"BEGIN {how}")
    for write in (
        lambda: added(store, "b", 101.0),
        lambda: store.cancel("a"),
        lambda: store.write_event(Event(102.0, job, Happening.RUNS, GRANT), None),
        lambda: store.note_progress({"a": Done(5.0)}, {}, set(), 103.0),
        lambda: store.fail("a", "no", 104.0),
    ):
        with pytest.raises(StateError, match="cannot be read or written now: database is locked"):
            write()
    assert [(record.name, record.state) for record in store.jobs()] == [("a", State.WAITING)]
    other.close()
    assert store.cancel("a") is State.WAITING


def test_a_state_of_another_version_is_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'state.sqlite'}"
    with sqlite3.connect(tmp_path / "state.sqlite") as connection:
        connection.execute("CREATE TABLE jobs (number INTEGER, name TEXT)")
    with pytest.raises(FleetError, match=r"another version of Trainyard: its jobs have no owner, .*--state"):
        Store(url)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:s3cret@127.0.0.1:9/x", "'postgresql://me:***@127.0.0.1:9/x': (psycopg.OperationalError)"),
        ("postgresql://me:a:s3cret/b@127.0.0.1:9/x", "'postgresql://me:***@127.0.0.1:9/x': (psycopg.OperationalError)"),
        ("postgresql://me:p@s3cret@127.0.0.1:9/x", "'postgresql://me:***@127.0.0.1:9/x': it has more than one @"),
        ("postgresql://me:p@h:s3cret@127.0.0.1/x", "'postgresql://me:***@127.0.0.1/x': it has more than one @"),
        ("postgresql://127.0.0.1:9/x?user=me&password=s3cret", "/x?user=me&password=***': (psycopg.OperationalError)"),
        ("postgresql://me:s3cret@127.0.0.1:port/x", "'postgresql://me:***@127.0.0.1:port/x': invalid literal"),
        ("postgresql:/me:s3cret@127.0.0.1/x", "'postgresql:***@127.0.0.1/x': Could not parse"),
        ("oracle://me:s3cret@x", "'oracle://me:***@x': "),
    ],
)  # fmt: skip
def test_a_password_is_not_told(url: str, shown: str) -> None:
    with pytest.raises(FleetError, match=re.escape(shown)) as error:
        Store(url)
    assert "s3cret" not in str(error.value)


def test_a_password_is_not_for_a_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor do jobs inherit it."""
    kept = "postgresql://me:s3cret@127.0.0.1/x"
    monkeypatch.setenv("TRAINYARD_STATE", kept)
    assert state_address(None, tmp_path) == kept
    assert "TRAINYARD_STATE" not in os.environ
    assert state_address(None, tmp_path) == f"sqlite:///{tmp_path}/state.sqlite"
    for without in (
        "postgresql://me@127.0.0.1:5432/x",
        "postgresql:///x?host=/run/postgresql",
        "sqlite:///x",
    ):
        assert state_address(without, tmp_path) == without
    with pytest.raises(
        FleetError, match=r"has a password, .* in ~/\.pgpass, .* variable TRAINYARD_STATE"
    ) as error:
        state_address(kept, tmp_path)
    assert "s3cret" not in str(error.value)
