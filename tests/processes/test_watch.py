"""Watch of a process: CPU seconds count, and the clock only where none are used."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from itertools import count

import pytest

from trainyard.processes import (
    ExceededLimit,
    ProcessLimits,
    ProcessWatch,
    own_cpu_seconds,
    process_state,
    tree_cpu_seconds,
    wait_for_all,
    watch_together,
    watchdog,
)


@dataclass
class _Process:
    """A clock, and the CPU seconds of a process."""

    now_s: float = 0.0
    cpu_s: float = 5.0

    def watch(self, cpu_s: float = 10.0, idle_s: float = 100.0) -> ProcessWatch:
        return ProcessWatch(
            1, ProcessLimits(cpu_s, idle_s=idle_s), lambda pid: self.cpu_s, lambda: self.now_s
        )

    def passes(self, seconds: float, cpu_s: float = 0.0) -> None:
        self.now_s, self.cpu_s = self.now_s + seconds, self.cpu_s + cpu_s


def test_slow_process_of_a_busy_machine_may_take_any_time() -> None:
    process = _Process()
    watch = process.watch()
    for _ in range(99):
        process.passes(25.0, cpu_s=0.1)
        assert watch.look() is None
    process.passes(25.0, cpu_s=0.2)
    found = watch.look()
    assert found is not None
    assert found.kind == "cpu"
    assert str(found) == "used 10.1 CPU seconds"


def test_progress_begins_anew() -> None:
    process = _Process()
    watch = process.watch()
    for _ in range(5):
        process.passes(1.0, cpu_s=9.0)
        assert watch.look() is None
        watch.begin()


def test_process_without_cpu_is_given_up_by_the_clock() -> None:
    process = _Process()
    watch = process.watch()
    for _ in range(4):
        process.passes(25.0, cpu_s=0.01)  # timers of a process that waits
        assert watch.look() is None
    process.passes(25.0)
    assert watch.look() == ExceededLimit("idle", 125.0)


@pytest.mark.parametrize("idle_s", [100.0, 5.0])
def test_watcher_that_was_stopped_has_not_seen_others_idle(idle_s: float) -> None:
    process = _Process()
    watch = process.watch(idle_s=idle_s)
    process.passes(86_400.0)
    assert watch.look() is None


def test_what_a_process_had_started_and_is_gone_is_no_sign_of_idleness() -> None:
    process = _Process()
    watch = process.watch()
    process.passes(25.0, cpu_s=8.0)
    assert watch.look() is None
    process.passes(25.0, cpu_s=-7.0)  # of one that nobody waited for
    assert watch.look() is None
    for _ in range(8):
        process.passes(25.0, cpu_s=0.1)
        assert watch.look() is None


def test_processes_that_work_together_have_the_limits_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """One waits for the other."""
    used_s = {1: 0.0, 2: 0.0}
    monkeypatch.setattr("trainyard.processes.watch.tree_cpu_seconds", used_s.__getitem__)
    watch = watch_together([1, 2], ProcessLimits(10.0))
    used_s[2] = 19.5
    assert watch.look() is None
    used_s[1] = 1.0
    assert watch.look() == ExceededLimit("cpu", 20.5)


def test_a_process_that_is_watched_is_ended_at_its_limit_and_not_later() -> None:
    ended, reads = list[ExceededLimit](), count()

    def cpu(pid: int) -> float:
        assert pid == 7
        return float(next(reads))

    with watchdog(7, ProcessLimits(cpu_s=2.5), ended.append, cpu):
        while not ended:
            time.sleep(0.001)
        num_reads = next(reads)
    assert ended == [ExceededLimit("cpu", 3.0)]
    with watchdog(7, ProcessLimits(cpu_s=2.5), ended.append, cpu):  # what is soon done is not measured
        pass
    assert next(reads) == num_reads + 1
    assert len(ended) == 1


def _processes(*codes: str) -> list[subprocess.Popen[bytes]]:
    return [subprocess.Popen([sys.executable, "-c", code]) for code in codes]


def test_processes_are_waited_for_until_all_end_one_fails_or_a_limit_is_passed() -> None:
    endless = "import time; time.sleep(10_000)"
    assert wait_for_all(_processes("", ""), lambda _: None) == ([0, 0], None)
    failing = _processes(endless, "import sys; sys.exit(3)")
    assert wait_for_all(failing, lambda _: None) == ([None, 3], None)
    assert failing[0].returncode == -signal.SIGKILL
    exceeded = ExceededLimit("idle", 1.0)
    late = _processes(endless, "")
    assert wait_for_all(late, lambda codes: exceeded if codes[1] == 0 else None) == ([None, 0], exceeded)


def test_cpu_seconds_of_a_process_with_its_children() -> None:
    before_s, own_s = tree_cpu_seconds(os.getpid()), own_cpu_seconds(os.getpid())
    child = os.fork()
    if child == 0:
        end_s = os.times().user + 0.2
        while os.times().user < end_s:
            pass
        os._exit(0)
    os.waitpid(child, 0)
    used_s, own_used_s = tree_cpu_seconds(os.getpid()) - before_s, own_cpu_seconds(os.getpid()) - own_s
    assert used_s >= 0.15
    assert used_s - own_used_s >= 0.15
    assert tree_cpu_seconds(2**22 + 1) == own_cpu_seconds(2**22 + 1) == 0.0


def test_process_that_cannot_be_seen_now_neither_works_nor_is_idle() -> None:
    """Such as where no file can be opened: what was used before does not count later."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        watch = ProcessWatch(os.getpid(), ProcessLimits(cpu_s=0.2, idle_s=1e6))
        seen = watch.look(), tree_cpu_seconds(os.getpid()), own_cpu_seconds(os.getpid())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert seen == (None, None, None)
    assert watch.look() is None
    end_s = time.process_time() + 0.3
    while time.process_time() < end_s:
        pass
    exceeded = watch.look()
    assert exceeded is not None
    assert exceeded.kind == "cpu"
    assert process_state(os.getpid()).cpu_s > 0.0
