"""Jobs of one's own lose their devices again and again, and end with what an uninterrupted run ends with."""

from __future__ import annotations

from pathlib import Path

import pytest
from own_scripts import LIMIT_S, check_ends_as_alone

from trainyard.fleet.run.local import LocalBackend
from trainyard.hardware.cluster import Cluster

CLUSTER = Cluster.uniform(1, 2, "local")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * LIMIT_S)]


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        ("ddp", "srtf"),
        ("squares", "tiresias"),
        ("own", "srtf"),
        pytest.param("ddp", "tiresias", marks=pytest.mark.long),
        pytest.param("squares", "srtf", marks=pytest.mark.long),
        pytest.param("own", "tiresias", marks=pytest.mark.long),
        ("trainer", "tiresias"),
        pytest.param("trainer", "srtf", marks=pytest.mark.long),
    ],
)
def test_a_preempted_job_ends_as_an_uninterrupted_one(tmp_path: Path, name: str, policy: str) -> None:
    check_ends_as_alone(name, policy, LocalBackend(CLUSTER, tmp_path / "jobs"), tmp_path / "alone")
