"""The engine of this machine: a device is a place for one process, a job as many processes as it has devices."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path

from trainyard.fleet.run.home import JobHome
from trainyard.fleet.run.homes import HomeEngine
from trainyard.fleet.run.node import Ranks
from trainyard.fleet.site import Site
from trainyard.fleet.workload.job import Grant, Job

__all__ = ["LocalEngine"]


class LocalEngine(HomeEngine):
    """Trains jobs in processes of this machine; they go on when the engine dies, and another one may adopt them."""

    def __init__(self, site: Site, folder: Path, patience_s: float = 120.0) -> None:
        super().__init__(site, folder, patience_s)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def launch(self, name: str, home: JobHome, grant: Grant) -> None:
        count = grant.num_devices
        visible = ",".join(map(str, grant.devices))
        ranks = Ranks(0, count, count, f"127.0.0.1:{_free_port()}", self.cluster_text(grant), visible)
        with (home.logs / "node.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                ranks.command(home.path),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # what stops the engine does not stop its jobs
            )

    def adopt(self, job: Job, grant: Grant) -> bool:
        self._known.add(job.name)
        return bool(self.home(job.name).groups())

    def is_over(self, name: str) -> bool:
        process = self._processes.get(name)
        return (process is None or process.poll() is not None) and not self.home(name).groups()

    def kill(self, name: str) -> None:
        process = self._processes.get(name)
        groups = set(self.home(name).groups())
        if process is not None and process.poll() is None:
            groups.add(process.pid)
        for group in groups:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
