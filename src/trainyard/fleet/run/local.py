"""The engine of this machine: a device is a place for one process, a job as many processes as it has devices."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from multiprocessing.process import BaseProcess

import psutil

from trainyard.fleet.run.home import JobHome
from trainyard.fleet.run.homes import HomeEngine
from trainyard.fleet.run.node import Ranks, run_apart
from trainyard.fleet.site import FleetError
from trainyard.fleet.workload.job import Grant, Job
from trainyard.job.run.processes import context, warm_up

__all__ = ["LocalEngine"]

_POLL_S = 0.02
_START_S = 60.0
_MEMORY_SHARE = 0.9  # of the machine's, which the processes of all jobs divide
_LEAST_RANK_BYTES = 2**30  # PyTorch itself takes a part of it
# As many as any policy puts there.
_JOBS_PER_DEVICE = 2


class LocalEngine(HomeEngine):
    """Trains jobs in processes of this machine; they go on when the engine dies, and another one may adopt them.

    They are forked from a server that has PyTorch loaded, so a job starts or goes on in a second or two.

    The nodes divide the cores of the machine among them: what runs on one does not slow what runs on another.
    """

    @cached_property
    def _processes(self) -> dict[str, BaseProcess]:
        """By job, those that this engine started."""
        return {}

    @cached_property
    def _cores(self) -> list[Sequence[int]]:
        """By node."""
        return _divided(sorted(os.sched_getaffinity(0)), len(self.site.hosts))

    @cached_property
    def _max_rank_bytes(self) -> float:
        """Memory that a process may have: an equal part of the machine's."""
        num_places = sum(self.places(node) for node in range(len(self.site.hosts)))
        share = psutil.virtual_memory().total * _MEMORY_SHARE / num_places
        return min(self.limits.max_rank_bytes, max(_LEAST_RANK_BYTES, share))

    def warm_up(self) -> None:
        warm_up()

    def adopt(self, job: Job, grant: Grant) -> bool:
        if self.is_over(job.name):
            # The engine before may have died just when it started the job.
            self.home(job.name).call_off()
        return super().adopt(job, grant)

    @property
    def is_one_machine(self) -> bool:
        return True

    def cores(self, node: int) -> float:
        all_cores = len(os.sched_getaffinity(0))
        if all_cores < len(self.site.hosts):  # all nodes use all of them
            return all_cores / len(self.site.hosts)
        return len(self._cores[node])

    def jobs_per_device(self, node: int) -> int:
        return _JOBS_PER_DEVICE if self.shares else 1

    def launch(self, name: str, home: JobHome, grant: Grant) -> None:
        count, nodes = grant.num_devices, [int(self.site.node_of[device]) for device in grant.devices]
        ranks = Ranks(
            0,
            count,
            count,
            home.new_meeting(),
            self.cluster_text(grant),
            ",".join(map(str, grant.devices)),
            min(map(self.threads, nodes)),
            self.core_part,
            ",".join("+".join(map(str, self._cores[node])) for node in nodes),
            **vars(replace(self.limits, max_rank_bytes=self._max_rank_bytes)),
        )
        process = self._processes[name] = context().Process(
            target=run_apart, args=(home, ranks, home.issue())
        )
        process.start()
        limit_s = time.monotonic() + _START_S
        while process.exitcode is None and not home.groups():
            if time.monotonic() > limit_s:
                raise FleetError(f"its process did not begin within {_START_S:g} s")
            time.sleep(_POLL_S)

    def is_over(self, name: str) -> bool:
        process = self._processes.get(name)
        return (process is None or process.exitcode is not None) and not self.home(name).groups()

    def kill(self, name: str) -> None:
        process = self._processes.get(name)
        groups = set(self.home(name).groups())
        if process is not None and process.exitcode is None and process.pid:
            groups.add(process.pid)
        for group in groups:
            # Ranks are sessions of their own. They die with the one that started them; what they started might not.
            below = _descendants(group)
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
            for child in below:
                with suppress(psutil.NoSuchProcess):
                    child.kill()


def _descendants(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _divided(cores: Sequence[int], num_parts: int) -> list[Sequence[int]]:
    """Cores in parts, one after the other; all in every part if there are fewer than parts."""
    count = len(cores)
    if count < num_parts:
        return [cores] * num_parts
    return [cores[i * count // num_parts : (i + 1) * count // num_parts] for i in range(num_parts)]
