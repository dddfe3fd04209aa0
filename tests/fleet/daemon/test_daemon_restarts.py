"""A daemon that crashes at any moment loses no job, runs none twice, and gives no device out twice.

The backend here is a world that outlives daemons, without processes; before and after all that a daemon does to it or to
its database, it may crash.
"""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from trainyard.fleet.daemon import daemon as daemons
from trainyard.fleet.daemon.store import Store
from trainyard.fleet.daemon.tables import FINAL, State
from trainyard.fleet.errors import FleetError
from trainyard.fleet.mechanism.allocator import Allocator
from trainyard.fleet.run.backend import USUAL_LIMITS, JobLimits, Progress
from trainyard.fleet.run.event import Event, Happening
from trainyard.fleet.run.fault import BackendError
from trainyard.fleet.run.past import Done
from trainyard.fleet.scheduler import scheduler_of
from trainyard.fleet.workload.goodput import Timing
from trainyard.fleet.workload.job import Grant, Job
from trainyard.fleet.workload.own import read_form
from trainyard.hardware.cluster import Cluster

CLUSTER = Cluster.uniform(2, 2, "local")
WORK = 12
TIMINGS = (Timing("local", 1, 2, 4, 0.5, 0.75),)
CANCELLED, FOREVER = "job2", 10_000


class CrashError(BaseException):
    """The daemon is killed."""


class NeverError(BaseException):
    """What must never be; nothing handles it."""


def never(happens: bool, what: str) -> None:
    if happens:
        raise NeverError(what)


@dataclass
class World:
    """Processes of jobs, as a backend finds them; it asserts what must never be."""

    chance: random.Random
    crashes: float
    running: dict[str, Grant] = field(default_factory=dict)
    steps: Counter[str] = field(default_factory=Counter)
    losses: float = 0.0
    lost: frozenset[int] = frozenset()
    num_lost: int = 0
    leaving: set[str] = field(default_factory=set)
    core_part: float = 1.0
    limits: JobLimits = USUAL_LIMITS

    def away(self) -> frozenset[int]:
        if self.chance.random() < self.losses:
            self.lost = self.lost ^ {self.chance.randrange(len(CLUSTER.nodes))}
            self.num_lost += len(self.lost)
        return self.lost

    def leave(self, name: str, is_lost: bool = False) -> None:
        self.maybe_crash()
        self.leaving |= {name} & set(self.running)
        self.maybe_crash()

    def has_left(self, name: str) -> bool:
        if name in self.leaving and self.chance.random() < 0.3:
            self.leaving.remove(name)
            self.running.pop(name, None)  # it may have been stopped meanwhile
        return name not in self.leaving

    def held(self, name: str) -> frozenset[int] | None:
        return frozenset(self.running[name].devices) if name in self.running else None

    def maybe_crash(self) -> None:
        if self.chance.random() < self.crashes:
            raise CrashError

    def adopt(self, job: Job, grant: Grant) -> bool:
        return job.name in self.running and job.name not in self.leaving

    def start(self, job: Job, grant: Grant) -> None:
        self.maybe_crash()
        never(job.name in self.running, "a job runs twice")
        never(self.steps[job.name] >= work_of(job.name), "a job that is done is started")
        used = {d for g in self.running.values() for d in g.devices}
        never(bool(used & set(grant.devices)), "a device is given out twice")
        never(bool({CLUSTER.node_of[d] for d in grant.devices} & self.lost), "a job starts on a lost node")
        self.running[job.name] = grant
        self.maybe_crash()

    def progress(self, name: str) -> Progress:
        if name in self.running:
            self.steps[name] += self.chance.randint(0, 3)
            if self.steps[name] < work_of(name) and self.chance.random() > 0.02:
                return Progress(self.steps[name])
            self.running.pop(name, None)  # it may have been stopped meanwhile
        if self.steps[name] >= work_of(name):
            return Progress(work_of(name), ended=True)
        return Progress(self.steps[name], failure="its processes are gone")

    def close(self) -> None:
        raise AssertionError("jobs outlive daemons")


