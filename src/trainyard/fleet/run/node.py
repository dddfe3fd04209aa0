"""The processes of a job on one node: started together, and when one dies the others do.

Every backend starts this on every node of a job, ``python -m trainyard.fleet.run.node DIRECTORY --first ...``: it holds
the lock that keeps a job from running twice, and loads once what all processes need.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import os
import resource
import signal
import sys
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from trainyard.fleet.errors import FleetError, one_line
from trainyard.fleet.run.job_directory import JobDirectory
from trainyard.fleet.run.limits import JobLimits
from trainyard.job.run.processes.heartbeat import beating
from trainyard.job.run.processes.logs import print_to
from trainyard.job.run.processes.rank_processes import RankProcesses, how_it_ended
from trainyard.private import OTHERS

if TYPE_CHECKING:
    from trainyard.job.run.train import Launched

NODE_MODULE = "trainyard.fleet.run.node"
_PR_SET_PDEATHSIG = 1
_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM)


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

    def command(self, directory: Path) -> list[str]:
        """What to start on the node."""
        options = [f"--{name}={value}" for name, value in vars(self).items() if value != ""]
        return [sys.executable, "-m", NODE_MODULE, str(directory), *options]

    def begin(self, rank: int, parent: int) -> None:
        """Called in a process when it starts: it uses the cores that it may, and does not outlive its parent."""
        _die_with(parent)
        # Linux divides processor time among sessions before it does among processes (sched_autogroup): a job of many
        # processes in one session would have no more of a shared core than a job of one.
        os.setsid()
        self.use_cores(rank)

    def use_cores(self, rank: int) -> None:
        """Use the cores that a process may."""
        if self.cores:
            os.sched_setaffinity(0, map(int, self.cores.split(",")[rank - self.first].split("+")))

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
        return own | ({"CUDA_VISIBLE_DEVICES": self.devices} if self.devices else {})

    def launched(self, directory: JobDirectory, rank: int) -> Launched:
        """How one process finds the others."""
        from trainyard.job.run.train import Launched

        store, peer = directory.path / self.meeting, self.peer if self.count < self.world else ""
        return Launched(rank, self.world, rank - self.first, self.count, store, peer)


def run(directory: JobDirectory, ranks: Ranks, ticket: str | None = None) -> int:
    """Start the processes and wait for them; the first failure ends all.

    Parameters
    ----------
    ticket : of the start, where no cluster manager knows of those that are under way; nothing is done with an old one.

    Raises
    ------
    FleetError
        If the job runs here already.
    """
    with directory.locked(ranks.first):
        if ticket is not None and not directory.admits(ticket):
            return 0
        # Loaded and captured once, and forked with all that: the processes hold the lock too, and start at once.
        from trainyard.fleet.run.rank import be_rank, prepared_work

        ranks.use_cores(ranks.first)
        ranks.limit_memory()
        beat = partial(directory.beat, ranks.first)
        try:
            # No thread may be left when processes are forked, which would lack it.
            with beating(beat, ranks.heartbeat_s):
                work, prepared = prepared_work(directory, ranks)
        except Exception as error:
            directory.fail(one_line(error))
            raise
        own, node_log = range(ranks.first, ranks.first + ranks.count), directory.logs / "node.log"
        processes = RankProcesses(own, directory.logs, ranks.heartbeat_s, ranks.stall_s, [node_log])
        try:
            for rank in own:
                arguments = (directory, work, prepared, ranks, rank, os.getpid(), processes)
                processes.start(rank, be_rank, *arguments)
            with beating(beat, ranks.heartbeat_s):
                return _wait(directory, processes)
        finally:
            processes.end()
            if ranks.first == 0:
                (directory.path / ranks.meeting).unlink(missing_ok=True)


def run_apart(directory: JobDirectory, ranks: Ranks, ticket: str) -> None:
    """The same, in a process that has been started for it: what stops the one that did does not stop this."""
    os.umask(OTHERS)
    os.setsid()
    print_to(directory.logs / "node.log")
    sys.exit(run(directory, ranks, ticket))


def _die_with(parent: int) -> None:
    """Be killed when the parent dies, and now if it has died already."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _wait(directory: JobDirectory, processes: RankProcesses) -> int:
    while True:
        codes = processes.exit_codes()
        if failed := {rank: code for rank, code in codes.items() if code}:
            # First those that were killed: others may have failed for it.
            rank = min(failed, key=failed.__getitem__)
            code = failed[rank]
            directory.fail(f"rank {rank} {how_it_ended(code)}", killed=-code in _FROM_OUTSIDE)
            return 1
        running = [rank for rank, code in codes.items() if code is None]
        if not running:
            return 0
        if processes.is_time_to_look():
            if problem := processes.problem(running):
                directory.fail(str(problem), killed=problem.stopped)
                return 1
            if directory.is_abandoned():
                directory.fail("the process that was to end it is gone", killed=True)
                return 1
        processes.wait(running)


def main() -> int:
    """Run as a command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    for name in ("first", "count", "world"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--meeting", required=True)
    parser.add_argument("--cluster", required=True)
    parser.add_argument("--devices", default="")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--core_part", type=float, default=1.0)
    parser.add_argument("--cores", default="")
    parser.add_argument("--peer", default="")
    for limit in fields(JobLimits):
        parser.add_argument(f"--{limit.name}", type=float, default=limit.default)
    parser.add_argument("--parent", type=int, help="process that started this; without it this ends too")
    given = vars(parser.parse_args())
    if parent := given.pop("parent"):
        _die_with(parent)
    os.umask(OTHERS)
    try:
        return run(JobDirectory(given.pop("directory")), Ranks(**given))
    except FleetError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
