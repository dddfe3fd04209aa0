"""A small simulation does without compiling, and finds the same to the last bit; one that gets long compiles."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from trainyard import compiling
from trainyard.fleet.mechanism.costs import Costs
from trainyard.fleet.mechanism.hazards import Hazards
from trainyard.fleet.records import FleetRun
from trainyard.fleet.scheduler import scheduler_of
from trainyard.fleet.workload.generate import philly_jobs
from trainyard.fleet.workload.job import Job
from trainyard.hardware.parse import parse_cluster

ROOT = Path(__file__).parents[2]
POLICIES = (
    "fifo(backfill=True)", "srtf", "las", "easy", "tiresias", "tiresias(promote_knob=1.0)", "antman", "edf", "gandiva",
    "elasticflow", "hived", "synergy",
)  # fmt: skip
CLUSTERS = ("4x4", "4x4@16cpu,64GB", "2x4xV100+2x2xA100")
CONDITIONS = ({}, {"costs": Costs(30.0, 5.0)}, {"hazards": Hazards(failure_every_s=3e5, node_failure_every_s=1e6, straggler_share=0.1, seed=3)})


def jobs_of(seed: int) -> list[Job]:
    few = list(philly_jobs(60, mean_gap_s=300.0, most_devices=8, seed=seed))
    return [replace(job, cpus=6.0 * job.num_devices) if i % 3 == 0 else job for i, job in enumerate(few)]


def digest(run: FleetRun) -> str:
    """Of everything that a run says in arrays."""
    columns = [value for value in vars(run).values() if isinstance(value, np.ndarray)]
    assert len(columns) > 5
    return hashlib.sha256(b"".join(column.tobytes() for column in columns)).hexdigest()


def found(policies: tuple[str, ...] = POLICIES, seeds: tuple[int, ...] = (0,)) -> Iterator[str]:
    for policy in policies:
        for place, cluster in enumerate(CLUSTERS):
            for seed in seeds:
                try:
                    run = scheduler_of(policy).simulate(jobs_of(seed), parse_cluster(cluster), **CONDITIONS[place])
                    yield f"{policy} {cluster} {seed} {digest(run)}"
                except Exception as e:
                    yield f"{policy} {cluster} {seed} {type(e).__name__} {str(e)[:90]}"

if __name__ == "__main__":
    print(*found(), sep="\n")
