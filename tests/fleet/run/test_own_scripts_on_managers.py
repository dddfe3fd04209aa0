"""Jobs of one's own on nodes of Slurm and Ray lose their devices again and again, and end as alone on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from own_scripts import LIMIT_S, POLICIES, check_ends_as_alone
from slurm_here import running_slurm, why_no_slurm

from trainyard.fleet.run.directory_backend import DirectoryBackend
from trainyard.fleet.run.slurm import SlurmBackend
from trainyard.fleet.run.slurm_nodes import slurm_cluster

MakeBackend = Callable[[Path], DirectoryBackend]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * LIMIT_S)]
# A job of two devices lies on both nodes.
NODES = (1, 1)
MANAGERS, EXAMPLES = ("slurm", "ray"), ("ddp", "trainer", "squares", "own")
# These run in CI; with `test_a_script_of_ones_own_on_two_nodes` of both backends, they are the cheap ones.
CHEAP = {("slurm", "squares", "tiresias"), ("ray", "squares", "srtf")}
EVERY = [
    pytest.param(*case, marks=() if case in CHEAP else pytest.mark.long)
    for case in product(MANAGERS, EXAMPLES, POLICIES)
]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeBackend]:
    """Make backends on nodes of Slurm."""
    if reason := why_no_slurm():
        pytest.skip(reason)
    with running_slurm(tmp_path_factory.mktemp("slurm"), NODES):
        yield lambda jobs: SlurmBackend(slurm_cluster(), jobs)


@pytest.fixture(scope="module")
def ray() -> Iterator[MakeBackend]:
    """Make backends on nodes of Ray."""
    package: Any = pytest.importorskip("ray", reason="needs Ray: pip install 'trainyard-ml[ray]'")
    from ray.cluster_utils import Cluster

    nodes = import_module("trainyard.fleet.run.ray_nodes")
    backend = import_module("trainyard.fleet.run.ray_backend").RayBackend
    head = {"num_cpus": 0, "num_gpus": 0, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        for count in NODES:
            cluster.add_node(num_cpus=8, num_gpus=count, resources={"accelerator_type:local": 1})
        yield lambda jobs: backend(nodes.ray_cluster(str(cluster.address)), jobs)
    finally:
        package.shutdown()
        cluster.shutdown()


@pytest.mark.parametrize(("manager", "name", "policy"), EVERY)
def test_a_preempted_job_ends_as_an_uninterrupted_one(
    manager: str, name: str, policy: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    make_backend: MakeBackend = request.getfixturevalue(manager)
    check_ends_as_alone(name, policy, make_backend(tmp_path / "jobs"), tmp_path / "alone")
