"""What the nodes of a cluster manager must be for a cluster, and what jobs have of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from trainyard.fleet.errors import FleetError
from trainyard.fleet.run.directory_backend import DirectoryBackend
from trainyard.fleet.run.fit import differ, require_fit
from trainyard.fleet.run.job_directory import JobDirectory
from trainyard.fleet.run.slurm import SlurmBackend
from trainyard.fleet.run.slurm_nodes import SlurmNode
from trainyard.fleet.workload.job import Grant
from trainyard.fleet.workload.training import Training
from trainyard.fleet.workload.training_job import training_job
from trainyard.hardware.cluster import Node
from trainyard.hardware.parse import parse_cluster

CLUSTER = parse_cluster("2x4xV100-16G+2x4xK80")


@pytest.mark.parametrize(
    ("here", "there", "are_others"),
    [
        ("A100-80G", "A100-80G", False),
        ("A100-80G", "a100", False),
        ("A100-80G", "nvidia_a100-sxm4-80gb", False),
        ("A100-80G", "nvidia_a100-pcie-40gb", True),
        ("V100-16G", "tesla_v100-sxm2-32gb", True),
        ("H100", "nvidia_h100_80gb_hbm3", False),
        ("H100", "a100", True),
        ("RTX4090", "geforce_rtx_4090", False),
        ("L4", "nvidia_l40s", True),
        ("L4", "nvidia_l40g", False),  # not known here
        ("K80", "k80", False),
        ("V100-16G", "k80", True),
        ("A100-80G", "gpu", False),  # no type
        ("A100-80G", "fast", False),
        ("local", "a100", False),  # places for processes are anywhere
    ],
)
def test_names_of_devices(here: str, there: str, are_others: bool) -> None:
    assert differ(here, there) == are_others


def test_types_are_in_the_order_of_the_nodes(tmp_path: Path) -> None:
    """Else jobs that are predicted on one type would train on the other, and nobody would know."""
    kinds = ("k80", "k80", "v100", "v100")
    with pytest.raises(
        FleetError,
        match=r"'2x4xV100-16G\+2x4xK80' has V100-16G on node 0, Slurm has k80 there; give the pools of the cluster in "
        r"the order of its nodes, which are 2x4xk80\+2x4xv100",
    ):
        SlurmBackend(CLUSTER, tmp_path, nodes=_slurm(kinds))
    require_fit(CLUSTER, [node.host for node in _slurm(kinds[::-1])], "Slurm")


def test_a_cluster_says_no_more_of_nodes_than_they_have() -> None:
    there = [Node.named("a100", 4, cpus=32.0, memory_bytes=256e9)]
    require_fit(parse_cluster("1x2xA100-80G@32cpu,256GB"), there, "Ray")
    with pytest.raises(
        FleetError, match="has 64 processors on node 0, Ray has 32 there; say no more than that"
    ):
        require_fit(parse_cluster("1x2xA100-80G@64cpu"), there, "Ray")
    with pytest.raises(FleetError, match="has 500 GB of memory on node 0, Ray has 256 there"):
        require_fit(parse_cluster("1x2xA100-80G@500GB"), there, "Ray")


def test_a_job_has_what_it_asks_for_and_not_what_a_policy_divides(tmp_path: Path) -> None:
    """Synergy would leave a training one processor per device, as its prediction does not know what more are worth."""
    backend = _Noting(parse_cluster("1x4xA100-80G@32cpu"), tmp_path)
    job = training_job("a", 0.0, 2, Training("gpt-tiny", 4, 8), cpus=12.0)
    for devices, cpus, launched in (
        ((0, 1), 12.0, 12.0),
        ((0,), 6.0, 6.0),
        ((0, 1), 2.0, 0.0),
        ((0, 1), 0.0, 0.0),
    ):
        backend.start(job, Grant(devices, cpus=cpus))
        assert backend.launched == Grant(devices, cpus=launched)


class _Noting(DirectoryBackend):
    """Starts nothing, and keeps what it was to start last."""

    launched = Grant(())

    def launch(self, name: str, directory: JobDirectory, grant: Grant) -> None:
        self.launched = grant

    def is_over(self, name: str) -> bool:
        return True

    def kill(self, name: str) -> None:
        raise AssertionError("there is nothing to kill")


def _slurm(kinds: Sequence[str]) -> list[SlurmNode]:
    """Nodes of four devices each."""
    return [
        SlurmNode(f"n{n}", "10.0.0.1", f"gpu:{kind}", Node.named(kind, 4)) for n, kind in enumerate(kinds)
    ]
