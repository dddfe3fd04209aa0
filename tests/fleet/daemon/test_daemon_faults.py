"""What goes wrong under a daemon, which lives on: faults that pass, and jobs that cannot be."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.message import Message
from functools import partial
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.error import HTTPError

import pytest
from test_daemon_restarts import CANCELLED, CLUSTER, FragileStore, World, form

from trainyard.fleet.daemon import client, lookahead, server
from trainyard.fleet.daemon import daemon as daemons
from trainyard.fleet.daemon.app import Api, cluster_document
from trainyard.fleet.daemon.store import StateError, Store
from trainyard.fleet.daemon.tables import FINAL, State
from trainyard.fleet.daemon.users import Users
from trainyard.fleet.errors import FleetError
from trainyard.fleet.run.fault import BackendError
from trainyard.fleet.run.observed import NoNotes
from trainyard.fleet.scheduler import scheduler_of
from trainyard.fleet.snapshot import Snapshot
from trainyard.fleet.workload.job import Grant, Job
from trainyard.fleet.workload.level1 import Level1Process, Level1Processes, TooLongError, UnansweredError
from trainyard.fleet.workload.own import read_form


@pytest.fixture(scope="module")
def forms() -> dict[str, str]:
    return {f"job{i}": form(f"job{i}", size) for i, size in enumerate((1, 2, 4, 1))}


class FaultyWorld(World):
    """The same, with a backend and a store that often cannot do what they are asked to; the daemon lives on."""

    faults = 0.2

    def maybe_crash(self) -> None:
        if self.chance.random() < self.faults:
            raise self.chance.choice(FAULTS)()

    def adopt(self, job: Job, grant: Grant) -> bool:
        if self.chance.random() < self.faults:
            raise BackendError("the manager does not answer")
        return super().adopt(job, grant)


FAULTS: tuple[Callable[[], Exception], ...] = (
    lambda: BackendError("the manager does not answer"),
    lambda: StateError("database is locked"),
    lambda: OSError(errno.ENOSPC, "No space left on device"),
    MemoryError,
)


@pytest.mark.parametrize(
    ("policy", "seed"), [(p, i) for i, p in enumerate(("srtf", "fifo", "gandiva", "pollux"))]
)
def test_what_passes_is_survived(
    policy: str, seed: int, tmp_path: Path, forms: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemons, "_PROGRESS_EVERY_S", 0.0)
    monkeypatch.setattr(daemons, "_STATE_AGAIN_S", 0.0)
    world = FaultyWorld(random.Random(seed), crashes=0.0)
    scheduler = scheduler_of(policy, round_s=0.05 if scheduler_of(policy).rounds else None)
    store = FragileStore(f"sqlite:///{tmp_path / 'state.sqlite'}", world)
    daemon = daemons.Daemon(CLUSTER, scheduler, world, store, tmp_path)
    problems, num_turns = set[str](), 0
    for name, text in forms.items():
        store.add(read_form(text, Path("form")), "", text, 1.0)
        if name == CANCELLED:
            daemon.cancel(name, "")
    while any(record.state not in FINAL for record in store.jobs()):
        daemon._turn_safely()
        problems.add(daemon.problem)
        num_turns += 1
        assert num_turns < 10_000
    ends = Counter(event["job"] for event in store.events(10_000) if event["what"] in ("ends", "cancelled"))
    assert ends == Counter(list(forms))
    assert {record.state for record in store.jobs()} == {State.ENDED, State.CANCELLED}
    assert problems - {""}, "nothing went wrong: the test says nothing"
    world.faults = 0.0
    daemon._turn_safely()
    assert not daemon.problem


def test_a_fault_in_the_policy_is_shown_until_it_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(f"sqlite:///{tmp_path / 'state.sqlite'}")
    text = form("a", 1)
    store.add(read_form(text, Path("form")), "", text, 1.0)
    daemon = daemons.Daemon(
        CLUSTER, scheduler_of("fifo"), World(random.Random(0), crashes=0.0), store, tmp_path
    )
    api = Api(daemon, Users())
    monkeypatch.setattr(type(daemon.scheduler.policy), "decide", lambda *_: 1 / 0)
    wait_s = [daemon._turn_safely() for _ in range(3)]
    assert wait_s == [1.0, 2.0, 4.0]
    assert b"ZeroDivisionError" in asyncio.run(api.health()).body
    assert cluster_document(daemon)["problem"] == daemon.problem
    monkeypatch.undo()
    daemon._turn_safely()
    assert asyncio.run(api.health()).body == b"ok\n"
    assert daemon.job("a").state is State.RUNNING


def test_one_job_that_cannot_be_is_the_only_one_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether its form cannot be read, it cannot be started, or the policy cannot decide on it."""
    store, world = Store(f"sqlite:///{tmp_path / 'state.sqlite'}"), World(random.Random(0), crashes=0.0)
    for name in ("unread", "unstarted", "undecided", "good"):
        text = form(name, 1)
        store.add(read_form(text, Path("form")), "", text if name != "unread" else "{", 1.0)
    policy, start = scheduler_of("fifo").policy, world.start

    def decide(self: Any, snapshot: Snapshot, state: Any) -> Any:
        if "undecided" in {job.name for job in snapshot.jobs}:
            raise OverflowError("too large")
        return original(self, snapshot, state)

    def start_some(job: Job, grant: Grant) -> None:
        if job.name == "unstarted":
            raise FleetError("its folder belongs to another training")
        start(job, grant)

    original = type(policy).decide
    monkeypatch.setattr(type(policy), "decide", decide)
    monkeypatch.setattr(world, "start", start_some)
    clock = itertools.count(1000.0, 1000.0)  # so that it is tried again at once
    daemon = daemons.Daemon(CLUSTER, scheduler_of("fifo"), world, store, tmp_path, lambda: next(clock))
    for _ in range(200):
        daemon._turn_safely()
    found = {record.name: (record.state, record.reason) for record in store.jobs()}
    assert {name for name, (state, _) in found.items() if state is State.FAILED} == set(found) - {"good"}
    assert found["good"][0] is State.ENDED
    assert "too large" in found["undecided"][1]
    assert "belongs to another" in found["unstarted"][1]
    assert not daemon.problem


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_server_and_the_state_is_written_at_last(
    how: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server.atexit, "unregister", lambda _: None)
    monkeypatch.setattr(daemons, "_PROGRESS_EVERY_S", 1e9)
    store, world = Store(f"sqlite:///{tmp_path / 'state.sqlite'}"), World(random.Random(0), crashes=0.0)
    daemon = daemons.Daemon(CLUSTER, scheduler_of("fifo"), world, store, tmp_path)
    wrote: list[float] = []
    monkeypatch.setattr(store, "note_progress", lambda *what: wrote.append(what[-1]))
    before = signal.getsignal(how)
    server.serve(daemon, Users(), "127.0.0.1", 0, lambda _: os.kill(os.getpid(), how))
    assert signal.getsignal(how) is before
    assert wrote
    assert daemon._stopping.is_set()


