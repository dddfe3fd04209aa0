"""What a policy that places for itself decided is verified before anything is done about it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from runs import finished

from trainyard.fleet.allocation import Allocation, Placed
from trainyard.fleet.errors import FleetError
from trainyard.fleet.mechanism.allocator import Allocator
from trainyard.fleet.mechanism.costs import Costs
from trainyard.fleet.records import Recorder
from trainyard.fleet.simulate_fleet import simulate_fleet
from trainyard.fleet.snapshot import Need, Snapshot
from trainyard.fleet.workload.job import Grant, declared_job
from trainyard.hardware.cluster import Cluster
from trainyard.hardware.parse import parse_cluster

CLUSTER = parse_cluster("2x2xV100+1x2xK80").without({1})
JOBS = [
    declared_job("rigid", 0, 2, 10.0, device_types=("V100",)),
    declared_job("elastic", 0, 1, 20.0, min_devices=1, max_devices=2),
]


@dataclass(frozen=True)
class Fixed:
    """Gives jobs the same devices every time."""

    order: tuple[int, ...]
    devices: tuple[tuple[int, ...], ...]
    refused: tuple[int, ...] = ()
    needs: frozenset[Need] = frozenset()
    preempts: bool = True

    def start(self, cluster: Cluster) -> None: ...

    def decide(self, snapshot: Snapshot, state: Any) -> tuple[Allocation, Any]:
        refused = dict.fromkeys(self.refused, "nobody wants it")
        return Allocation(Placed(np.array(self.order), self.devices), refused=refused), None


def test_what_jobs_can_have_is_given() -> None:
    run = simulate_fleet(JOBS, CLUSTER, Fixed((0, 1), ((0, 1), (4, 5))), keep_spans=True)
    assert {(span.job, span.devices) for span in run.spans} == {("rigid", (0, 1)), ("elastic", (4, 5))}


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (Fixed((0,), ((0, 6),)), "gives job 'rigid' devices 0, 6; cluster '2x2xV100.1x2xK80' has devices 0 to 5"),
        (Fixed((0,), ((-1, 0),)), "gives job 'rigid' devices -1, 0; cluster .* has devices 0 to 5"),
        (Fixed((0,), ((1, 1),)), "gives job 'rigid' devices 1, 1, some of them twice"),
        (Fixed((0,), ((1, 0),)), "gives job 'rigid' devices 1, 0; give them as a tuple, in ascending order"),
        (Fixed((0,), ((1, 2),)), "gives job 'rigid' devices 2, whose nodes cannot be used now"),
        (Fixed((0,), ((0,),)), "gives job 'rigid' 1 devices; it runs on 2"),
        (Fixed((1,), ((0, 1, 4),)), "gives job 'elastic' 3 devices; it runs on 1 to 2"),
        (Fixed((0,), ((4, 5),)), "'rigid' devices 4, 5 of K80; it runs on devices of one type, of V100"),
        (Fixed((1,), ((1, 4),)), "'elastic' devices 1, 4 of V100 and K80; .* of one type, of V100 or K80"),
        (Fixed((0, 1, 0), ((0, 1), (4,), ())), "names job 'rigid' twice"),
        (Fixed((0, 2), ((0, 1), (4,))), "names job 2; jobs of this snapshot are 0 to 1"),
        (Fixed((-1, 0), ((4,), (0, 1))), "names job -1; jobs of this snapshot are 0 to 1"),
        (Fixed((0, 1), ((0, 1),)), "names 2 jobs, and devices of 1"),
        (Fixed((0, 1), ((0, 1), (4,)), refused=(1,)), "refuses job 1 and gives it devices 4"),
    ],
)  # fmt: skip
def test_an_error_of_a_policy_is_found(policy: Fixed, message: str) -> None:
    with pytest.raises(FleetError, match=message):
        simulate_fleet(JOBS, CLUSTER, policy)


def test_a_policy_that_takes_nothing_away_gives_free_devices_only() -> None:
    """It sees only jobs that wait: at the second decision, elastic is its job 0."""
    policy = Fixed((0,), ((0, 1),), preempts=False)
    jobs = [JOBS[0], replace(JOBS[1], arrival_s=5.0)]
    with pytest.raises(FleetError, match="gives job 'elastic' devices 0, 1, which others have"):
        simulate_fleet(jobs, CLUSTER, policy)
    later = [JOBS[0], replace(JOBS[1], arrival_s=10.0)]
    run = simulate_fleet(later, CLUSTER, policy)
    assert finished(run) == {"rigid": 10.0, "elastic": 20.0}


def test_who_has_other_devices_already_may_keep_them() -> None:
    """A job that runs on several types since before this scheduler began goes on."""
    cluster = parse_cluster("1x1xV100+1x2xK80")
    allocator = Allocator(cluster, Fixed((0,), [(0, 1)]), 0, Costs(), Recorder(True))
    allocator.enter(declared_job("a", 0, 2, 10.0), 0.0)
    allocator.take_over(int(allocator.table.active[0]), Grant((0, 1)), 0.0)
    rows = allocator.table.active.copy()
    assert not len(allocator.apply(rows, Allocation(Placed(np.arange(1), [(0, 1)])), 5.0))
    with pytest.raises(FleetError, match="of V100 and K80"):
        allocator.apply(rows, Allocation(Placed(np.arange(1), [(0, 2)])), 5.0)
