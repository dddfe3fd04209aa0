"""Compiled code goes beyond no array, which nothing would say there: as Python it raises, and finds the same."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from trainyard.fleet.scheduler import scheduler_of
from trainyard.fleet.simulation import simulator
from trainyard.fleet.workload.generate import philly_jobs
from trainyard.hardware.parse import parse_cluster

POLICIES = (
    "fifo(backfill=True)",
    "srtf",
    "las",
    "tiresias",
    "tiresias(promote_knob=1.0)",
    "srtf(steady=True)",
)
CLUSTERS = ("4x4", "4x4@16cpu,64GB", "2x4xV100+2x2xA100")


def completions() -> list[float]:
    """Of jobs that wait for each other, some of which want more than is free of devices or processors."""
    simulator._COMPILED_AFTER = simulator._COMPILED_EVENTS_AFTER = 5
    few = list(philly_jobs(60, mean_gap_s=300.0, most_devices=8))
    jobs = [replace(job, cpus=6.0 * job.num_devices) if i % 3 == 0 else job for i, job in enumerate(few)]
    runs = (
        scheduler_of(policy).simulate(jobs, parse_cluster(cluster))
        for policy in POLICIES
        for cluster in CLUSTERS
    )
    return [run.mean_completion_s for run in runs]


def test_compiled_code_stays_within_its_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_COMPILED_AFTER", "_COMPILED_EVENTS_AFTER"):  # as they were, after the test
        monkeypatch.setattr(simulator, name, getattr(simulator, name))
    done = subprocess.run(
        [sys.executable, __file__],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [repr(each) for each in completions()]


if __name__ == "__main__":
    print(*map(repr, completions()))
