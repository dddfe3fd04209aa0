"""The processes of a job on one node: started together, and when one dies the others do.

Every backend starts this on every node of a job, ``python -m trainyard.fleet.run.node DIRECTORY --first ...``: it holds
the lock that keeps a job from running twice, and loads once what all processes need.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields
from functools import partial
from pathlib import Path

from trainyard.fleet.errors import FleetError, one_line
from trainyard.fleet.run.backend import JobLimits
from trainyard.fleet.run.command_processes import run_command
from trainyard.fleet.run.fault import is_disk_fault
from trainyard.fleet.run.job_directory import JobDirectory, RunsAlreadyError
from trainyard.fleet.run.ranks import Ranks
from trainyard.fleet.workload.command import Command
from trainyard.job.run.processes.heartbeat import Silence, beating
from trainyard.job.run.processes.logs import print_to
from trainyard.job.run.processes.rank_processes import RankProcesses, how_it_ended
from trainyard.private import OTHERS
from trainyard.processes import die_with_parent, killing_descendants

_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM)


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
    with _noting_faults(directory), directory.locked(ranks.first) as lock:
        if ticket is not None and not directory.admits(ticket):
            return 0
        here = directory.identity()
        if isinstance(command := directory.runnable(), Command):
            return run_command(directory, command, ranks, lock)
        # Loaded and captured once, and forked with all that: the processes hold the lock too, and start at once.
        from trainyard.fleet.run.rank import be_rank, prepared_work

        ranks.use_cores(ranks.first)
        ranks.limit_memory()
        beat = partial(directory.beat, ranks.first)
        # No thread may be left when processes are forked, which would lack it.
        with beating(beat, ranks.heartbeat_s):
            work, prepared = prepared_work(directory, ranks)
        own, node_log = range(ranks.first, ranks.first + ranks.count), directory.logs / "node.log"
        processes = RankProcesses(own, directory.logs, ranks.heartbeat_s, ranks.stall_s, [node_log])
        try:
            for rank in own:
                arguments = (directory, work, prepared, ranks, rank, os.getpid(), processes)
                processes.start(rank, be_rank, *arguments)
            with beating(beat, ranks.heartbeat_s):
                return _wait(directory, here, processes, ranks.heartbeat_s)
        finally:
            processes.end()
            if ranks.first == 0:
                (directory.path / ranks.meeting).unlink(missing_ok=True)


@contextmanager
def _noting_faults(directory: JobDirectory) -> Iterator[None]:
    """Within it, what fails is noted in the folder of a job, unless it is another one that runs already."""
    try:
        yield
    except RunsAlreadyError:
        raise
    except Exception as error:
        directory.fail(one_line(error), lacks=is_disk_fault(error))
        raise


def run_apart(directory: JobDirectory, ranks: Ranks, ticket: str) -> None:
    """The same, in a process that has been started for it: what stops the one that did does not stop this."""
    os.umask(OTHERS)
    os.setsid()
    with suppress(OSError):  # of a disk that is full
        print_to(directory.logs / "node.log")
    with killing_descendants():
        sys.exit(run(directory, ranks, ticket))


def _wait(
    directory: JobDirectory, here: tuple[int, int] | None, processes: RankProcesses, limit_s: float
) -> int:
    watcher = Silence[str](limit_s / 4)
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
            if directory.identity() != here:
                # A scheduler that looks there takes the job for gone and may have started it anew: write nothing.
                print(f"{directory.path} was deleted or replaced: the job ends here", file=sys.stderr)
                return 1
            if problem := processes.problem(running):
                directory.fail(str(problem), killed=problem.stopped)
                return 1
            if max(watcher.look(directory.watching()).values(), default=0.0) > limit_s:
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
    parser.add_argument("--node", type=int, default=0)
    parser.add_argument("--nodes", type=int, default=1)
    for limit in fields(JobLimits):
        parser.add_argument(f"--{limit.name}", type=float, default=limit.default)
    parser.add_argument("--parent", type=int, help="process that started this; without it this ends too")
    given = vars(parser.parse_args())
    if parent := given.pop("parent"):
        die_with_parent(parent)
    os.umask(OTHERS)
    try:
        with killing_descendants():
            return run(JobDirectory(given.pop("directory")), Ranks(**given))
    except FleetError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
