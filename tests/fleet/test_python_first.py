"""A small simulation does without compiling and finds the same to the last bit; so it does after all is compiled."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainyard import compiling
from trainyard.fleet.mechanism.costs import Costs
from trainyard.fleet.mechanism.hazards import Hazards
from trainyard.fleet.scheduler import scheduler_of
from trainyard.fleet.simulation import simulator
from trainyard.fleet.workload.generate import philly_jobs
from trainyard.fleet.workload.job import Job
from trainyard.hardware.parse import parse_cluster

ROOT = Path(__file__).parents[2]
QUICK = (
    "fifo(backfill=True)",
    "srtf",
    "las",
    "tiresias",
    "tiresias(promote_knob=1.0)",
    "antman",
    "edf",
    "hived",
)
SLOW = ("gandiva", "elasticflow", "synergy", "optimus", "sjf", "fifo")
CASES: dict[str, dict[str, Any]] = {
    "4x4": {},
    "4x4@16cpu,64GB": {"costs": Costs(30.0, 5.0)},
    "3x4": {
        "hazards": Hazards(failure_every_s=3e5, node_failure_every_s=1e6, straggler_share=0.1),
        "keep_spans": True,
    },
}


def drawn(seed: int) -> list[Job]:
    """Jobs that wait for each other, some of which want more than is free of devices or processors."""
    few = list(philly_jobs(40, seed, mean_gap_s=300.0, most_devices=8))
    return [replace(job, cpus=6.0 * job.num_devices) if i % 3 == 0 else job for i, job in enumerate(few)]


def found(policies: tuple[str, ...], seed: int) -> Iterator[str]:
    """All that runs say in numbers; with long runs, the loop that takes over is in them, too."""
    for policy in policies:
        for cluster, conditions in CASES.items():
            run = scheduler_of(policy).simulate(drawn(seed), parse_cluster(cluster), **conditions)
            values = {name: value for name, value in vars(run).items() if isinstance(value, np.ndarray)}
            assert {"finish_s", "waiting_s", "num_starts"} <= values.keys()
            bits = {name: (value.dtype.str, value.tobytes().hex()) for name, value in values.items()}
            yield f"{policy} {cluster} {run.num_decisions} {sorted(bits.items())}"


def check_same(policies: tuple[str, ...], seed: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, __file__, str(seed), *policies]
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert list(folder.rglob("*.nbi")) == [], "nothing is compiled"
    compiling.compile_from_now_on()
    monkeypatch.setattr(simulator, "_COMPILED_AFTER", 40)
    monkeypatch.setattr(simulator, "_COMPILED_EVENTS_AFTER", 20)
    assert done.stdout.splitlines() == list(found(policies, seed))


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "_python_s", compiling._python_s)


def test_a_small_run_finds_the_same_without_compiling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_same(QUICK, 0, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_any_small_run_finds_the_same(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_same(QUICK + SLOW, seed, tmp_path, monkeypatch)


@pytest.mark.long
def test_nothing_is_left_to_compile_after_installing(tmp_path: Path) -> None:
    """Also not for long runs."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-m", "trainyard.fleet.precompile"], env=environment, check=True)
    before = sorted(tmp_path.rglob("*.nbc"))
    assert len(before) > 100
    command = [sys.executable, __file__, "0", *QUICK, *SLOW, "gavel_max_min", "gavel_makespan", "--compiled"]
    subprocess.run(command, env=environment, check=True)
    assert sorted(tmp_path.rglob("*.nbc")) == before


if __name__ == "__main__":
    seed, *policies = sys.argv[1:]
    if policies[-1] == "--compiled":
        compiling.compile_from_now_on()
        policies.pop()
    compiling.MOST_PYTHON_S = 1000.0
    simulator._COMPILED_AFTER, simulator._COMPILED_EVENTS_AFTER = 40, 20
    print(*found(tuple(policies), int(seed)), sep="\n")
