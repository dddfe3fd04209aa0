"""Real trainings on a disk of their own, which others fill."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from backend_trials import check_losses, nodes_of, trial_training, wait_for

from trainyard.fleet.policies.queues import srtf
from trainyard.fleet.run.drive import Driver
from trainyard.fleet.run.event import Event, Happening
from trainyard.fleet.run.local import LocalBackend
from trainyard.fleet.run.patience import Patience
from trainyard.fleet.workload.training_job import training_job

pytestmark = pytest.mark.slow
_LEFT_BYTES = 2**18


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small one."""
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m,mode=700", "none", tmp_path], check=False)
    if made.returncode:
        pytest.skip("needs to mount a file system")
    try:
        yield tmp_path
    finally:
        subprocess.run(["umount", "--lazy", tmp_path], check=True)


@contextmanager
def filled(disk: Path) -> Iterator[Callable[[], None]]:
    """Within it, a disk has room for what is small, such as a log, but for no checkpoint.

    Yields what fills it again: a checkpoint that was written in part when the disk was filled leaves its room.
    """
    with open(disk / "filler", "wb", buffering=0) as filler:

        def fill() -> None:
            has = os.statvfs(disk)
            filler.write(bytes(max(0, has.f_bavail * has.f_frsize - _LEFT_BYTES)))

        try:
            fill()
            yield fill
        finally:
            (disk / "filler").unlink()


def test_jobs_wait_for_room_on_the_disk_however_long(disk: Path, undisturbed: dict[int, float]) -> None:
    """They fail more often than any job may by itself, and are not given up; then they go on."""
    told: list[Event] = []
    backend = LocalBackend(nodes_of(2), disk / "jobs")
    driver = Driver(backend.cluster, srtf(), backend, tell=told.append, patience=Patience(retry_s=0.0))
    began_s = time.monotonic()

    def reaches(so: bool) -> bool:
        driver.step(time.monotonic() - began_s)
        return so

    def count(what: Happening) -> int:
        return sum(event.what is what for event in told)

    try:
        driver.submit(training_job("a", 0.0, 2, trial_training(72)), 0.0)
        wait_for(lambda: reaches(backend.directory("a").saved_steps() >= 4))
        with filled(disk) as fill:

            def fails_often() -> bool:
                fill()
                return reaches(count(Happening.FAILS) > Patience().max_failures + 1)

            wait_for(fails_often)
        wait_for(lambda: reaches(not driver.names))
    finally:
        backend.close()
    assert count(Happening.ENDS) == 1, told
    said = {event.why.partition(" to ")[0] for event in told if event.what is Happening.FAILS}
    assert said, told
    assert said <= {"no checkpoint could be written", "there is no room on the disk, not even"}
    check_losses(backend.directory("a"), undisturbed, 4)