class FragileStore(Store):
    """A store whose daemon may crash before and after it writes."""

    def __init__(self, url: str, world: World) -> None:
        super().__init__(url)
        self.world = world

    def write_event(self, *what: Any) -> None:
        self._fragile(super().write_event, *what)

    def note_progress(self, *what: Any) -> None:
        self._fragile(super().note_progress, *what)

    def _fragile(self, write: Callable[..., None], *what: Any) -> None:
        self.world.maybe_crash()
        write(*what)
        self.world.maybe_crash()


def work_of(name: str) -> int:
    return FOREVER if name == CANCELLED else WORK


def form(name: str, size: int, **rest: float) -> str:
    steps = work_of(name)
    return json.dumps(
        {"name": name, "num_devices": size, "model": "gpt-tiny", "batch_size": 4, "steps": steps} | rest
    )


@pytest.fixture(scope="module")
def forms() -> dict[str, str]:
    return {f"job{i}": form(f"job{i}", size) for i, size in enumerate((1, 2, 4, 1, 1, 2))}


POLICIES = (
    "srtf", "fifo", "las", "tiresias", "gandiva", "pollux", "hived", "sia", "synergy", "gavel_makespan",
)  # fmt: skip
# Each policy crashes at other moments, with and without lost nodes; other moments are for `make test-long`.
CHANCES = [
    pytest.param(
        policy, seed, losses, marks=() if seed == number % 4 else (pytest.mark.slow, pytest.mark.long)
    )
    for number, policy in enumerate(POLICIES)
    for losses in (0.0, 0.2)
    for seed in range(4)
]


