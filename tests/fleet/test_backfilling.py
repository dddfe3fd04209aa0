"""Backfilling starts and ends jobs when a simulator of another hand does, on drawn traces; options that cannot be."""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal

import numpy as np
import pytest
from backfill_simulator import INF, Asked, Closed, Shop, run
from hypothesis import given, settings
from hypothesis import strategies as st
from runs import finished

from trainyard.fleet.catalog import parse_policy
from trainyard.fleet.errors import FleetError
from trainyard.fleet.policies.queues import fifo
from trainyard.fleet.policies.queues.availability import Availability
from trainyard.fleet.policies.queues.backfill_jobs import QueuedJobs
from trainyard.fleet.scheduler import scheduler_of
from trainyard.fleet.simulate_fleet import simulate_fleet
from trainyard.fleet.workload.job import Job, declared_job
from trainyard.hardware.cluster import Cluster
from trainyard.hardware.parse import parse_cluster
from trainyard.hardware.reservations import Reservation

WAYS = [(backfill, order) for backfill in ("easy", "conservative") for order in ("arrival", "priority")]
USERS = ("ann", "bob")

# Arrival after the one before, devices of the cluster, seconds, limit in seconds (0 is none), priority, user.
_JOBS = st.lists(
    st.tuples(
        st.integers(0, 3), st.floats(0, 0.99), st.integers(1, 9), st.integers(0, 12), st.integers(0, 2),
        st.sampled_from(USERS),
    ),
    min_size=2,
    max_size=25,
)  # fmt: skip
# Beginning, seconds, first node and number of nodes as parts of the cluster, and for whom.
_CLOSED = st.lists(
    st.tuples(
        st.integers(0, 40), st.integers(1, 20), st.floats(0, 0.99), st.floats(0, 0.99), st.sampled_from((*USERS, ""))
    ),
    max_size=3,
)  # fmt: skip


def product_run(jobs: list[Asked], shop: Shop, backfill: str, order: str) -> dict[int, tuple[float, float]]:
    reservations = [
        Reservation(each.from_s, each.until_s, each.nodes, (each.user,) if each.user else ())
        for each in shop.closed
    ]
    cluster = Cluster.uniform(shop.nodes, shop.width)
    cluster = Cluster(cluster.name, cluster.nodes, reservations=tuple(reservations))
    asked = [
        declared_job(
            str(job.number),
            job.arrival_s,
            job.size,
            job.length_s,
            priority=job.priority,
            user=job.user,
            limit_s=job.limit_s if job.limit_s < INF else None,
        )
        for job in jobs
    ]
    place = "consolidated" if shop.by_node else "packed"
    done = scheduler_of(f"fifo(backfill='{backfill}', order='{order}')", place).simulate(asked, cluster)
    times_s = zip(done.first_start_s.tolist(), done.finish_s.tolist(), strict=True)
    return dict(zip(map(int, done.names), times_s, strict=True))


@given(
    drawn=_JOBS,
    shape=st.sampled_from([(1, 4), (2, 3), (3, 2), (4, 1), (3, 4)]),
    way=st.sampled_from(WAYS),
    by_node=st.booleans(),
    closed=_CLOSED,
)
@settings(max_examples=400, derandomize=True)
def test_jobs_that_crowd_small_clusters_start_and_end_at_the_same_second(
    drawn: list[tuple[int, float, int, int, int, str]],
    shape: tuple[int, int],
    way: tuple[str, str],
    by_node: bool,
    closed: list[tuple[int, int, float, float, str]],
) -> None:
    """Some run beyond their limits, some have none, and nodes are reserved for a user or for maintenance."""
    arrivals_s = np.cumsum([gap_s for gap_s, *_ in drawn]).tolist()
    jobs = [
        Asked(
            number, float(arrival_s), 1 + int(part * shape[0] * shape[1]), float(length_s), float(limit_s or INF), *rest
        )
        for number, (arrival_s, (_, part, length_s, limit_s, *rest)) in enumerate(zip(arrivals_s, drawn, strict=True))
    ]  # fmt: skip
    shut = [
        Closed(float(from_s), float(from_s + time_s), _nodes(first, part, shape[0]), user)
        for from_s, time_s, first, part, user in closed
    ]
    shop = Shop(*shape, by_node, shut)
    done = product_run(jobs, shop, *way)
    run(jobs, shop, conservative=way[0] == "conservative", by_priority=way[1] == "priority")
    assert done == {job.number: (job.start_s, job.end_s) for job in jobs}


