"""Base of all backends: jobs live in folders, are asked to leave by a file there, and go on from checkpoints there."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

from trainyard.fleet.errors import FleetError
from trainyard.fleet.mechanism.crowding import Crowding
from trainyard.fleet.place.auxiliary import as_asked
from trainyard.fleet.run.backend import USUAL_OPTIONS, BackendOptions, Progress
from trainyard.fleet.run.command_progress import CommandLosses
from trainyard.fleet.run.job_directory import JobDirectory
from trainyard.fleet.run.losses import Losses
from trainyard.fleet.run.node_watch import NodeWatch
from trainyard.fleet.run.ranks import Ranks
from trainyard.fleet.workload.command import Command
from trainyard.fleet.workload.job import Grant, Job
from trainyard.fleet.workload.runnable import runnable_of
from trainyard.fleet.workload.training import THIS_MACHINE, cluster_text
from trainyard.hardware import parse_cluster
from trainyard.hardware.cluster import Cluster, Node
from trainyard.processes import ProcessState, ProcessWatch

_POLL_S = 0.02
_AGAIN_S = 2.0
# Cluster managers ask processes to end before they kill them: Slurm waits 30 s by default.
_KILL_S = 60.0
# Part of the cores that places for processes divide. The rest is for what starts, which takes seconds of a core, and for
# managers and the backend.
_HEADROOM = 0.6


@dataclass(frozen=True)
class _Leaving:
    """A job that is to leave.

    Attributes
    ----------
    until_s : it may do so by itself, and longer while ``watch`` sees that it works.
    again_s : when it may be killed again.
    is_lost : whether nodes of it may not answer.
    """

    until_s: float
    again_s: float = 0.0
    is_lost: bool = False
    watch: ProcessWatch | None = None


class DirectoryBackend(ABC):
    """A backend whose jobs live in a folder each.

    Parameters
    ----------
    cluster : whose devices are numbered in grants.
    folder : of the jobs' folders; all nodes must see it.
    options : of all jobs.
    """

    def __init__(self, cluster: Cluster, folder: Path, options: BackendOptions = USUAL_OPTIONS) -> None:
        self.cluster, self.folder = cluster, folder.resolve()
        self.patience_s, self.shares, self.limits = options.patience_s, options.shares, options.limits
        self._node_watch = NodeWatch(self.limits.heartbeat_s)
        for kind in cluster.device_types:
            parse_cluster(cluster_text([(kind, 1)]))  # measures this machine, if that was never done
        self._known: set[str] = set()
        self._leaving: dict[str, _Leaving] = {}
        self._losses: dict[str, Losses | CommandLosses] = {}

    @abstractmethod
    def launch(self, name: str, directory: JobDirectory, grant: Grant) -> None:
        """Start the processes of a job."""

    @abstractmethod
    def is_over(self, name: str) -> bool:
        """Whether none of the processes of a job is left."""

    @abstractmethod
    def kill(self, name: str) -> None:
        """End the processes of a job at once."""

    def adopt(self, job: Job, grant: Grant) -> bool:
        """Take over a job that a backend before this one started; False if it does not run any more, or is to leave."""
        self._known.add(job.name)
        if self.is_over(job.name):
            return False
        if self.directory(job.name).pause.exists():
            self.leave(job.name)
            return False
        return True

    def warm_up(self) -> None:  # noqa: B027 (most have nothing to do)
        """Do beforehand what would make the first job wait."""

    def directory(self, name: str) -> JobDirectory:
        """The folder of a job."""
        return JobDirectory(self.folder / name)

    def start(self, job: Job, grant: Grant) -> None:
        if not self.is_over(job.name):
            raise FleetError(f"job {job.name!r} runs already; stop it first")
        if not self.shares:
            require_whole(job.name, grant, f"{type(self).__name__}(shares=False)")
        directory = self.directory(job.name)
        directory.set_up(runnable_of(job))
        if job.command is not None and directory.has_ended():  # a run before this one saw to it
            return
        directory.allow()
        directory.devices.write_text(" ".join(map(str, grant.devices)))
        self._known.add(job.name)
        # What a policy divides of processors and memory is by what they are worth to jobs, which predictions of trainings
        # do not know, and it divides them anew while jobs run, whose part of a manager's nodes stays as it is.
        asked = grant == as_asked(job, grant)
        self.launch(job.name, directory, grant if asked else grant._replace(cpus=0.0, memory_bytes=0.0))

    def leave(self, name: str, is_lost: bool = False) -> None:
        """Have a job leave at the end of its present step, with a checkpoint: nothing will be done again.

        One that has just started does one step, so that a job makes progress however short its turns are.
        """
        now_s = time.monotonic()
        try:
            self.directory(name).pause.touch()
        except OSError:  # its folder is gone, or there is no room for a file: it cannot be asked
            self._leaving[name] = _Leaving(now_s, is_lost=is_lost)
        else:
            watch, patience_s = self.leaving_watch(name), self.patience_s
            with suppress(OSError, FleetError):  # a folder without a runnable has no processes to wait for
                runnable = self.directory(name).runnable()
                if isinstance(
                    runnable, Command
                ):  # its node process ends it in time, and knows all that has to end
                    watch, patience_s = None, patience_s + runnable.grace_s
            self._leaving[name] = _Leaving(now_s + patience_s, is_lost=is_lost, watch=watch)

    def has_left(self, name: str) -> bool:
        if name not in self._leaving:
            return True
        leaving, now_s = self._leaving[name], time.monotonic()
        gone = not self.directory(name).groups() if leaving.is_lost else False
        works = leaving.watch is not None and leaving.watch.look() is None
        if (gone or not leaving.is_lost) and self.is_over(name):
            del self._leaving[name]
            self.forget(name)
            return True
        if leaving.is_lost:
            if (gone or now_s > leaving.until_s) and now_s > leaving.again_s:
                self._leaving[name] = replace(leaving, again_s=now_s + _AGAIN_S)
                with suppress(FleetError):  # of a manager that does not answer now
                    self.let_go(name)
        elif now_s > leaving.until_s and not works:
            # A node that has just died cannot say that the job is over.
            self._leaving[name] = _Leaving(now_s + _KILL_S, is_lost=True)
            self.kill(name)
        return False

    def forget(self, name: str) -> None:
        """Nothing is left of a job; it may be started again."""
        self._known.discard(name)
        self._losses.pop(name, None)
        self._node_watch.forget(name)

    def held(self, name: str) -> frozenset[int] | None:
        try:
            return frozenset(map(int, self.directory(name).devices.read_text().split()))
        except (OSError, ValueError):
            return None

    def stop(self, names: Sequence[str]) -> None:
        """Have jobs leave, and wait until they have, or nothing more can be done for it."""
        for name in names:
            self.leave(name)
        left = list(names)
        while left:
            left = [name for name in left if not self.has_left(name) and not self._is_lost(name)]
            time.sleep(_POLL_S)

    def _is_lost(self, name: str) -> bool:
        """Whether a job was killed long ago, and some of it may be left."""
        leaving = self._leaving[name]
        return leaving.is_lost and time.monotonic() > leaving.until_s

    def away(self) -> frozenset[int]:
        return frozenset()

    def let_go(self, name: str) -> None:
        """Kill a job that has lost nodes, and count nothing that nodes which do not answer may have of it."""
        self.kill(name)

    def progress(self, name: str) -> Progress:
        directory, is_over = self.directory(name), self.is_over(name)
        found = directory.progress(is_over)
        if is_over:
            self._node_watch.forget(name)
            if found.ended:
                self.forget(name)
            return found
        if self.is_suspended(name):
            self._node_watch.forget(name)
        elif lost := self._node_watch.problem(directory, partial(self.seen, name)):
            directory.fail(lost, killed=True)
            with suppress(FleetError):  # of a manager that does not answer now
                self.kill(name)
            return Progress(directory.saved_steps(), failure=lost, killed=True)
        if name not in self._losses:
            self._losses[name] = directory.epochs()
        return replace(found, losses=self._losses[name].read())

    def is_suspended(self, name: str) -> bool:
        """Whether a cluster manager has put a job back into its queue, or has suspended it: it has no heartbeat then."""
        return False

    def leaving_watch(self, name: str) -> ProcessWatch | None:
        """Watch of a leaving job, which gets more time while it works; None where its processes cannot be seen."""
        return None

    def seen(self, name: str) -> Mapping[str, ProcessState]:
        """State of the job's node processes on this machine, by their first rank."""
        return {}

    def close(self) -> None:
        self.stop([name for name in sorted(self._known) if not self.is_over(name)])

    def per_node(self, grant: Grant) -> dict[int, int]:
        """Devices of a grant on each of its nodes, in the order of the nodes."""
        return dict(Counter(int(self.cluster.node_of[device]) for device in grant.devices))

    def cluster_text(self, grant: Grant) -> str:
        """The devices of a grant, as ``parse_cluster`` reads them; ranks are in the order of the devices."""
        hosts = self.cluster.nodes
        return cluster_text(
            [(hosts[node].device_type, count) for node, count in self.per_node(grant).items()]
        )

    def ranks(self, grant: Grant, addresses: Mapping[int, str]) -> dict[int, Ranks]:
        """Return the ranks to start on each node of a grant, by its number; the first node has rank 0.

        If devices are shared, the ranks name their devices on the node: a cluster manager does not know which jobs are
        partners.

        Parameters
        ----------
        addresses : of the nodes, by their numbers.
        """
        cluster, meeting, placed, first = (
            self.cluster_text(grant),
            JobDirectory.new_meeting(),
            dict[int, Ranks](),
            0,
        )
        per_node = self.per_node(grant)
        for number, (node, count) in enumerate(per_node.items()):
            own = grant.devices[first : first + count]
            numbers = (str(device - int(self.cluster.first_device[node])) for device in own)
            devices = ",".join(numbers) if self.shares else ""
            threads = self.threads(node)
            peers = [addresses[other] for other in per_node if addresses[other] != addresses[node]]
            placed[node] = Ranks(
                first,
                count,
                grant.num_devices,
                meeting,
                cluster,
                devices,
                threads,
                self.core_part,
                peer=peers[0] if peers else "",
                node=number,
                nodes=len(per_node),
                **vars(self.limits),
            )
            first += count
        return placed

    def threads(self, node: int) -> int:
        """Threads of every process on a node: what it has of the cores; 0 where these are not known."""
        if self.core_part < 1.0:
            return 1
        cores = self.cores(node)
        return max(1, int(cores / self.places(node))) if cores else 0

    def cores(self, node: int) -> float:
        """Processor cores of a node; 0 where these are not known."""
        return self.host(node).cpus

    def places(self, node: int) -> int:
        """Processes for which there is room on a node."""
        return self.host(node).num_devices * self.jobs_per_device(node)

    @cached_property
    def core_part(self) -> float:
        """Largest share of a core's time that a thread of a job takes.

        Devices of type ``local`` are places for processes. Where there are more of them than cores, each is a slower
        core, as fast beside busy neighbours as alone; else nothing that ran could be compared with what was predicted.
        """
        nodes = range(len(self.cluster.nodes))
        if not self._on_cores or not all(map(self.cores, nodes)):
            return 1.0
        fewest = min(self.cores(node) / self.places(node) for node in nodes)
        return 1.0 if fewest >= 1.0 else _HEADROOM * fewest

    @property
    def _on_cores(self) -> bool:
        return set(self.cluster.device_types) == {THIS_MACHINE}

    def jobs_per_device(self, node: int) -> int:
        """Jobs that may have a device together, and divide what goes with it."""
        return 1

    def host(self, node: int) -> Node:
        """Return the devices, processors and memory of a node."""
        return self.cluster.nodes[node]

    @property
    def is_one_machine(self) -> bool:
        """Whether the nodes are parts of this machine."""
        return False

    @property
    def crowding(self) -> Crowding:
        """Slowdown of jobs beside each other; places for processes have none, also if two jobs have one device."""
        return Crowding(only_places=self._on_cores)


def require_whole(name: str, grant: Grant, backend: str) -> None:
    """Check that a grant shares no device.

    Raises
    ------
    FleetError
        If it does.
    """
    if grant.share < 1.0:
        raise FleetError(
            f"job {name!r} is to have {grant.share:g} of each of its devices, but {backend} gives whole devices; "
            "take a policy that does not share them, or a backend that is made with shares=True"
        )