@pytest.mark.parametrize(("policy", "seed", "losses"), CHANCES)
def test_nothing_is_lost_and_nothing_runs_twice(
    policy: str,
    seed: int,
    losses: float,
    tmp_path: Path,
    forms: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(daemons, "_PROGRESS_EVERY_S", 0.0)
    world = World(random.Random(seed), crashes=0.1, losses=losses)
    round_s = 0.05 if scheduler_of(policy).rounds else None
    scheduler, url = scheduler_of(policy, round_s=round_s), f"sqlite:///{tmp_path / 'state.sqlite'}"
    coming, num_daemons = list(forms.items()), 0
    while True:
        store = FragileStore(url, world)
        daemon = daemons.Daemon(CLUSTER, scheduler, world, store, tmp_path)
        num_daemons += 1
        try:
            while coming or any(r.state not in FINAL for r in store.jobs()):
                if coming and world.chance.random() < 0.3:
                    name, text = coming.pop(0)
                    store.add(read_form(text, Path("form")), "", text, 1.0)
                    if name == "job4":
                        daemon.cancel(CANCELLED, "")
                    daemon._news.set()
                daemon.turn()
            break
        except CrashError:
            assert num_daemons < 500
    records = {record.name: record for record in store.jobs()}
    assert {name: record.state for name, record in records.items()} == {
        name: State.CANCELLED if name == CANCELLED else State.ENDED for name in forms
    }
    assert set(world.running) <= world.leaving & {CANCELLED}
    assert all(record.grant is None for record in records.values())
    assert all(record.done == WORK for name, record in records.items() if name != CANCELLED)
    ends = Counter(event["job"] for event in store.events(10_000) if event["what"] in ("ends", "cancelled"))
    assert ends == Counter(list(forms))
    check_spans(store, scheduler.shares)
    assert num_daemons > 2, "there was hardly a crash: the test says nothing"
    assert (world.num_lost > 0) == (losses > 0)


def check_spans(store: Store, shares: bool) -> None:
    """Each time that a job runs is a span, and no device is in two spans at once.

    Parameters
    ----------
    shares : whether jobs may share devices.
    """
    spans = store.spans(0.0, 10_000)
    runs = [event for event in store.events(10_000) if event["what"] == "runs"]
    assert Counter(span.job for span in spans) == Counter(event["job"] for event in runs)
    assert {span.start_s for span in spans} == {event["at_s"] for event in runs}
    assert all(span.start_s <= span.end_s < math.inf for span in spans)
    # A cancelled job is over only once it has left its devices, which others may get before.
    every = sorted((s.start_s, s.end_s, d) for s in spans for d in s.devices if s.job != CANCELLED)
    free_s = dict[int, float]()
    for start_s, end_s, device in every:
        assert shares or free_s.get(device, 0.0) <= start_s
        free_s[device] = end_s


def test_a_job_that_was_to_leave_is_stopped_by_the_next_daemon(tmp_path: Path) -> None:
    world = World(random.Random(0), crashes=0.0)
    store = Store(f"sqlite:///{tmp_path / 'state.sqlite'}")
    text = form("a", 1)
    store.add(read_form(text, Path("form")), "", text, 1.0)
    world.running["a"] = Grant((3,))  # the database says that it waits
    daemon = daemons.Daemon(CLUSTER, scheduler_of("fifo"), world, store, tmp_path)
    seen = set[tuple[int, ...]]()
    while daemon.job("a").state is not State.ENDED:  # it takes a while to leave
        daemon.turn()
        seen |= {grant.devices for grant in world.running.values()}
    assert seen == {(3,), (0,)}


@pytest.mark.parametrize("why", ["its form", "the cluster"])
def test_a_job_that_cannot_come_back_leaves_before_others_get_its_devices(
    why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(random.Random(0), crashes=0.0)
    store = Store(f"sqlite:///{tmp_path / 'state.sqlite'}")
    for name in ("a", "b"):
        text = form(name, 4)
        store.add(read_form(text, Path("form")), "", "{" if name == "a" and why == "its form" else text, 1.0)
    world.running["a"] = Grant((0, 1, 2, 3))
    store.write_event(
        Event(1.0, read_form(form("a", 4), Path("form")), Happening.RUNS, world.running["a"]), None
    )

    def enter(self: Allocator, job: Job, now_s: float) -> None:
        if job.name == "a":
            raise FleetError("it asks for more than the cluster has")
        original(self, job, now_s)

    original = Allocator.enter
    monkeypatch.setattr(Allocator, "enter", enter if why == "the cluster" else original)
    daemon = daemons.Daemon(CLUSTER, scheduler_of("fifo"), world, store, tmp_path)
    for _ in range(30):
        if "a" in world.running:
            assert "b" not in world.running
            assert daemon.job("a").state is State.RUNNING
        daemon.turn()
    assert daemon.job("a").state is State.FAILED
    assert "a" not in world.running
    assert daemon.job("b").state is not State.WAITING


@pytest.mark.parametrize("size", [2, 4])
def test_nothing_starts_where_it_is_not_known_what_runs(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backend cannot be asked about a job that had devices, on which another one is to run, or beside it."""
    world, is_away = World(random.Random(0), crashes=0.0), True
    store = Store(f"sqlite:///{tmp_path / 'state.sqlite'}")
    for name in ("a", "b"):
        text = form(name, size)
        store.add(read_form(text, Path("form")), "", text, 1.0)
    world.running["a"] = held = Grant(tuple(range(4 - size, 4)))
    store.write_event(Event(1.0, read_form(form("a", size), Path("form")), Happening.RUNS, held), None)

    def adopt(job: Job, grant: Grant) -> bool:
        if job.name == "a" and is_away:
            raise BackendError("the manager does not answer")
        return original(job, grant)

    original = world.adopt
    monkeypatch.setattr(world, "adopt", adopt)
    daemon = daemons.Daemon(CLUSTER, scheduler_of("fifo"), world, store, tmp_path)
    for _ in range(3):
        daemon._turn_safely()
        assert set(world.running) == ({"a"} if size == 4 else {"a", "b"})
    assert daemon.problem == "the manager does not answer"
    is_away = False
    turns = 0
    while any(daemon.job(name).state is not State.ENDED for name in ("a", "b")):
        daemon._turn_safely()
        turns += 1
        assert turns < 200
    assert not daemon.problem
    assert not world.running


def test_who_is_cancelled_while_a_policy_decides_gets_no_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(random.Random(0), crashes=0.0)
    store = Store(f"sqlite:///{tmp_path / 'state.sqlite'}")
    daemon = daemons.Daemon(CLUSTER, scheduler_of("fifo"), world, store, tmp_path)
    for name in ("a", "b"):
        text = form(name, 4)
        store.add(read_form(text, Path("form")), "", text, 1.0)
        assert daemon.job(name).reason.startswith("not looked at yet")

    def decide(self: Any, *what: Any) -> Any:
        if daemon.job("a").state is State.WAITING:
            daemon.cancel("a", "")
        return original(self, *what)

    original = type(daemon.scheduler.policy).decide
    monkeypatch.setattr(type(daemon.scheduler.policy), "decide", decide)
    daemon.turn()
    daemon.turn()
    assert list(world.running) == ["b"]
    assert [event["what"] for event in store.events(10, "a")] == ["cancelled", "arrives"]


@pytest.mark.parametrize(
    ("policy", "whose", "had"),
    [
        ("srtf", "b", Done(9.0, 60.0, 120.0, TIMINGS)),  # the job with less work left goes first
        ("las", "a", Done(0.0, 60.0, 120.0, TIMINGS)),  # both have all their work left, and b had no time yet
    ],
)
def test_progress_is_known_to_the_next_daemon(policy: str, whose: str, had: Done, tmp_path: Path) -> None:
    world = World(random.Random(0), crashes=0.0)
    store = Store(f"sqlite:///{tmp_path / 'state.sqlite'}")
    for name in ("a", "b"):
        text = form(name, 4)
        store.add(read_form(text, Path("form")), "", text, 1.0)
    store.note_progress({whose: had}, {}, set(), 2.0)
    daemon = daemons.Daemon(CLUSTER, scheduler_of(policy), world, store, tmp_path, clock=lambda: 3.0)
    daemon.turn()
    assert list(world.running) == ["b"]
    assert daemon.driver.done()[whose].attained_device_s == 120.0
    assert daemon.driver.done()[whose].timings == TIMINGS


@pytest.mark.parametrize(("decided", "state"), [(True, State.RUNNING), (False, State.REFUSED)])
def test_who_was_admitted_stays_so(decided: bool, state: State, tmp_path: Path) -> None:
    """A job that became late while there was no daemon is late; one that comes too late is refused."""
    store = Store(f"sqlite:///{tmp_path / 'state.sqlite'}")
    text = form("a", 1, deadline_s=1000.0)
    store.add(read_form(text, Path("form")), "", text, 1.0)
    for now_s in (2.0, 5000.0) if decided else (5000.0,):
        world = World(random.Random(0), crashes=0.0)  # where nothing runs any more
        daemons.Daemon(
            CLUSTER, scheduler_of("elasticflow"), world, store, tmp_path, lambda now_s=now_s: now_s
        ).turn()
    record = store.job("a")
    assert record is not None
    assert record.state is state


def test_a_job_between_two_rounds_is_not_told_of_a_decision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last one was made before it came; and as soon as there is one, that is what it is told."""
    monkeypatch.setattr(daemons, "_PROGRESS_EVERY_S", 0.0)
    store, world, now = Store(f"sqlite:///{tmp_path / 'state.sqlite'}"), World(random.Random(0), 0.0), [0.0]
    daemon = daemons.Daemon(
        CLUSTER, scheduler_of("srtf", round_s=100.0), world, store, tmp_path, lambda: now[0]
    )
    for now[0], name in ((1000.0, "job0"), (1010.0, "job2")):
        daemon.submit(form(name, 4), "")
        daemon.turn()
    assert daemon.job("job2").reason == "nothing was decided since it came, or lost its devices"
    now[0] = 1100.0
    daemon.turn()
    assert {daemon.job(name).reason for name in ("job0", "job2")} >= {""}
    assert "asks for 4 devices, 0 are free; it is the 1st of those that wait" in {
        daemon.job(name).reason for name in ("job0", "job2")
    }
