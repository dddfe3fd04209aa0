"""Pollux: the best batch sizes, and the mean completion time that the authors' simulator prints."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from trainyard.fleet.records import FleetRun
from trainyard.fleet.replicas.pollux import PolluxProgram
from trainyard.fleet.reproduce.programs.pollux import as_in_pollux, jobs_table
from trainyard.fleet.workload.goodput import Limits, Models, Noise, Report, Timing, divided
from trainyard.fleet.workload.readers.pollux import read_pollux
from trainyard.fleet.workload.throughput import Theta
from trainyard.published import PaperTable, Row

_THETA = Theta(0.05, 0.002, 0.08, 0.004, 0.02, 0.001, 1.8)
_NOISE = Noise(1.0, 40.0)
_LIMITS = Limits(128, 4096, 32, 1024)
_PLACES = ((1, 1), (1, 2), (1, 4), (2, 8), (4, 16))
"""Nodes and devices."""


def _pass_s(local: int) -> float:
    return _THETA.alpha_grad + _THETA.beta_grad * local


def _step_s(nodes: int, devices: int, local: int) -> float:
    """One pass with synchronisation, as the paper models it (section 3.2)."""
    alpha, beta = (
        (_THETA.alpha_node, _THETA.beta_node) if nodes > 1 else (_THETA.alpha_local, _THETA.beta_local)
    )
    sync_s = alpha + beta * (devices - 2) if devices > 1 else 0.0
    return float((_pass_s(local) ** _THETA.gamma + sync_s**_THETA.gamma) ** (1 / _THETA.gamma))


def _goodput(nodes: int, devices: int, size: int) -> float:
    """Throughput times efficiency, (noise + first batch) / (noise + batch), in steps at the first batch per second."""
    local, passes = divided(size, devices, _LIMITS)
    batch, first = local * passes * devices, _LIMITS.smallest
    noise = first * _NOISE.variance / _NOISE.square
    efficiency = (noise + first) / (noise + batch)
    return batch / first * efficiency / (_step_s(nodes, devices, local) + (passes - 1) * _pass_s(local))


def _best() -> Iterator[Row]:
    timings = tuple(
        Timing("T4", nodes, devices, local, _pass_s(local), _step_s(nodes, devices, local))
        for nodes, devices in _PLACES
        for local in (16, 32, 64, 128)
    )
    models = Models.of([Report(_LIMITS, timings, _NOISE)])
    for nodes, devices in _PLACES:
        least = max(_LIMITS.smallest, devices * _LIMITS.smallest_local)
        theirs = max(_goodput(nodes, devices, size) for size in range(least, _LIMITS.largest + 1, devices))
        ours = float(models.goodputs_at(np.array([nodes > 1]), np.array([devices]))[0])
        yield Row(f"nodes: {nodes}, devices: {devices}", theirs, ours)


def _simulated(folder: Path) -> FleetRun:
    jobs = read_pollux(folder / "workloads" / "workload-6.csv", folder / "traces")
    return as_in_pollux(jobs, PolluxProgram())


TABLES = (
    PaperTable(
        "Qiao et al., OSDI 2021, sections 3.1 and 3.2, the equations of goodput, at the best of all batch sizes",
        "steps at the smallest batch per second",
        "what the agent predicts from the model that it fits to 20 timings, at the best of the batch sizes that it tries",
        _best,
        tolerance=0.02,
    ),
    jobs_table("pollux", 2446.131, _simulated, 0.03, is_slow=True),
)
