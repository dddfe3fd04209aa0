"""A policy of the user's own, from a Python file: on the command line beside those of the catalog."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from test_fleet_conformance import Watched

from trainyard.cli.main import main
from trainyard.fleet.catalog import parse_policies, parse_policy, split_policies
from trainyard.fleet.records import FleetRun
from trainyard.fleet.scheduler import scheduler_of
from trainyard.fleet.workload.job import declared_job
from trainyard.fleet.workload.read import read_workload
from trainyard.hardware.cluster import Cluster

ROOT = Path(__file__).parents[2]

_POLICIES = """
from dataclasses import dataclass, field

from next_to_it import SIGN
from trainyard.fleet.allocation import Allocation, Queue
from trainyard.fleet.policy import Priority
from trainyard.fleet.traits import Traits

widest = Priority(lambda s: SIGN * s.num_devices)

def by_size(sign: float = 1.0, among: tuple = ()):
    return Priority(lambda s: sign * s.num_devices)

@dataclass(frozen=True)
class Nobody:
    needs: frozenset = field(default=frozenset(), init=False)
    preempts: bool = field(default=True, init=False)
    traits: Traits = field(default=Traits(places=True), init=False)

    def start(self, cluster):
        return None

    def decide(self, snapshot, state):
        return Allocation(Queue(snapshot.serial[:0])), state

class Half:
    needs = frozenset()
    def decide(self, snapshot, state):
        return None

class Curious(Nobody):
    needs = frozenset({"length", "moon"})

number = 3
"""
JOBS = [declared_job("narrow", 0.0, 1, 10.0), declared_job("wide", 0.0, 2, 10.0)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """In a folder of which the name is no Python name."""
    folder = tmp_path / "my policies-1"
    folder.mkdir()
    (folder / "next_to_it.py").write_text("SIGN = -1\n")
    (folder / "own.py").write_text(_POLICIES)
    (folder / "jobs.csv").write_text(
        "name,arrival_s,num_devices,length_s\nnarrow,0,1,10\nwide,0,2,10\nlast,5,1,10\n"
    )
    return folder / "own.py"


@pytest.mark.parametrize(
    ("named", "first"),
    [
        ("widest", "wide"),
        ("by_size", "narrow"),
        ("by_size()", "narrow"),
        ("by_size(sign=-2, among=(1, 2))", "wide"),
    ],
)
def test_an_object_or_what_makes_one(file: Path, named: str, first: str) -> None:
    scheduler = scheduler_of(f"{file}:{named}", round_s=4.0)
    assert scheduler.text == f"{file}:{named}"
    run = scheduler.simulate(JOBS, Cluster.uniform(1, 2))
    assert run.names[0] == first
    assert str(file.parent) not in sys.path


def test_beside_those_of_the_catalog(file: Path) -> None:
    text = f" tiresias(thresholds=(10, 20)),{file}:by_size(among=('a.py:b', 'c')) , {file}:widest"
    names = ("tiresias(thresholds=(10, 20))", f"{file}:by_size(among=('a.py:b', 'c'))", f"{file}:widest")
    assert split_policies(text) == names
    assert tuple(name for name, _ in parse_policies(text)) == names


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("{folder}/none.py:mine", "no file"),
        ("{file}:mine", "own.py does not define 'mine'; it defines widest, by_size, Nobody, Half, Curious"),
        ("{file}:number", "own.py:number is no policy: int has no needs, no preempts, no start, no decide; a policy has"),
        ("{file}:Half", "own.py:Half is no policy: Half has no preempts, no start; a policy has needs, preempts,"),
        ("{file}:Curious", "'moon'"),
        ("{file}:by_size(size=3)", "by_size has no option 'size'; its options: sign, among"),
        ("{file}:widest(sign=3)", "widest has no option 'sign'; its options: none"),
        ("{file}:by_size(3)", "cannot read policies"),
        ("{file}", "cannot read policies"),
        ("{file}:", "such as 'tiresias(promote_knob=8),fifo,FILE.py:NAME'"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(file: Path, named: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        parse_policy(named.format(file=file, folder=file.parent))


@pytest.mark.parametrize("verb", ["simulate", "compare"])
def test_on_the_command_line(file: Path, verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    of_verb = {
        "simulate": ("--trace", str(file.parent / "jobs.csv"), "--cluster", "1x2"),
        "compare": ("--cluster", "1x2", "--jobs", "20", "--seeds", "2"),
    }
    own = f"{file}:by_size(sign=-1)"
    assert main(("fleet", verb, *of_verb[verb], "--policy", f"fifo,{own}", "--json")) == 0
    found = json.loads(capsys.readouterr().out)
    assert {each["policy"] for each in found.get("runs") or found["policies"]} == {"fifo", own}


def test_a_placement_for_one_that_places_jobs_itself_is_refused(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    to = ("--trace", str(file.parent / "jobs.csv"), "--cluster", "1x2", "--policy", f"{file}:Nobody")
    assert main(("fleet", "simulate", *to, "--placement", "spread")) == 2
    assert "own.py:Nobody chooses the devices of its jobs itself; leave the placement 'spread' out" in (
        capsys.readouterr().err
    )


def test_the_policy_of_the_guide_shares_the_cluster_among_users() -> None:
    """Jobs of those who have a few do not wait behind the sweep."""
    jobs = tuple(read_workload(ROOT / "examples" / "fleet" / "users.csv"))
    watched = Watched(parse_policy(f"{ROOT}/examples/fleet/fair.py:Shares"))
    fair = replace(scheduler_of("fifo"), policy=watched).simulate(jobs, Cluster.uniform(2, 4))
    assert watched.num_reasons > 0
    fifo = scheduler_of("fifo").simulate(jobs, Cluster.uniform(2, 4))
    assert mean_s(fair, ("bob", "cy")) < 0.5 * mean_s(fifo, ("bob", "cy"))
    assert fair.worst_unfairness < 0.5 * fifo.worst_unfairness


def test_the_policy_of_the_guide_is_fair_by_finish_times() -> None:
    """It is told of leases and equal shares by the snapshot; nobody comes off as badly as behind the sweep."""
    jobs = tuple(read_workload(ROOT / "examples" / "fleet" / "users.csv"))
    policy = parse_policy(f"{ROOT}/examples/fleet/finish_time.py:FinishTime")
    themis = replace(scheduler_of("fifo"), policy=policy).simulate(jobs, Cluster.uniform(2, 4))
    fifo = scheduler_of("fifo").simulate(jobs, Cluster.uniform(2, 4))
    assert themis.worst_unfairness < 0.4 * fifo.worst_unfairness
    assert themis.num_preemptions < 2 * len(jobs)


def mean_s(run: FleetRun, whose: tuple[str, ...]) -> float:
    """Mean completion time of the jobs of which the names begin so."""
    return float(run.completion_s[[name.startswith(whose) for name in run.names]].mean())