def test_a_submission_is_tried_again_while_the_daemon_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    answers, slept = ["5", "1", None, ""], list[float]()

    def answer(request: Any, timeout: float) -> BytesIO:
        retry_s, headers = answers.pop(0), Message()
        if retry_s is None:
            return BytesIO(b'{"name": "a"}')
        headers["Retry-After"] = retry_s
        raise HTTPError(request.full_url, 503, "busy", headers, BytesIO(b'{"error": "busy"}'))

    monkeypatch.setattr(client.urllib.request, "urlopen", answer)
    monkeypatch.setattr(client.time, "sleep", slept.append)
    assert client.Client().submit({}) == {"name": "a"}
    assert slept == [5.0, 1.0]
    with pytest.raises(FleetError, match=r"^busy$"):
        client.Client().submit({})


def refuse_long(question: str, arguments: tuple[Any, ...]) -> Any:
    """It takes more than it may."""
    raise TooLongError("long")


@contextmanager
def scheduling(daemon: daemons.Daemon) -> Iterator[None]:
    """Within it, a daemon schedules."""
    thread = threading.Thread(target=daemon.run)
    thread.start()
    try:
        yield
    finally:
        daemon.stop()
        thread.join()


def wait_for_end(daemon: daemons.Daemon, name: str) -> None:
    """Until a job has ended."""
    while (state := daemon.job(name).state) is not State.ENDED:
        assert state not in FINAL
        time.sleep(0.01)


