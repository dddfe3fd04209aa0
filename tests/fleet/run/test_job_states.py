"""Whatever fails, no device has two jobs, each job goes through its states in their order and ends once, and of what is
over nothing is left.

Jobs, nodes, the backend and the scheduler itself fail in drawn orders; then all is well again, and the jobs have to end.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace

from faulty_backend import DEVICES_PER_NODE, FaultyBackend
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from leases import Lending

from trainyard.fleet.policies.queues import fifo, srtf
from trainyard.fleet.policy import Policy
from trainyard.fleet.run.backend import Progress
from trainyard.fleet.run.drive import Driver
from trainyard.fleet.run.event import Event, Happening
from trainyard.fleet.run.past import Done, Past
from trainyard.fleet.run.patience import Patience
from trainyard.fleet.workload.job import Grant, Job
from trainyard.fleet.workload.training import Training
from trainyard.fleet.workload.training_job import Predicted, training_job
from trainyard.hardware.cluster import Cluster

CLUSTER = Cluster.uniform(2, DEVICES_PER_NODE, "local")
PATIENCE = Patience(max_failures=2, max_kills=3, retry_s=5.0, lacks_s=40.0)
POLICIES: dict[str, Policy] = {"fifo": fifo(backfill=True), "srtf": srtf(), "leases": Lending(7.0)}
OWN = Progress(0, failure="it fell")
FAILURES = [OWN, OWN, *(replace(OWN, **{kind: True}) for kind in ("killed", "lacks", "repeats"))]
MOST_STEPS = 40
SHAPES = st.tuples(st.sampled_from([1, 1, 2]), st.sampled_from([5, 20, MOST_STEPS]))  # devices, steps
MOST_JOBS = 6

# What may happen to a job, by its state, and its next state.
NEXT = {
    "waits": {
        Happening.RUNS: "runs",
        Happening.STAYS: "runs",
        Happening.CANCELLED: "over",
        Happening.GIVEN_UP: "over",
    },
    "runs": {
        Happening.STAYS: "runs",
        Happening.LEAVES: "waits",
        Happening.FAILS: "waits",
        Happening.LOSES_NODE: "waits",
        Happening.ENDS: "over",
        Happening.CANCELLED: "over",
        Happening.GIVEN_UP: "over",
    },
}


class Failed:
    """Failures of a job without a further step between, as somebody counts them who only sees what is reported."""

    def __init__(self) -> None:
        self.own = self.kills = self.steps = 0
        self.lacking_since_s = math.inf
        self.again_s = -math.inf

    def note(self, progress: Progress, now_s: float) -> bool:
        """Count one more; whether it was the last."""
        if progress.steps > self.steps:
            self.own = self.kills = 0
            self.lacking_since_s = math.inf
        self.steps = progress.steps
        if progress.lacks:
            self.lacking_since_s = min(self.lacking_since_s, now_s)
            self.again_s = now_s + PATIENCE.retry_s
            return now_s - self.lacking_since_s > PATIENCE.lacks_s
        self.lacking_since_s = math.inf
        self.own, self.kills = self.own + (not progress.killed), self.kills + progress.killed
        self.again_s = now_s + PATIENCE.retry_s if self.own + self.kills > 1 else now_s
        return progress.repeats or self.own > PATIENCE.max_failures or self.kills > PATIENCE.max_kills


class Watching(FaultyBackend):
    """Counts failures when they are reported, which is when the driver has to."""

    def __init__(self) -> None:
        super().__init__()
        self.counts, self.doomed, self.now_s = defaultdict[str, Failed](Failed), set[str](), 0.0
        self.untold = set[str]()

    def note(self, name: str, progress: Progress) -> None:
        self.untold.add(name)
        if self.counts[name].note(progress, self.now_s):
            self.doomed.add(name)

    def start(self, job: Job, grant: Grant) -> None:
        self.require(self.now_s >= self.counts[job.name].again_s, f"{job.name} is not started too early")
        if self.next_start == "own" and "start" not in self.silent:
            self.note(job.name, Progress(self.steps.get(job.name, 0)))
        super().start(job, grant)

    def progress(self, name: str) -> Progress:
        found = super().progress(name)
        if found.failure is not None:
            self.note(name, found)
        return found


class Fleet(RuleBasedStateMachine):
    """The driver of a small fleet, and what a user sees of it."""

    @initialize(policy=st.sampled_from(sorted(POLICIES)), shapes=st.lists(SHAPES, min_size=3, max_size=4))
    def begin(self, policy: str, shapes: list[tuple[int, int]]) -> None:
        self.policy, self.backend, self.now_s = POLICIES[policy], Watching(), 0.0
        self.jobs: dict[str, Job] = {}
        self.states: dict[str, str] = {}
        self.ends: dict[str, Happening] = {}
        self.grants: dict[str, Grant] = {}
        self.cancelled = set[str]()
        self.driver = self._driver()
        for shape in shapes:
            self._submit(*shape)
        self._step(0.0)

    def _driver(self) -> Driver:
        return Driver(CLUSTER, self.policy, self.backend, patience=PATIENCE, tell=self._hear)

    def _hear(self, event: Event) -> None:
        name = event.job.name
        if event.what is Happening.ARRIVES:
            assert name not in self.states
            self.states[name] = "waits"
            return
        assert event.what in NEXT[self.states[name]], f"{name} {self.states[name]}, and {event.what}"
        self.states[name] = NEXT[self.states[name]][event.what]
        if event.what is Happening.FAILS:
            assert name in self.backend.untold, "it fails, and nobody said so"
        self.backend.untold.discard(name)
        self.backend.loses.discard(name)
        if event.what is Happening.LOSES_NODE:
            self.backend.counts.pop(name, None)
            if name not in self._late():
                self.backend.loses.add(name)
        if self.states[name] == "runs":
            assert event.grant is not None
            self.grants[name] = event.grant
        else:
            self.grants.pop(name, None)
        if self.states[name] == "over":
            self.ends[name] = event.what
            assert name not in self.backend.runs, "it is over, and something of it is left"

    def _late(self) -> set[str]:
        """Jobs that have devices and are not started on them yet."""
        return {self.driver.table.job(row).name for row in self.driver._running.waiting}

    def _step(self, passed_s: float) -> None:
        self.now_s += passed_s
        self.backend.now_s = self.now_s
        self.driver.step(self.now_s)

    def _of(self, at: int) -> str | None:
        """One of the jobs that have processes and are not about to leave."""
        names = sorted(self.backend.runs.keys() - self.backend.leaving - self.backend.failed.keys())
        return names[at % len(names)] if names else None

    def _submit(self, size: int, steps: int) -> None:
        name, training = f"job{len(self.jobs)}", Training("gpt-tiny", 4, steps)
        job = training_job(name, self.now_s, size, training, Predicted(training, {size: 1.0}))
        self.jobs[name] = job
        self.driver.submit(job, self.now_s)

    @precondition(lambda self: len(self.jobs) < MOST_JOBS)
    @rule(shape=SHAPES)
    def arrive(self, shape: tuple[int, int]) -> None:
        self._submit(*shape)
        self._step(0.0)

    @rule(passed_s=st.sampled_from([0.5, 1.0, 4.0, 20.0]))
    def look(self, passed_s: float) -> None:
        self._step(passed_s)

    @rule()
    def look_again(self) -> None:
        self._step(2.0)

    @rule(at=st.integers(0, 3), steps=st.sampled_from([1, 5, MOST_STEPS]))
    def work(self, at: int, steps: int) -> None:
        if name := self._of(at):
            most = int(self.jobs[name].work)
            done = self.backend.steps[name] = min(most, self.backend.steps.get(name, 0) + steps)
            if done == most:
                self.backend.failed[name] = Progress(most, ended=True)
                del self.backend.runs[name]

    @rule(at=st.integers(0, 3), how=st.sampled_from(FAILURES), left=st.booleans())
    def fail(self, at: int, how: Progress, left: bool) -> None:
        """Some processes of it may be left."""
        if name := self._of(at):
            self.backend.failed[name] = replace(how, steps=self.backend.steps.get(name, 0))
            if not left:
                del self.backend.runs[name]
        self._step(0.5)

    @rule(at=st.integers(0, MOST_JOBS), how=st.sampled_from([*FAILURES, None]))
    def fall_sick(self, at: int, how: Progress | None) -> None:
        """It fails again and again, or does so no more."""
        self.backend.sick.pop(f"job{at}", None)
        if how is not None:
            self.backend.sick[f"job{at}"] = how
            self.backend.failed |= {name: how for name in self.backend.runs if name == f"job{at}"}
        self._step(1.0)

    @rule(fails=st.sampled_from(["own", "partial", "none"]))
    def fail_next_start(self, fails: str) -> None:
        self.backend.next_start = fails

    @rule(call=st.sampled_from(["start", "progress", "leave", "has_left", "away"]))
    def fall_silent(self, call: str) -> None:
        self.backend.silent.add(call)

    @rule()
    def answer_again(self) -> None:
        self.backend.silent.clear()

    @rule(nodes=st.frozensets(st.integers(0, 1)))
    def lose_nodes(self, nodes: frozenset[int]) -> None:
        self.backend.lost = nodes
        self._step(0.5)

    @rule(at_once=st.booleans())
    def take_time_to_leave(self, at_once: bool) -> None:
        self.backend.leaves_at_once = at_once
        if at_once:
            for name in sorted(self.backend.leaving):
                self.backend.let_go(name)

    @precondition(lambda self: self.driver.names)
    @rule(at=st.integers(0, MOST_JOBS))
    def cancel(self, at: int) -> None:
        name = self.driver.names[at % len(self.driver.names)]
        self.cancelled.add(name)
        self.driver.cancel(name, self.now_s)
        self._step(0.5)

    @precondition(lambda self: not self.driver.ending)
    @rule()
    def start_scheduler_anew(self) -> None:
        """As after a crash: all that it has is what was told, and what the backend knows."""
        silent, self.backend.silent = self.backend.silent, set()
        self.driver, doomed = self._driver(), set(self.backend.doomed)
        self.backend.loses.clear()
        self.backend.told_lost = frozenset()
        had, self.grants = self.grants, {}
        for name in [name for name, state in self.states.items() if state != "over"]:
            self.states[name] = "waits"
            grant, steps = had.get(name), min(int(self.jobs[name].work) - 1, self.backend.steps.get(name, 0))
            past = Past(grant, Done(steps, 1.0, 1.0), 0.0 if grant else math.nan, True)
            self.driver.restore(self.jobs[name], self.now_s, past)
        self.backend.silent = silent
        # What it finds failed is started again, and counts of failures begin anew.
        self.backend.counts, self.backend.doomed = defaultdict(Failed), doomed
        self._step(0.5)

    @invariant()
    def only_who_has_devices_runs(self) -> None:
        assert not self.backend.broken
        running = {self.driver.table.job(row).name: grant for row, grant in self.driver.running.items()}
        ending = self.driver.ending
        assert running == {name: grant for name, grant in self.grants.items() if name not in ending}
        started = self.backend.runs.keys() - self.backend.leaving
        unasked = self.driver._departures._untold.keys()
        assert started - unasked <= running.keys()
        devices = [device for grant in running.values() for device in grant.devices]
        assert len(devices) == len(set(devices))

    @invariant()
    def only_who_failed_for_good_is_given_up(self) -> None:
        given_up = {name for name, how in self.ends.items() if how is Happening.GIVEN_UP}
        assert given_up <= self.backend.doomed
        assert not self.backend.doomed & set(self.driver.names)

    def teardown(self) -> None:
        if not hasattr(self, "driver"):
            return
        self.answer_again()
        self.lose_nodes(frozenset())
        self.backend.next_start = ""
        self.take_time_to_leave(True)
        most_looks = 20 * MOST_JOBS
        while self.driver.names and (most_looks := most_looks - 1):
            self._step(100.0)  # longer than any failure is waited for
            free = 2 * DEVICES_PER_NODE - sum(len(grant.devices) for grant in self.grants.values())
            assert free < 3 or "waits" not in self.states.values(), "a job waits beside a node that is free"
            assert not self.driver._departures._held, "who leaves at once is let go at once"
            assert self._late() <= self.backend.counts.keys(), (
                "devices are free, and a job is not started on them"
            )
            self.work(0, MOST_STEPS)
        self._step(1.0)
        self._step(1.0)
        assert set(self.states.values()) <= {"over"}
        assert not self.driver.trouble
        assert {name for name, how in self.ends.items() if how is Happening.CANCELLED} == self.cancelled
        assert {name for name, how in self.ends.items() if how is Happening.GIVEN_UP} == self.backend.doomed
        assert not any((self.driver.names, self.driver.running, self.driver.ending))
        assert not any((self.backend.runs, self.backend.leaving))
        departures = self.driver._departures
        left = departures._held, departures._untold, departures._reserved, self.driver._running._failures
        assert not any(left), "a daemon would remember them for ever"
        assert not self.driver._running.waiting


Fleet.TestCase.settings = settings(max_examples=60, stateful_step_count=40, derandomize=True)
TestFleet = Fleet.TestCase
