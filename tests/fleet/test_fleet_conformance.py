"""What every policy must satisfy, whatever it decides."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from trainyard.fleet.allocation import Allocation, Placed
from trainyard.fleet.catalog import CATALOG, Entry, parse_policy
from trainyard.fleet.mechanism.allocator import Allocator
from trainyard.fleet.mechanism.waiting import why_waiting
from trainyard.fleet.policy_wrapper import PolicyWrapper
from trainyard.fleet.records import FleetRun
from trainyard.fleet.scheduler import Scheduler, scheduler_of
from trainyard.fleet.snapshot import Ints, Snapshot
from trainyard.fleet.traits import traits_of
from trainyard.fleet.workload.job import Job, declared_job
from trainyard.hardware.cluster import Cluster

CASES = [(entry, variant) for entry in CATALOG for variant in ("", *entry.variants)]
# Pollux searches for long in every round. What must hold here, holds of what it finds soon.
BRIEF = {"pollux": {"num_generations": 3, "population": 8}}
SEEDS = pytest.mark.parametrize("seed", [0, 1, 2])
CLUSTER = Cluster.uniform(3, 4)
COLUMNS = (
    "serial", "arrival_s", "num_devices", "allowed", "held", "attained_s", "attained_device_s", "waiting_s",
    "first_start_s", "rows", "free",
)  # fmt: skip


def name_of(part: Entry | str) -> str:
    return part.name if isinstance(part, Entry) else part or "default"


def every(cases: Iterable[tuple[Entry, str]] = CASES) -> pytest.MarkDecorator:
    """A test of policies and their variants."""
    return pytest.mark.parametrize(("entry", "variant"), list(cases), ids=name_of)


EVERY = every()


def text_of(entry: Entry, variant: str) -> str:
    options = {**BRIEF.get(entry.name, {}), **entry.variants.get(variant, {})}
    return f"{entry.name}({', '.join(f'{k}={v!r}' for k, v in options.items())})"


def workload(seed: int) -> list[Job]:
    """Gangs of all sizes, more than fit, two of them at one moment, one without work; a pause when nobody is there."""
    rng = np.random.default_rng(seed)
    arrivals = np.sort(rng.integers(0, 4000, 24)).astype(float)
    arrivals[5] = arrivals[6]
    arrivals[16:] += 60_000
    models = ("vgg16", "resnet50", "another")
    busy = np.random.default_rng(seed + 100).choice([0.3, 0.6, 1.0], len(arrivals))
    return [
        declared_job(
            f"job{i}",
            float(arrival),
            int(rng.choice([1, 1, 2, 3, 4, 8, 12])),
            float(rng.integers(1, 4000)) * (i != 7),
            float(busy[i]),
            model=str(rng.choice(models)),
        )
        for i, arrival in enumerate(arrivals)
    ]


def shares(entry: Entry, variant: str) -> bool:
    """Whether several jobs may have one device at once."""
    return entry.shares or "space_sharing" in entry.variants.get(variant, {})


def run(scheduler: Scheduler, seed: int) -> FleetRun:
    return scheduler.simulate(workload(seed), CLUSTER, keep_spans=True)


@cache
def plain_run(text: str, seed: int) -> FleetRun:
    """Of a policy that nobody watches; what several tests look at is simulated once."""
    return run(scheduler_of(text), seed)


def plain(value: Any) -> Any:
    """A copy of a state that compares by value."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, Mapping):
        return {key: plain(value[key]) for key in value}
    if isinstance(value, tuple | list):
        return [plain(part) for part in value]
    if is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    assert value is None or isinstance(value, bool | int | float | str | frozenset), (
        f"a state of {type(value)}"
    )
    return value


@dataclass
class Watched(PolicyWrapper):
    """A policy that is asked everything twice."""

    told: dict[str, str] = field(default_factory=dict)
    num_reasons: int = 0

    def decide(self, snapshot: Snapshot, state: Any) -> tuple[Allocation, Any]:
        before, columns = plain(state), [getattr(snapshot, c).copy() for c in COLUMNS]
        running = [snapshot.job(i).name for i in np.flatnonzero(snapshot.is_running)]
        assert not self.told.keys() & set(running), "a job runs of which the policy said why it waits"
        first, after = self.policy.decide(snapshot, state)
        again, after_again = self.policy.decide(snapshot, state)
        assert plain(state) == before, "the state was changed"
        assert plain(after) == plain(after_again)
        for name, column in zip(COLUMNS, columns, strict=True):
            np.testing.assert_array_equal(getattr(snapshot, name), column, err_msg=name)
        for name, one, other in zip(Allocation._fields, first, again, strict=True):
            assert plain(one) == plain(other), name
        given = first.given
        none = np.full(len(given.order), -1)
        partner, kinds = (getattr(given, x, None) for x in ("partner", "device_type"))
        partner, kinds = (none if x is None else x for x in (partner, kinds))
        named = zip(given.order.tolist(), partner.tolist(), kinds.tolist(), strict=True)
        entries = {(frozenset({i, j} - {-1}), kind) for i, j, kind in named}
        assert len(entries) == len(given.order), "the same jobs twice on the same type"
        places = isinstance(given, Placed)
        assert traits_of(self.policy).places == places, "the run believes that a placement matters"
        told = dict(first.reasons)
        assert all(told.values())
        self.num_reasons += len(told)
        # One that may run is told so for the case that it finds no place.
        self.told = {snapshot.job(i).name: told[i] for i in told.keys() - set(given.order.tolist())}
        return first, after


