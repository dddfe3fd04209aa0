"""Whatever a job's processes fork dies with them, also where it has cut all that binds it to them."""

from __future__ import annotations

import multiprocessing
import os
import select
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from backend_trials import nodes_of, wait_for

from trainyard.fleet.run.job_directory import JobDirectory
from trainyard.fleet.run.local import LocalBackend
from trainyard.processes import killing_descendants

MANY = 20


def fork_some(say: Connection) -> None:
    """Fork as many as a greedy job may: children, and orphans in sessions of their own, none of which ends by itself."""
    for number in range(MANY):
        if os.fork():
            continue
        if number % 2:
            os.setsid()
            if os.fork():
                os._exit(0)
        os.write(say.fileno(), f"{os.getpid()}\n".encode())
        while True:
            signal.pause()


def _started(be: Callable[[Connection], None]) -> tuple[Connection, BaseProcess]:
    """A process that has none of the threads of this one, whose locks a fork would never get, and a pipe from it."""
    context = multiprocessing.get_context("spawn")
    hear, say = context.Pipe(duplex=False)
    process = context.Process(target=be, args=(say,))
    process.start()
    say.close()
    return hear, process


@contextmanager
def forking(be: Callable[[Connection], None]) -> Iterator[list[int]]:
    """Within it, a process does something and forks; yields the numbers of those that it forked, once all run."""
    hear, process = _started(be)
    said, found = b"", list[int]()
    try:
        while said.count(b"\n") < MANY:
            part = os.read(hear.fileno(), 65536)
            assert part, "the process ended"
            said += part
        found += map(int, said.split())
        yield found
        # The pipe is closed when the last one of them is gone.
        assert select.select([hear], [], [], 60.0)[0], "some live on"
        assert os.read(hear.fileno(), 1) == b""
    finally:
        hear.close()
        process.kill()
        process.join()
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def be_a_node(say: Connection) -> None:
    with killing_descendants():
        fork_some(say)


def test_what_lives_below_a_node_ends_with_it() -> None:
    with forking(be_a_node):
        pass


def be_a_job(directory: JobDirectory, say: Connection) -> None:
    os.setsid()
    with directory.locked(0):
        fork_some(say)
        signal.pause()


@pytest.mark.parametrize("whom", ["the node", "nobody"])
def test_a_job_that_is_killed_takes_all_with_it_that_was_forked(whom: str, tmp_path: Path) -> None:
    """Also where its node was killed before, and all of them are orphans: they hold the job's lock."""
    backend, directory = LocalBackend(nodes_of(1), tmp_path), JobDirectory(tmp_path / "a")
    directory.path.mkdir()

    with forking(partial(be_a_job, directory)) as forked:
        (group,) = directory.groups()
        assert set(directory.holders()) >= {group, *forked}
        if whom == "the node":
            os.kill(group, signal.SIGKILL)
        assert not backend.is_over("a")
        backend.kill("a")
    wait_for(lambda: backend.is_over("a"))


def look(file: Path, say: Connection) -> None:
    with file.open():
        os.write(say.fileno(), b"looks")
        signal.pause()


def test_who_only_looks_at_a_job_is_not_taken_for_it(tmp_path: Path) -> None:
    directory = JobDirectory(tmp_path)
    with directory.locked(0), (tmp_path / "lock-0").open() as _:
        assert directory.holders() == []
    hear, process = _started(partial(look, tmp_path / "lock-0"))
    try:
        assert os.read(hear.fileno(), 5) == b"looks"
        assert directory.holders() == []
    finally:
        process.kill()
        process.join()
        hear.close()
