"""What daemons' jobs are compared with, and a database for their state."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemons import STEPS

from trainyard.fleet.run.local import LocalBackend
from trainyard.fleet.run.patience import Patience
from trainyard.fleet.run.run_fleet import run_fleet
from trainyard.fleet.scheduler import scheduler_of
from trainyard.fleet.workload.training import Training
from trainyard.fleet.workload.training_job import training_job
from trainyard.hardware.parse import parse_cluster


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """Losses of the training, alone."""
    cluster = parse_cluster("1x1xlocal")
    backend = LocalBackend(cluster, tmp_path_factory.mktemp("alone"))
    job = training_job("alone", 0.0, 1, Training("gpt-tiny", 4, STEPS))
    run_fleet([job], cluster, scheduler_of("fifo").policy, backend, patience=Patience(limit_s=300))
    return backend.directory("alone").losses()


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """Address of a PostgreSQL server of our own."""
    # Debian keeps the programs of the server to itself.
    path = os.pathsep.join([os.environ["PATH"], *map(str, Path("/usr/lib/postgresql").glob("*/bin"))])
    initdb, pg_ctl = (shutil.which(name, path=path) for name in ("initdb", "pg_ctl"))
    if initdb is None or pg_ctl is None:
        pytest.skip(
            "needs a PostgreSQL server: no initdb and pg_ctl on the PATH (apt-get install postgresql)"
        )
    # Not among pytest's folders, which every session of pytest closes to other users when it begins.
    folder = Path(tempfile.mkdtemp(prefix="postgres-"))
    data, become = folder / "data", []
    if os.geteuid() == 0:  # which PostgreSQL refuses to be
        become = ["runuser", "-u", "nobody", "--"]
        shutil.chown(folder, "nobody")
    quiet = {"cwd": folder, "check": True, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run([*become, initdb, "-D", data, "-U", "me", "-A", "trust", "--no-sync"], **quiet)
    server = [*become, pg_ctl, "-D", data, "-l", folder / "log"]
    subprocess.run([*server, "-w", "-o", f"-k {folder} -c listen_addresses=", "start"], **quiet)
    try:
        yield f"postgresql://me@/postgres?host={folder}"
    finally:
        subprocess.run([*server, "-m", "immediate", "stop"], **quiet)
        shutil.rmtree(folder)