def test_a_job_is_looked_at_beside_the_scheduler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, world = Store(f"sqlite:///{tmp_path / 'state.sqlite'}"), World(random.Random(0), crashes=0.0)
    daemon, goes_on = daemons.Daemon(CLUSTER, scheduler_of("fifo"), world, store, tmp_path), threading.Event()
    looks: list[str] = []
    slow = Level1Processes(refuse_long, lambda *_: goes_on.wait())

    def look(policy: Any, cluster: Any, job: Job, now_s: float) -> None:
        if job.name == "slow":
            slow("how fast", ())
            looks.append(job.name)
            raise FleetError("the scheduler finds that, too")

    monkeypatch.setattr(daemons, "look_at", look)
    for name in ("slow", "first"):
        text = form(name, 1)
        store.add(read_form(text, Path("form")), "", text, 1.0)
    with scheduling(daemon):
        try:
            wait_for_end(daemon, "first")
            assert daemon.job("slow").reason.startswith("not looked at yet")
        finally:
            goes_on.set()
        wait_for_end(daemon, "slow")
        assert looks == ["slow"]
        assert type(daemon.driver.notes) is NoNotes  # which do not grow


STOPPING = Path("stopping")


def answer_unless_stopped(asked: Any) -> tuple[Any, str, bool]:
    """What the process does that looks at jobs: the system stops it while there is a file."""
    if STOPPING.exists():
        os.kill(os.getpid(), signal.SIGSTOP)
    return 7, "", False


def looking(stopping: Path) -> Any:
    """What prepares it."""
    global STOPPING
    STOPPING = stopping
    return answer_unless_stopped


def test_a_job_whose_look_was_given_up_is_looked_at_again_and_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the next daemon, too; others are scheduled meanwhile."""
    store, world = Store(f"sqlite:///{tmp_path / 'state.sqlite'}"), World(random.Random(0), crashes=0.0)
    process, stopping, heard = Level1Process(idle_s=0.3), tmp_path / "stopping", list[str]()
    process._process._prepare = partial(looking, stopping)

    def look(policy: Any, cluster: Any, job: Job, now_s: float) -> None:
        if job.name != "known":
            heard.append(job.name)
            process("how fast", (job.name,))

    monkeypatch.setattr(daemons, "look_at", look)
    monkeypatch.setattr(daemons, "Lookahead", partial(daemons.Lookahead, first_pause_s=0.1))
    stopping.touch()
    for name in ("unlucky", "known"):
        text = form(name, 1)
        store.add(read_form(text, Path("form")), "", text, 1.0)
    try:
        for is_first in (True, False):
            heard.clear()
            daemon = daemons.Daemon(CLUSTER, scheduler_of("fifo"), world, store, tmp_path)
            with scheduling(daemon):
                if is_first:
                    wait_for_end(daemon, "known")
                while len(heard) < 3:
                    time.sleep(0.01)
                found = daemon.job("unlucky")
                assert found.state is State.WAITING
                assert found.reason.endswith("this machine is busy or short of memory; it is tried again")
                if not is_first:
                    stopping.unlink()
                    wait_for_end(daemon, "unlucky")
    finally:
        process.close()


def test_pauses_between_looks_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses, record, seen = list[float](), SimpleNamespace(name="a", number=1), threading.Event()
    monkeypatch.setattr(lookahead, "_LONGEST_PAUSE_S", 0.05)

    def look(record: Any) -> None:
        if len(pauses) < 5:
            raise UnansweredError("lost")

    def put_off(record: Any, why: str) -> None:
        assert why == "lost"
        pauses.append(ahead._pause_s[record.name])

    ahead = lookahead.Lookahead(look, seen.set, put_off, first_pause_s=0.01)
    assert not ahead.has_seen(record)
    seen.wait()
    assert pauses == [0.01, 0.02, 0.04, 0.05, 0.05]
    assert ahead.has_seen(record)
    assert not ahead._pause_s
