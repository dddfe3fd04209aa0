"""The ranks of a job on one node: what starts them, and what each is told."""

from __future__ import annotations

import math
import os
import resource
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trainyard.fleet.run.backend import JobLimits
from trainyard.fleet.run.job_directory import JobDirectory
from trainyard.processes import die_with_parent

if TYPE_CHECKING:
    from trainyard.job.run.train import Launched

NODE_MODULE = "trainyard.fleet.run.node"


@dataclass(frozen=True)
class Ranks(JobLimits):
    """The ranks of a job on one node.

    Attributes
    ----------
    first, count : the ranks here.
    world : ranks of the job on all nodes.
    meeting : name of the file of the job's folder in which they meet, new for every start.
    cluster : the job's devices, as ``parse_cluster`` reads them.
    devices : numbers of the GPUs of this node that it may use, joined by commas; "" leaves that as it is.
    threads : of each process; 0 for an even share of the cores that it may use.
    core_part : of the time of a core that each thread takes at most.
    cores : that each process may use, joined by +, those of several processes by commas; "" leaves that as it is.
    peer : address of another node of the job; "" if all of it is on this machine.
    node, nodes : number of this node among those of the job, and how many these are.
    """

    first: int
    count: int
    world: int
    meeting: str
    cluster: str
    devices: str = ""
    threads: int = 0
    core_part: float = 1.0
    cores: str = ""
    peer: str = ""
    node: int = 0
    nodes: int = 1

    def command(self, directory: Path) -> list[str]:
        """Return the command that starts the node process."""
        options = [f"--{name}={value}" for name, value in vars(self).items() if value != ""]
        return [sys.executable, "-m", NODE_MODULE, str(directory), *options]

    def begin(self, rank: int, parent: int) -> None:
        """Called in a process when it starts: it uses the cores that it may, and does not outlive its parent."""
        die_with_parent(parent)
        # Linux divides processor time among sessions before it does among processes (sched_autogroup): a job of many
        # processes in one session would have no more of a shared core than a job of one.
        os.setsid()
        self.use_cores(rank)

    def use_cores(self, rank: int) -> None:
        """Use the cores that a process may."""
        if self.cores:
            os.sched_setaffinity(0, map(int, self.cores.split(",")[rank - self.first].split("+")))

    def use_all_cores(self) -> None:
        """Use the cores of all processes of the node."""
        if self.cores:
            os.sched_setaffinity(0, map(int, self.cores.replace(",", "+").split("+")))

    def limit_memory(self) -> None:
        """Have this process, and those that it starts, fail where they would take more memory than they may."""
        if self.max_rank_bytes < math.inf:
            most = int(self.max_rank_bytes)
            resource.setrlimit(resource.RLIMIT_DATA, (most, most))

    def environment(self, rank: int) -> dict[str, str]:
        """The variables of one process, as launchers set them."""
        own = {
            "RANK": str(rank),
            "WORLD_SIZE": str(self.world),
            "LOCAL_RANK": str(rank - self.first),
            "LOCAL_WORLD_SIZE": str(self.count),
        }
        return own | self.visible_devices()

    def visible_devices(self) -> dict[str, str]:
        """Return the variable with the devices of the node that the processes may use, if a manager does not set it."""
        return {"CUDA_VISIBLE_DEVICES": self.devices} if self.devices else {}

    def launched(self, directory: JobDirectory, rank: int) -> Launched:
        """Return how one process finds the others."""
        from trainyard.job.run.train import Launched

        store, peer = directory.path / self.meeting, self.peer if self.count < self.world else ""
        return Launched(rank, self.world, rank - self.first, self.count, store, peer)
