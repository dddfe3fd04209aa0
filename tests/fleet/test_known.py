"""A policy sees of a job what it is entitled to."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from trainyard.cli.main import main
from trainyard.fleet.errors import FleetError
from trainyard.fleet.known import NEEDS, KnownJob, ignored
from trainyard.fleet.policy import Priority
from trainyard.fleet.scheduler import ignored_by, scheduler_of
from trainyard.fleet.simulate_fleet import simulate_fleet
from trainyard.fleet.snapshot import Need, Snapshot
from trainyard.fleet.workload.attempts import Attempt
from trainyard.fleet.workload.job import Job, JobRequest, declared_job
from trainyard.hardware.cluster import Cluster
from trainyard.hardware.parse import cluster_from_yaml, parse_cluster
from trainyard.report.fleet_league import ignored_lines

JOB = declared_job(
    "a", 1.0, 4, 10.0, 0.5, min_devices=2, max_devices=8, device_types=("V100",), user="u", virtual_cluster="v",
    weight=2.0, deadline_s=99.0, guaranteed=False, cpus=3.0, memory_bytes=1e9, model="m", batch_size=32, priority=7,
    gang=(2, 2), pinned_cell="c", yields=True, account="acc", qos="night", attempts=(Attempt(7.0, 4),), limit_s=50.0,
)  # fmt: skip


def test_every_attribute_is_open_or_must_be_declared() -> None:
    everybody = {f.name for f in fields(JobRequest)}
    known = KnownJob(JOB, frozenset())
    assert {name: getattr(known, name) for name in everybody} == {
        name: getattr(JOB, name) for name in everybody
    }
    assert (known.least_devices, known.most_devices) == (2, 8)
    assert known.share_beside(KnownJob(JOB, frozenset())) == 0.5
    # Devices in its trace, or before it, are nothing that happens here; when it is ended is the rule of the cluster; and
    # what it runs is nothing to decide on.
    assert {f.name for f in fields(Job)} - everybody == NEEDS.keys() | {
        "attempts",
        "killed_after_s",
        "command",
        "ran_s",
    }
    assert not hasattr(KnownJob(JOB, frozenset(NEEDS.values())), "attempts")
    assert set(NEEDS.values()) | {"reports"} == set(get_args(Need))


def test_what_was_not_declared_does_not_keep_a_policy_from_comparing_jobs() -> None:
    one, same = (KnownJob(JOB, frozenset()) for _ in range(2))
    other = KnownJob(declared_job("b", 1.0, 4, 10.0), frozenset())
    assert one == same
    assert one != other
    assert len({one, same, other}) == 2
    assert "'a'" in repr(one)


@pytest.mark.parametrize("name", NEEDS)
def test_what_is_not_declared_is_not_told(name: str) -> None:
    with pytest.raises(FleetError, match=f"asks for '{NEEDS[name]}' must declare it"):
        getattr(KnownJob(JOB, frozenset(NEEDS.values()) - {NEEDS[name]}), name)
    assert getattr(KnownJob(JOB, frozenset({NEEDS[name]})), name) == getattr(JOB, name)


@pytest.mark.parametrize(
    ("key", "need"),
    [
        (lambda s: np.array([job.work for job in s.jobs]) - s.done, "length"),
        (lambda s: np.array([s.job(i).work for i in range(s.num_jobs)]), "length"),
        (lambda s: s.left, "length"),
        (lambda s: np.array([hash(job.profile) for job in s.jobs], float), "speed"),
        (lambda s: np.array([s.gang_speeds(i).max() for i in range(s.num_jobs)]), "speed"),
        (lambda s: np.array([job.deadline_s for job in s.jobs]), "deadline"),
        (lambda s: s.deadline_s, "deadline"),
        (lambda s: s.weight, "weight"),
        (lambda s: np.array([float(job.priority) for job in s.jobs]), "priority"),
        (lambda s: np.array([float(report is None) for report in s.reports]), "reports"),
    ],
)
def test_a_policy_that_peeks_is_refused(key: Callable[[Snapshot], np.ndarray], need: Need) -> None:
    jobs, cluster = [declared_job("a", 0, 1, 10, deadline_s=30.0)], Cluster.uniform(1, 1)
    with pytest.raises(FleetError, match=f"asks for '{need}' must declare it"):
        simulate_fleet(jobs, cluster, Priority(key))
    assert simulate_fleet(jobs, cluster, Priority(key, frozenset({need}))).finish_s.tolist() == [10.0]


def test_anybody_can_read_how_far_jobs_are() -> None:
    run = simulate_fleet([declared_job("a", 0, 1, 10)], Cluster.uniform(1, 1), Priority(lambda s: s.done))
    assert run.finish_s.tolist() == [10.0]


def test_what_jobs_have_and_policies_do_not_look_at() -> None:
    plain, urgent = declared_job("a", 0, 1, 10), declared_job("b", 0, 1, 10, priority=3, qos="high")
    assert ignored([plain], frozenset()) == ()
    assert ignored([plain, urgent], frozenset()) == ("priority", "qos")
    assert ignored([plain, urgent], frozenset({"priority"})) == ("qos",)
    # Every job has work and a profile: a policy without them ignores nothing.
    optional = tuple(name for name in NEEDS if name not in ("work", "profile"))
    assert ignored([JOB], frozenset()) == optional
    for name in optional:
        assert name not in ignored([JOB], frozenset({NEEDS[name]}))


def test_it_is_said_once_and_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    trace = Path(__file__).parent / "workload" / "cases" / "priority_columns.csv"
    to = ("fleet", "simulate", "--trace", str(trace), "--cluster", "1x1xV100")
    assert main((*to, "--policy", "fifo,srtf,fifo(backfill='easy'),antman,hived")) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "the jobs'" in line]
    assert lines == [
        "fifo, srtf ignore the jobs' limit_s, priority, guaranteed",
        "fifo(backfill='easy') ignores the jobs' priority, guaranteed",
        "antman ignores the jobs' limit_s, priority",
        "hived ignores the jobs' limit_s",
    ]
    assert main((*to, "--policy", "hived", "--json")) == 0
    found = json.loads(capsys.readouterr().out)["ignored"]
    assert found == [{"policies": ["hived"], "attributes": ["limit_s"], "names": []}]
    compare = ("fleet", "compare", "--trace", str(trace), "--cluster", "1x1xV100", "--seeds", "2")
    assert main((*compare, "--policy", "fifo,srtf")) == 0
    assert "fifo, srtf ignore the jobs' limit_s, priority, guaranteed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("policy", "cluster", "names"),
    [
        ("fair_share(account_shares=(('vision', 3), ('a', 1)), user_shares=(('', 2),))", "2x1", "account 'a', user ''"),
        ("drf(weights=(('ann', 2), ('zzz', 2)))", "2x1", "user 'zzz'"),
        ("drf(by='account', weights=(('ann', 2),))", "2x1", "account 'ann'"),
        ("antman(quotas=(('night', 1), ('day', 1)))", "2x1", "virtual cluster 'day'"),
        ("gavel_hierarchical(weights=(('day', 1),), inners=(('day', 'fifo'),))", "2x1", "virtual cluster 'day'"),
        ("fifo(backfill=True, preemptible=('night', 'day'))", "partitions: {night: 0, free: 1}", "virtual cluster 'day'"),
        ("fifo(order='priority')", "qos: {hgih: 5, high: 3}", "qos 'hgih'"),
        ("fifo", "qos: {hgih: 5}", ""),
        (
            "fifo(backfill='easy')",
            "reservations: [{from_s: 0, until_s: 1, nodes: 0, users: [ann, bob], accounts: [speech]}]",
            "user 'bob', account 'speech'",
        ),
    ],
)  # fmt: skip
def test_names_that_no_job_has_are_told(policy: str, cluster: str, names: str) -> None:
    job = declared_job("j", 0, 1, 10, user="ann", account="vision", virtual_cluster="night", qos="high")
    place = parse_cluster(cluster) if cluster == "2x1" else cluster_from_yaml(f"cluster: 2x1\n{cluster}\n")
    (said,) = ignored_by([scheduler_of(policy)], [job], place)
    assert ", ".join(said.names) == names
    told = f"{policy}: no job has {names}, so that what is set for it changes nothing"
    assert (told in ignored_lines([said])) == bool(names)
