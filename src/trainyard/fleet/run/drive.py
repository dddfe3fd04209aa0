"""Driving an engine by a policy: the loop of the simulator, with a clock on the wall and jobs that are real."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trainyard.fleet.holdings import Costs, Holdings
from trainyard.fleet.place.nodes import placement
from trainyard.fleet.policy import Policy, Snapshot
from trainyard.fleet.records import FleetRun, Recorder
from trainyard.fleet.rounds import Rounds
from trainyard.fleet.run.engine import Engine
from trainyard.fleet.site import FleetError, Site
from trainyard.fleet.workload.job import Grant, Job

_INF = float("inf")
_POLL_S = 0.05


@dataclass(frozen=True)
class Patience:
    """How much goes wrong before a run gives up.

    Attributes
    ----------
    max_failures : of one job; it is started again from its checkpoint until then.
    limit_s : of the whole run.
    """

    max_failures: int = 3
    limit_s: float = _INF


def run_fleet(
    jobs: Sequence[Job],
    site: Site,
    policy: Policy,
    engine: Engine,
    *,
    name: str = "",
    place: str = "consolidated",
    rounds: Rounds | None = None,
    patience: Patience | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> FleetRun:
    """Run a workload to its end on an engine.

    Parameters
    ----------
    jobs : in the order of arrival, which is waited for.
    tell : hears what is started, stopped and ended.

    Raises
    ------
    FleetError
        If a job fails too often, or the run takes too long; the engine is closed in any case.
    """
    driver = _Driver(jobs, site, policy, engine, place, rounds, patience or Patience(), tell)
    try:
        return driver.run(name)
    finally:
        engine.close()


class _Driver:
    def __init__(
        self,
        jobs: Sequence[Job],
        site: Site,
        policy: Policy,
        engine: Engine,
        place: str,
        rounds: Rounds | None,
        patience: Patience,
        tell: Callable[[str], None],
    ) -> None:
        self.site, self.policy, self.engine, self.rounds, self.patience = (
            site,
            policy,
            engine,
            rounds,
            patience,
        )
        self.tell = tell
        self.notes = Recorder(keep_spans=True)
        self.holdings = Holdings(site, policy.preempts, placement(place), Costs(), self.notes)
        self.books = self.holdings.books
        self.coming = list(jobs)[::-1]
        self.running: dict[int, Grant] = {}
        self.failures: dict[str, int] = {}
        self.state = policy.start(site)
        self.wake_s = 0.0
        self.began_s = time.monotonic()

    def run(self, name: str) -> FleetRun:
        while self.coming or len(self.books.active):
            now_s = time.monotonic() - self.began_s
            if now_s > self.patience.limit_s:
                raise FleetError(f"the run is not done after {self.patience.limit_s:g} s; {self._waiting()}")
            changed = self._observe(now_s) | self._arrive(now_s)
            if (changed and self.rounds is None) or now_s >= self.wake_s:
                self._decide(now_s)
            time.sleep(_POLL_S)
        return self.notes.result(name, self.site)

    def _waiting(self) -> str:
        names = [self.holdings.job(row).name for row in self.books.active.tolist()]
        return f"{len(names)} jobs are left: {', '.join(names)}"

    def _arrive(self, now_s: float) -> bool:
        some = False
        while self.coming and self.coming[-1].arrival_s <= now_s:
            job = self.coming.pop()
            self.holdings.enter(job, now_s)
            self.tell(f"{now_s:7.1f} s  {job.name} arrives and asks for {job.num_devices} devices")
            some = True
        return some

    def _observe(self, now_s: float) -> bool:
        """Take note of what the jobs did; whether one ended or failed."""
        some = False
        for row in list(self.running):
            job = self.holdings.job(row)
            progress = self.engine.progress(job.name)
            self.books.settle(row, now_s)
            self.books.left[row] = job.work - progress.steps
            if progress.ended:
                self.tell(f"{now_s:7.1f} s  {job.name} ends")
                del self.running[row]
                self.holdings.finish(row, now_s)
                some = True
            elif progress.failure is not None:
                self._again(job, row, progress.failure, now_s)
                some = True
        return some

    def _again(self, job: Job, row: int, failure: str, now_s: float) -> None:
        """A job failed: it loses its devices, and waits as one that was preempted."""
        self.failures[job.name] = self.failures.get(job.name, 0) + 1
        if self.failures[job.name] > self.patience.max_failures:
            raise FleetError(
                f"job {job.name!r} failed {self.failures[job.name]} times, the last time with: {failure}"
            )
        self.tell(f"{now_s:7.1f} s  {job.name} fails ({failure}) and will continue from its checkpoint")
        self.engine.stop(job.name)
        del self.running[row]
        self.holdings.stop(row, now_s)

    def _decide(self, now_s: float) -> None:
        self.wake_s = _INF
        if self.rounds is not None:
            self.wake_s = (math.floor(now_s / self.rounds.round_s) + 1) * self.rounds.round_s
        rows = self.books.active.copy()
        if not self.policy.preempts:
            rows = rows[self.books.held[rows] == 0]
        if not len(rows):
            return
        free = self.holdings.free.by_node.copy()
        snapshot = Snapshot(now_s, self.site, free, self.policy.needs, rows, self.books)
        targets, self.state = self.policy.decide(snapshot, self.state)
        self.notes.num_decisions += 1
        self.wake_s = min(self.wake_s, targets.ask_again_s)
        names = {row: self.holdings.job(row).name for row in rows.tolist()}
        self.holdings.apply(rows, targets, now_s)
        self._bring_about(names, now_s)

    def _bring_about(self, names: dict[int, str], now_s: float) -> None:
        """First everybody who must leaves, then the others come."""
        wanted = {row: grant for row in names if (grant := self.books.grants[row]) is not None}
        moved = [
            r for r, grant in self.running.items() if r in names and _place(wanted.get(r)) != _place(grant)
        ]
        for row in moved:
            self.tell(f"{now_s:7.1f} s  {names[row]} leaves devices {_text(self.running[row])}")
            self.engine.stop(names[row])
            del self.running[row]
        for row, grant in wanted.items():
            if row not in self.running:
                self.tell(f"{now_s:7.1f} s  {names[row]} runs on devices {_text(grant)}")
                self.engine.start(names[row], grant)
            self.running[row] = grant


def _place(grant: Grant | None) -> tuple[object, ...] | None:
    return None if grant is None else (grant.devices, grant.batch_size)


def _text(grant: Grant) -> str:
    return ", ".join(map(str, grant.devices))