def check_every_job_ends(done: FleetRun, jobs: Iterable[Job]) -> dict[str, float]:
    """None before it came; returns the time that each had its devices, those of its gang or in proportion."""
    by_name = {job.name: job for job in jobs}
    assert {*done.names, *(name for name, _ in done.refused)} == set(by_name)
    worked = dict.fromkeys(done.names, 0.0)
    for span in done.spans:
        job = by_name[span.job]
        assert span.start_s >= job.arrival_s
        worked[span.job] += (span.end_s - span.start_s) * len(span.devices) / job.num_devices
    return worked


@EVERY
@SEEDS
def test_every_job_ends_with_its_work_done(entry: Entry, variant: str, seed: int) -> None:
    done, jobs = plain_run(text_of(entry, variant), seed), workload(seed)
    worked, work = check_every_job_ends(done, jobs), {job.name: job.work for job in jobs}
    if shares(entry, variant):  # A span does not say how much of its devices it had.
        assert all(worked[name] >= work[name] - 1e-6 for name in done.names)
    else:
        assert worked == pytest.approx({name: work[name] for name in done.names})


@every(case for case in CASES if not shares(*case))
@SEEDS
def test_no_device_is_given_twice(entry: Entry, variant: str, seed: int) -> None:
    check_no_device_is_given_twice(plain_run(text_of(entry, variant), seed))


def check_no_device_is_given_twice(done: FleetRun) -> None:
    free_from_s = dict.fromkeys(range(CLUSTER.num_devices), 0.0)
    for span in sorted(done.spans, key=lambda span: span.start_s):
        assert len(set(span.devices)) == len(span.devices)
        for device in span.devices:
            assert free_from_s[device] <= span.start_s
            free_from_s[device] = span.end_s


@EVERY
def test_decisions_are_pure_and_repeat(entry: Entry, variant: str) -> None:
    text = text_of(entry, variant)
    check_repeats(scheduler_of(text), plain_run(text, 0))


def check_repeats(scheduler: Scheduler, second: FleetRun) -> None:
    """Decisions, watched, do not change what they are told, and lead to the same run again."""
    first = run(replace(scheduler, policy=Watched(scheduler.policy)), 0)
    assert first.names == second.names
    assert first.spans == second.spans
    np.testing.assert_array_equal(first.finish_s, second.finish_s)


@pytest.mark.parametrize("entry", CATALOG, ids=lambda e: e.name)
def test_needs_are_as_declared(entry: Entry) -> None:
    assert entry.factory().needs == set(entry.needs)


def test_tiresias_says_why_jobs_wait() -> None:
    watched = Watched(parse_policy("tiresias"))
    run(replace(scheduler_of("tiresias"), policy=watched), 0)
    assert watched.num_reasons > 0


@EVERY
def test_every_job_that_waits_is_told_why(
    entry: Entry, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_told_why(scheduler_of(text_of(entry, variant)), monkeypatch)


def check_told_why(scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    """After every decision, and in every round without one; what is said of free devices is so."""
    bring_about, num_told = Allocator.apply, 0

    def told(self: Allocator, rows: Ints, allocation: Allocation, now_s: float, cluster: Cluster) -> Ints:
        nonlocal num_told
        changed = bring_about(self, rows, allocation, now_s, cluster)
        reasons = why_waiting(self, rows, allocation)
        waiting = np.flatnonzero(self.table.held[rows] == 0).tolist()
        assert reasons.keys() == set(waiting) - set(allocation.refused)
        for why in reasons.values():
            assert why
            for free in re.findall(r"asks for \d+ devices?, (\d+) (?:is|are) free", why):
                assert int(free) == self.free.total
        num_told += len(reasons)
        return changed

    monkeypatch.setattr(Allocator, "apply", told)
    run(scheduler, 0)
    assert num_told > 0
