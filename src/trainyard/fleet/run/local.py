"""The backend of this machine: a device is a place for one process, a job as many processes as it has devices."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from multiprocessing.process import BaseProcess

import psutil

from trainyard.fleet.errors import FleetError
from trainyard.fleet.run.backend import Progress
from trainyard.fleet.run.directory_backend import DirectoryBackend
from trainyard.fleet.run.fault import BackendError
from trainyard.fleet.run.job_directory import JobDirectory
from trainyard.fleet.run.node import run_apart
from trainyard.fleet.run.ranks import Ranks
from trainyard.fleet.workload.job import Grant, Job
from trainyard.job.run.processes.fork_server import WorkerError, context, has_ended, start, warm_up
from trainyard.processes import ProcessLimits, ProcessState, ProcessWatch, process_state, watch_together

__all__ = ["LocalBackend"]

_BEGIN_LIMITS = ProcessLimits(cpu_s=60.0)  # of a process until it has begun, for which it needs next to none
_MEMORY_SHARE = 0.9  # of the machine's, which the processes of all jobs divide
_LEAST_RANK_BYTES = 2**30  # PyTorch itself takes a part of it
# As many as any policy puts there.
_JOBS_PER_DEVICE = 2


@dataclass(frozen=True)
class _Beginning:
    """A process that may not have begun yet.

    Attributes
    ----------
    watch : of the process.
    late : why others that were started for the job before were given up; "" if there were none.
    """

    grant: Grant
    watch: ProcessWatch
    late: str = ""


class LocalBackend(DirectoryBackend):
    """Trains jobs in processes of this machine; they go on when the backend dies, and another one may adopt them.

    They are forked from a server that has PyTorch loaded, so a job starts or goes on in a second or two.

    The nodes divide the cores of the machine among them: what runs on one does not slow what runs on another.

    Attributes
    ----------
    begin_limits : of a process until it has begun to train.
    """

    begin_limits = _BEGIN_LIMITS

    @cached_property
    def _processes(self) -> dict[str, BaseProcess]:
        """Processes that this backend started, by job."""
        return {}

    @cached_property
    def _beginning(self) -> dict[str, _Beginning]:
        """Started jobs that have shown no process yet, by name."""
        return {}

    @cached_property
    def _cores(self) -> list[Sequence[int]]:
        """Cores of each node."""
        return _divided(sorted(os.sched_getaffinity(0)), len(self.cluster.nodes))

    @cached_property
    def _max_rank_bytes(self) -> float:
        """Memory that a process may have: an equal part of the machine's."""
        num_places = sum(self.places(node) for node in range(len(self.cluster.nodes)))
        share = psutil.virtual_memory().total * _MEMORY_SHARE / num_places
        return min(self.limits.max_rank_bytes, max(_LEAST_RANK_BYTES, share))

    def warm_up(self) -> None:
        warm_up()

    def adopt(self, job: Job, grant: Grant) -> bool:
        if self.is_over(job.name):
            # The backend before may have died just when it started the job.
            self.directory(job.name).call_off()
        return super().adopt(job, grant)

    @property
    def is_one_machine(self) -> bool:
        return True

    def cores(self, node: int) -> float:
        all_cores = len(os.sched_getaffinity(0))
        if all_cores < len(self.cluster.nodes):  # all nodes use all of them
            return all_cores / len(self.cluster.nodes)
        return len(self._cores[node])

    def jobs_per_device(self, node: int) -> int:
        return _JOBS_PER_DEVICE if self.shares else 1

    def launch(self, name: str, directory: JobDirectory, grant: Grant) -> None:
        count, nodes = grant.num_devices, [int(self.cluster.node_of[device]) for device in grant.devices]
        ranks = Ranks(
            0,
            count,
            count,
            directory.new_meeting(),
            self.cluster_text(grant),
            ",".join(map(str, grant.devices)),
            min(map(self.threads, nodes)),
            self.core_part,
            ",".join("+".join(map(str, self._cores[node])) for node in nodes),
            **vars(replace(self.limits, max_rank_bytes=self._max_rank_bytes)),
        )
        process = context().Process(target=run_apart, args=(directory, ranks, directory.issue()))
        try:
            start(process)
        except WorkerError as error:
            raise BackendError(str(error)) from error
        self._processes[name] = process
        assert process.pid is not None
        self._beginning[name] = _Beginning(grant, ProcessWatch(process.pid, self.begin_limits))

    def progress(self, name: str) -> Progress:
        """Return the progress of a job, as all backends do.

        Raises
        ------
        BackendError
            If its process has not begun for so long that something is wrong with this machine.
        """
        if late := self._why_late(name):
            raise BackendError(
                f"the process of job {name!r} was started and has not begun: it {late}; it is tried again"
            )
        return super().progress(name)

    def _why_late(self, name: str) -> str:
        """Why a job that should have begun has not; another process is started for it when one is given up."""
        beginning = self._beginning.get(name)
        if beginning is None:
            return ""
        if has_ended(self._processes[name]) or self.directory(name).groups():
            del self._beginning[name]
            return ""
        if exceeded := beginning.watch.look():
            self.kill(name)
            self.launch(
                name, self.directory(name), beginning.grant
            )  # the one before has no valid ticket any more
            beginning = self._beginning[name] = replace(self._beginning[name], late=str(exceeded))
        return beginning.late

    def leaving_watch(self, name: str) -> ProcessWatch | None:
        try:
            groups, devices = self.directory(name).groups(), self.held(name) or ()
        except FleetError:  # which others hear when they ask
            return None
        num_threads = sum(self.threads(int(self.cluster.node_of[device])) for device in devices)
        limits = ProcessLimits(self.patience_s * max(1, num_threads), idle_s=self.patience_s)
        return watch_together(groups, limits) if groups else None

    def seen(self, name: str) -> Mapping[str, ProcessState]:
        groups = self.directory(name).groups()
        return {"0": process_state(groups[0])} if groups else {}

    def forget(self, name: str) -> None:
        super().forget(name)
        self._processes.pop(name, None)
        self._beginning.pop(name, None)

    def is_over(self, name: str) -> bool:
        process = self._processes.get(name)
        return (process is None or has_ended(process)) and not self.directory(name).groups()

    def kill(self, name: str) -> None:
        process = self._processes.get(name)
        groups = set(self.directory(name).groups())
        if process is not None and process.exitcode is None and process.pid:
            groups.add(process.pid)
        for group in groups:
            # Ranks are sessions of their own. They die with the one that started them; what they started might not.
            below = _descendants(group)
            # One that has not begun yet leads no group.
            for kill in (os.killpg, os.kill):
                with suppress(ProcessLookupError):
                    kill(group, signal.SIGKILL)
            for child in below:
                with suppress(psutil.NoSuchProcess):
                    child.kill()
        # Processes whose parents died earlier are no longer descendants of the node.
        for pid in self.directory(name).holders():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


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