def _nodes(first: float, part: float, num_nodes: int) -> frozenset[int]:
    begin = int(first * num_nodes)
    return frozenset(range(begin, begin + 1 + int(part * (num_nodes - begin))))


@pytest.mark.parametrize("place", ["consolidated", "packed"])
@pytest.mark.parametrize("way", WAYS, ids="-".join)
def test_longer_traces_end_at_the_same_second(way: tuple[str, str], place: str) -> None:
    rng = np.random.default_rng(3)
    num_jobs = 150
    lengths_s = np.ceil(rng.lognormal(6.0, 1.0, num_jobs))
    jobs = [
        Asked(number, *job)
        for number, job in enumerate(
            zip(
                np.cumsum(rng.integers(0, 260, num_jobs)).astype(float).tolist(),
                rng.choice([1, 1, 2, 4, 8], num_jobs).tolist(),
                lengths_s.tolist(),
                (lengths_s * rng.integers(1, 5, num_jobs)).tolist(),
                rng.integers(0, 3, num_jobs).tolist(),
                rng.choice(USERS, num_jobs).tolist(),
                strict=True,
            )
        )
    ]
    closed = [Closed(4e3, 9e3, frozenset({0, 1}), ""), Closed(12e3, 2e4, frozenset({3}), "ann")]
    shop = Shop(4, 4, place == "consolidated", closed)
    done = product_run(jobs, shop, *way)
    run(jobs, shop, conservative=way[0] == "conservative", by_priority=way[1] == "priority")
    assert done == {job.number: (job.start_s, job.end_s) for job in jobs}


def of(name: str, arrival_s: float, size: int, length_s: float, **more: object) -> Job:
    """A job that takes as long as its user said."""
    return declared_job(name, arrival_s, size, length_s, **{"limit_s": length_s, **more})


def test_conservative_delays_no_job_that_waits_where_easy_delays_all_but_the_first() -> None:
    """The last job would be over before the first starts, or beside it; it delays the second."""
    jobs = [of("a", 0, 3, 100), of("first", 1, 2, 50), of("second", 2, 4, 50), of("last", 3, 1, 200)]
    cluster = Cluster.uniform(1, 4)
    easy, conservative = (
        finished(simulate_fleet(jobs, cluster, fifo(backfill=way))) for way in ("easy", "conservative")
    )
    assert easy == {"a": 100, "first": 150, "last": 203, "second": 253}
    assert conservative == {"a": 100, "first": 150, "second": 200, "last": 400}


def test_processors_are_kept_for_a_reservation() -> None:
    """Two of the devices would be free for a long job, and not the processors that the waiting job is to have."""
    jobs = [
        of("a", 0, 2, 100, cpus=4.0),
        of("wide", 1, 2, 50, cpus=8.0),
        of("long", 2, 2, 150, cpus=2.0),
        of("short", 3, 2, 97, cpus=2.0),
    ]
    cluster = parse_cluster("1x8@8cpu")
    done = finished(simulate_fleet(jobs, cluster, fifo(backfill="conservative")))
    assert done == {"a": 100, "short": 100, "wide": 150, "long": 300}


def test_only_so_many_jobs_of_the_queue_are_looked_at() -> None:
    jobs = [of("a", 0, 3, 100), of("wide", 1, 4, 10), of("wider", 2, 4, 10), of("short", 3, 1, 10)]
    cluster = Cluster.uniform(1, 4)
    done = {
        most: finished(simulate_fleet(jobs, cluster, fifo(backfill="conservative", max_jobs=most)))["short"]
        for most in (2, 3, None)
    }
    assert done == {2: 130, 3: 13, None: 13}


