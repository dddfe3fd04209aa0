"""Watch of a process: CPU seconds count, and the clock only where none are used."""

from __future__ import annotations

import os
from dataclasses import dataclass

from trainyard.processes import Overrun, ProcessLimits, ProcessWatch, cpu_seconds


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
    assert watch.used_cpu_s == 0.0


def test_process_without_cpu_is_given_up_by_the_clock() -> None:
    process = _Process()
    watch = process.watch()
    for _ in range(4):
        process.passes(25.0, cpu_s=0.01)  # timers of a process that waits
        assert watch.look() is None
    process.passes(25.0)
    assert watch.look() == Overrun("idle", 125.0)


def test_watcher_that_was_stopped_has_not_seen_others_idle() -> None:
    process = _Process()
    watch = process.watch()
    process.passes(86_400.0)
    assert watch.look() is None


def test_cpu_seconds_of_a_process_with_its_children() -> None:
    before_s = cpu_seconds(os.getpid())
    child = os.fork()
    if child == 0:
        end_s = os.times().user + 0.2
        while os.times().user < end_s:
            pass
        os._exit(0)
    os.waitpid(child, 0)
    assert cpu_seconds(os.getpid()) - before_s >= 0.15
    assert cpu_seconds(2**22 + 1) == 0.0
