"""Compile the simulator now, so that later runs find it on disk: ``python -m trainyard.fleet.precompile``.

Simulations of all policies are run, under all conditions that lead to other types of arguments. What is compiled lies
where Numba keeps it: beside the files if that can be, else in the user's cache, or where ``NUMBA_CACHE_DIR`` says.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from trainyard.compiling import compile_from_now_on
from trainyard.fleet.catalog import CATALOG, Entry
from trainyard.fleet.errors import FleetError
from trainyard.fleet.mechanism.costs import Costs
from trainyard.fleet.mechanism.crowding import Crowding
from trainyard.fleet.mechanism.hazards import Hazards
from trainyard.fleet.scheduler import scheduler_of
from trainyard.fleet.workload.application import Application, SelfTuned
from trainyard.fleet.workload.generate import philly_jobs
from trainyard.fleet.workload.goodput import Limits
from trainyard.fleet.workload.job import Job, declared_job
from trainyard.hardware.parse import parse_cluster

__all__ = ["precompile"]

# The search of Pollux takes long, and compiles the same.
_BRIEF = {"pollux": {"num_generations": 3, "population": 8}}
_PLAIN, _MIXED, _AUXILIARY = "4x4", "2x4xV100+2x2xA100", "4x4@16cpu,64GB"
_HARD = {
    "costs": Costs(30.0, 5.0),
    "hazards": Hazards(failure_every_s=3e5, node_failure_every_s=1e6, straggler_share=0.1),
}


def precompile() -> None:
    """Compile the code that simulations of the policies of the catalog use, and keep it."""
    compile_from_now_on()
    policies = [_text(entry, variant) for entry in CATALOG for variant in ("", *entry.variants)]
    for policy, (jobs, cluster, conditions) in product(policies, _cases()):
        with suppress(FleetError):  # it is not for such jobs or such a cluster
            scheduler_of(policy).simulate(jobs, parse_cluster(cluster), **conditions)
    for place in ("anywhere", "packed", "spread", "emptiest"):
        scheduler_of("srtf", place).simulate(_gangs(), parse_cluster(_AUXILIARY), crowding=Crowding(2))
    scheduler_of("srtf", round_s=60.0).simulate(_gangs(), parse_cluster(_PLAIN), keep_spans=True)
    # The last one decides in Python.
    for policy in ("fifo", "tiresias", "tiresias(promote_knob=1.0)", "srtf(steady=True)"):
        scheduler_of(policy).simulate(_many(), parse_cluster(_PLAIN))


def _text(entry: Entry, variant: str) -> str:
    options = {**_BRIEF.get(entry.name, {}), **entry.variants.get(variant, {})}
    return f"{entry.name}({', '.join(f'{key}={value!r}' for key, value in options.items())})"


def _cases() -> Iterator[tuple[list[Job], str, Mapping[str, Any]]]:
    """Jobs, a cluster and conditions."""
    yield _gangs(), _PLAIN, {}
    yield _gangs(), _MIXED, {}
    yield _gangs(), _AUXILIARY, _HARD
    yield _tuned(), _PLAIN, {}


def _gangs() -> list[Job]:
    """Jobs that wait for each other; some ask for processors."""
    jobs = philly_jobs(12, mean_gap_s=300.0, most_devices=8)
    return [replace(job, cpus=6.0 * job.num_devices) if i % 3 == 0 else job for i, job in enumerate(jobs)]


def _many() -> list[Job]:
    """Return as many jobs as it takes until the simulator's loop is the compiled one."""
    return [declared_job(f"job{i}", 60.0 * i, 1 + i % 4, 200.0) for i in range(4000)]


def _tuned() -> list[Job]:
    """Jobs that adapt their batch sizes."""
    sizes, flat = np.array([32.0, 128.0]), np.ones((2, 2))
    places: dict[tuple[int, ...], Any] = {
        nodes: np.array(
            [[batch, 0.01 * batch + 0.1 * len(nodes), 0.1 * len(nodes)] for batch in (8.0, 16.0, 32.0)]
        )
        for nodes in ((1,), (2,), (4,), (4, 4))
    }
    profile = SelfTuned(
        Application(
            "model",
            Limits(32, 512, 8, 32),
            np.array([500.0, 1000.0]),
            sizes,
            flat,
            1e3 * flat,
            flat,
            places,
            None,
            2,
            8,
        )
    )
    return [Job(f"job{i}", 100.0 * i, 1, 1000.0, profile, model="model") for i in range(6)]


def main() -> None:
    """Compile, and print how long it took."""
    print(
        "compiling the simulator of the fleet, once for this environment; takes two or three minutes",
        flush=True,
    )
    since_s = time.process_time()
    precompile()
    print(f"compiled in {time.process_time() - since_s:.0f} s of processor time; later runs find it on disk")


if __name__ == "__main__":
    main()