@pytest.mark.parametrize(
    ("backfill", "kind", "name"), [("easy", QueuedJobs, "on_nodes"), ("conservative", Availability, "_split")]
)
def test_a_place_after_the_first_end_is_found_however_many_jobs_run(
    backfill: Literal["easy", "conservative"], kind: type[Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What costs as much as there are nodes or spans is done a few times at a decision, not for every job that runs."""
    does, of_decision = getattr(kind, name), list[object]()

    def counted(self: object, *given: Any) -> Any:
        of_decision.append(self)
        return does(self, *given)

    monkeypatch.setattr(kind, name, counted)
    jobs = [of(f"runs{number}", 0, 1, 100 + number) for number in range(39)]
    jobs += [of("waits", 1, 2, 10), of("behind", 2, 1, 500)]
    done = finished(simulate_fleet(jobs, Cluster.uniform(1, 40), fifo(backfill=backfill)))
    assert (done["waits"], done["behind"]) == (110, 601)
    assert 0 < max(Counter(map(id, of_decision)).values()) <= 3


def test_a_queue_by_priority_starts_the_urgent_first() -> None:
    jobs = [of("a", 0, 4, 100), of("b", 1, 4, 10), of("c", 2, 4, 10, priority=5)]
    for way in (False, True, "easy", "conservative"):
        done = finished(simulate_fleet(jobs, Cluster.uniform(1, 4), fifo(backfill=way, order="priority")))
        assert done == {"a": 100, "c": 110, "b": 120}, way


@pytest.mark.parametrize("way", [False, "easy", "conservative"])
def test_qualities_of_service_have_a_priority_beside_that_of_their_jobs(way: bool | str) -> None:
    plain = Cluster.uniform(1, 4)
    cluster = Cluster(plain.name, plain.nodes, qos=(("high", 10), ("low", -10)))
    jobs = [of("a", 0, 4, 100)]
    jobs += [
        of(qos or "none", at, 4, 10, qos=qos, priority=priority)
        for at, (qos, priority) in enumerate([("low", 15), ("", 4), ("unknown", 6), ("high", 0)], 1)
    ]
    done = simulate_fleet(jobs, cluster, fifo(backfill=way, order="priority"))  # type: ignore[arg-type]
    assert done.names == ("a", "high", "unknown", "low", "none")


def test_nobody_is_there_during_maintenance_and_a_job_without_a_limit_waits_for_its_end() -> None:
    plain = Cluster.uniform(2, 2)
    cluster = Cluster(plain.name, plain.nodes, reservations=(Reservation(50, 150, frozenset({0, 1})),))
    jobs = [
        of("fits", 0, 2, 50),
        of("long", 0, 2, 51),
        declared_job("endless", 1, 1, 5),
        of("short", 2, 1, 40),
    ]
    for way in ("easy", "conservative"):
        done = finished(simulate_fleet(jobs, cluster, fifo(backfill=way)))
        assert done == {"fits": 50, "long": 201, "endless": 155, "short": 42}, way


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("backfill='esay'", "option backfill of fifo must be .*'conservative'"),
        ("order='size'", "option order of fifo must be 'arrival' or 'priority'"),
        ("max_jobs=5", "max_jobs=5 with backfill=False; allowed is a whole number of at least 1, with"),
        ("backfill='conservative', max_jobs=0", "max_jobs=0 with backfill='conservative'"),
        ("backfill='conservative', max_jobs=1.5", "max_jobs of fifo must be a whole number"),
        ("backfill='conservative', one_queue=True", "reserves devices for every job.*leave one_queue out"),
    ],
)
def test_options_that_cannot_be(options: str, said: str) -> None:
    with pytest.raises(FleetError, match=said):
        parse_policy(f"fifo({options})")


def test_policies_without_reservations_refuse_them() -> None:
    plain = Cluster.uniform(2, 2)
    cluster = Cluster(plain.name, plain.nodes, reservations=(Reservation(50, 150, frozenset({0})),))
    with pytest.raises(FleetError, match=r"knows no reservations.*or write nodes that leave and come"):
        simulate_fleet([of("a", 0, 1, 5)], cluster, fifo())
