"""The daemon on the cluster managers: killed while their jobs run, it finds them again."""

from __future__ import annotations

from pathlib import Path

import pytest
from daemons import check_kills
from slurm_here import running_slurm, why_no_slurm

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1800)]

OPTIONS = ("--cluster", "1x2xlocal", "--policy", "srtf", "--backend")


def test_on_slurm(tmp_path: Path, undisturbed: dict[int, float]) -> None:
    if reason := why_no_slurm():
        pytest.skip(reason)
    with running_slurm(tmp_path, (2,), cpus=2):
        back_s = check_kills(tmp_path / "fleet", undisturbed, (*OPTIONS, "slurm"), num_kills=10)
    print(f"\nafter kill -9 the daemon was back after {min(back_s):.1f} to {max(back_s):.1f} s")


def test_on_ray(tmp_path: Path, undisturbed: dict[int, float], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="needs Ray: pip install 'trainyard-ml[ray]'")
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "num_gpus": 0, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        cluster.add_node(num_cpus=2, num_gpus=2, resources={"accelerator_type:local": 1})
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)
        back_s = check_kills(tmp_path / "fleet", undisturbed, (*OPTIONS, "ray"), num_kills=10)
    finally:
        cluster.shutdown()
    print(f"\nafter kill -9 the daemon was back after {min(back_s):.1f} to {max(back_s):.1f} s")
