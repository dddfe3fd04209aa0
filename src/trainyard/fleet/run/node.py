"""The processes of a job on one node: started together, and when one dies the others do.

Every engine starts this on every node of a job, ``python -m trainyard.fleet.run.node HOME --first ...``: it is small,
imports nothing heavy, and holds the lock that keeps a job from running twice.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trainyard.fleet.run.home import JobHome
from trainyard.fleet.site import FleetError

_POLL_S = 0.02
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Ranks:
    """The ranks of a job on one node.

    Attributes
    ----------
    first, count : the ranks here.
    world : ranks of the job on all nodes.
    master : ``HOST:PORT`` where they meet: on the node of rank 0.
    cluster : the job's devices, as ``parse_cluster`` reads them.
    devices : numbers of the GPUs of this node that it may use, joined by commas; "" leaves that as it is.
    """

    first: int
    count: int
    world: int
    master: str
    cluster: str
    devices: str = ""

    def command(self, home: Path) -> list[str]:
        """What to start on the node."""
        options = [f"--{name}={value}" for name, value in vars(self).items() if value != ""]
        return [sys.executable, "-m", "trainyard.fleet.run.node", str(home), *options]

    def environment(self, rank: int) -> dict[str, str]:
        """The variables of one process."""
        host, _, port = self.master.rpartition(":")
        own = {
            "RANK": str(rank),
            "WORLD_SIZE": str(self.world),
            "LOCAL_RANK": str(rank - self.first),
            "LOCAL_WORLD_SIZE": str(self.count),
            "MASTER_ADDR": host,
            "MASTER_PORT": port,
        }
        return own | ({"CUDA_VISIBLE_DEVICES": self.devices} if self.devices else {})


def run(home: JobHome, ranks: Ranks) -> int:
    """Start the processes and wait for them; the first failure ends all.

    Raises
    ------
    FleetError
        If the job runs here already.
    """
    with home.locked(ranks.first) as lock:
        processes = [_start(home, ranks, ranks.first + i, lock) for i in range(ranks.count)]
        try:
            return _wait(home, ranks, processes)
        finally:
            for process in processes:
                process.kill()


def _start(home: JobHome, ranks: Ranks, rank: int, lock: int) -> subprocess.Popen[bytes]:
    parent = os.getpid()

    def die_with_parent() -> None:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    with (home.logs / f"rank-{rank}.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "trainyard.fleet.run.rank", str(home.path), ranks.cluster],
            env=os.environ | ranks.environment(rank),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(lock,),
            preexec_fn=die_with_parent,
        )


def _wait(home: JobHome, ranks: Ranks, processes: Sequence[subprocess.Popen[bytes]]) -> int:
    running = dict(enumerate(processes, ranks.first))
    while running:
        for rank, process in list(running.items()):
            code = process.poll()
            if code:
                how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
                home.fail(f"rank {rank} {how}")
                return 1
            if code == 0:
                del running[rank]
        time.sleep(_POLL_S)
    return 0


def main() -> int:
    """Run as a command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("home", type=Path)
    for name in ("first", "count", "world"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--master", required=True)
    parser.add_argument("--cluster", required=True)
    parser.add_argument("--devices", default="")
    given = vars(parser.parse_args())
    home = JobHome(given.pop("home"))
    try:
        return run(home, Ranks(**given))
    except FleetError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
