"""Work in a process of its own, under limits of CPU and memory."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import psutil
import pytest
from limited_work import Task, failing, prepared, spinning

from trainyard.processes import (
    CpuLimitError,
    LimitedProcess,
    MemoryLimitError,
    ProcessLimits,
    ProcessLostError,
    WorkError,
    forking,
    limited,
)

_MIB = 1 << 20
_LIMITS = ProcessLimits(cpu_s=0.5, memory_bytes=512 * _MIB)
_PREPARING = ProcessLimits(cpu_s=60.0)


def _first_children(process: psutil.Process) -> list[psutil.Process]:
    while process.is_running():
        if found := process.children():
            return found
    return []


@pytest.fixture
def worker() -> Iterator[LimitedProcess[Task, int]]:
    found = LimitedProcess(prepared, _LIMITS, _PREPARING)
    yield found
    found.close()


@pytest.fixture
def patient_worker() -> Iterator[LimitedProcess[Task, int]]:
    """Bounded in memory, with CPU seconds enough for any machine to fill it."""
    found = LimitedProcess(prepared, ProcessLimits(cpu_s=60.0, memory_bytes=512 * _MIB))
    yield found
    found.close()


def test_work_is_done_in_one_other_process(worker: LimitedProcess[Task, int]) -> None:
    assert worker(("pid", 0)) == worker(("pid", 0)) == worker.pid != os.getpid()


def test_work_that_never_ends_is_ended_and_the_next_is_done(worker: LimitedProcess[Task, int]) -> None:
    first = worker(("pid", 0))
    with pytest.raises(CpuLimitError, match=r"more than 0\.5 CPU seconds"):
        worker(("spin", 0))
    assert worker(("pid", 0)) != first


def test_cpu_of_children_counts_and_they_end_with_the_process(worker: LimitedProcess[Task, int]) -> None:
    process = psutil.Process(worker(("pid", 0)))
    found = list[psutil.Process]()
    looking = threading.Thread(target=lambda: found.extend(_first_children(process)))
    looking.start()
    with pytest.raises(CpuLimitError, match=r"more than 0\.5 CPU seconds"):
        worker(("fork", 0))
    looking.join()
    assert len(found) == 1
    psutil.wait_procs(found, timeout=30.0)
    assert not found[0].is_running()


def test_cpu_seconds_count_by_piece_of_work(worker: LimitedProcess[Task, int]) -> None:
    end_s = time.process_time() + 0.3
    while time.process_time() < end_s:  # this process may work for as long as it likes
        worker(("pid", 0))
    assert worker(("pid", 0)) == worker.pid


def test_memory_is_bounded_and_the_process_goes_on(patient_worker: LimitedProcess[Task, int]) -> None:
    with pytest.raises(MemoryLimitError, match=r"more than 0\.5 GiB"):
        patient_worker(("keep", 1024 * _MIB))
    assert patient_worker(("keep", 100 * _MIB)) == patient_worker.pid


def test_memory_that_earlier_work_took_does_not_count(patient_worker: LimitedProcess[Task, int]) -> None:
    first = patient_worker(("keep", 300 * _MIB))
    second = patient_worker(("keep", 300 * _MIB))
    assert second != first


@pytest.mark.parametrize("number", [signal.SIGABRT, signal.SIGSEGV])
def test_work_over_which_the_process_falls_is_at_fault(
    worker: LimitedProcess[Task, int], number: int
) -> None:
    with pytest.raises(MemoryLimitError, match=signal.Signals(number).name):
        worker(("signal", number))


def test_work_whose_process_is_killed_is_tried_twice(worker: LimitedProcess[Task, int]) -> None:
    with pytest.raises(ProcessLostError, match="status -9"):
        worker(("signal", signal.SIGKILL))
    first = worker(("pid", 0))
    os.kill(first, signal.SIGKILL)
    assert worker(("pid", 0)) != first


def test_process_that_uses_no_cpu_is_given_up_by_the_clock() -> None:
    worker = LimitedProcess(prepared, ProcessLimits(cpu_s=1.0, idle_s=0.3), _PREPARING)
    try:
        with pytest.raises(ProcessLostError, match="used no CPU for"):
            worker(("sleep", 1000))
        assert worker(("pid", 0)) == worker.pid
    finally:
        worker.close()


def test_stopped_process_does_not_keep_who_sends_much_to_it() -> None:
    worker = LimitedProcess(prepared, ProcessLimits(cpu_s=1.0, idle_s=0.3), _PREPARING)
    try:
        os.kill(worker(("pid", 0)), signal.SIGSTOP)
        long_name = "n" * (4 * _MIB)  # more than a pipe holds; done by the process that is started for it
        assert worker((long_name, 0)) == worker.pid
    finally:
        worker.close()


def test_work_is_done_though_the_fork_server_is_killed(worker: LimitedProcess[Task, int]) -> None:
    first = psutil.Process(worker(("pid", 0)))
    fork_server = first.parent()
    assert fork_server is not None
    fork_server.kill()
    assert worker(("pid", 0))
    worker.close()
    first.wait(60)


@pytest.mark.parametrize("start", [OSError(24, "too many open files"), EOFError()])
def test_process_that_cannot_be_started_is_no_fault_of_the_work(
    start: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(process: object) -> None:
        raise start

    monkeypatch.setattr(limited, "start_forked", fails)
    process = LimitedProcess[Task, int](prepared, _LIMITS)
    num_before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ProcessLostError, match="gets no process: "):
        process(("pid", 0))
    assert len(os.listdir("/proc/self/fd")) == num_before


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("raise", "LookupError"),
        ("exit", "SystemExit"),
        ("raise without message", "_UnsayableError"),
        ("return a function", "local object"),
    ],
)
def test_errors_of_the_work_are_raised_here_and_the_process_goes_on(
    worker: LimitedProcess[Task, int], name: str, kind: str
) -> None:
    first = worker(("pid", 0))
    with pytest.raises(WorkError, match=kind):
        worker((name, 0))
    assert worker(("pid", 0)) == first


def test_message_of_an_error_is_cut(worker: LimitedProcess[Task, int]) -> None:
    with pytest.raises(WorkError, match=": nnn") as raised:
        worker(("raise much", _MIB))
    assert raised.value.message == "n" * 4000


def test_process_that_cannot_prepare_says_so_each_time() -> None:
    worker = LimitedProcess(failing, _LIMITS, _PREPARING)
    for _ in range(2):
        with pytest.raises(WorkError, match="OSError: no tokenizer"):
            worker.start()
        with pytest.raises(
            ProcessLostError, match="preparing one fails with OSError: no tokenizer"
        ):  # the work is not at fault
            worker(("pid", 0))


def test_process_ends_whose_fork_server_was_killed(worker: LimitedProcess[Task, int]) -> None:
    process = psutil.Process(worker(("pid", 0)))
    process.suspend()  # it does not see that its pipe is closed
    server = process.parent()
    assert server is not None
    server.kill()
    assert worker(("pid", 0)) != process.pid
    _, left = psutil.wait_procs([process], timeout=30.0)
    assert all(each.status() == psutil.STATUS_ZOMBIE for each in left)


def test_threads_wait_for_each_other_as_long_as_they_say(worker: LimitedProcess[Task, int]) -> None:
    pid = worker(("pid", 0))
    thread = threading.Thread(target=lambda: worker(("sleep", 1)))
    thread.start()
    while psutil.Process(pid).status() != psutil.STATUS_SLEEPING or not worker._lock.locked():
        time.sleep(0.01)
    with pytest.raises(TimeoutError, match=r"busy with work of other threads after 0\.01 s"):
        worker(("pid", 0), wait_s=0.01)
    thread.join()


def test_close_ends_the_process(worker: LimitedProcess[Task, int]) -> None:
    pid = worker(("pid", 0))
    worker.close()
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_limits_of_preparing_are_told_as_such() -> None:
    worker = LimitedProcess(spinning, _LIMITS, ProcessLimits(cpu_s=0.7))
    with pytest.raises(CpuLimitError, match=r"more than 0\.7 CPU seconds"):
        worker.start()


_USER = """
from limited_work import prepared
from trainyard.processes import LimitedProcess, ProcessLimits

if __name__ == "__main__":
    worker = LimitedProcess(prepared, ProcessLimits(cpu_s=1000.0))
    print(worker(("pid", 0)), flush=True)
    worker(("spin", 0))
"""


def test_process_that_works_ends_with_its_user(tmp_path: Path) -> None:
    """One that computes for ever reads no pipe, and would not notice that nobody waits for it."""
    (tmp_path / "user.py").write_text(_USER)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*sys.path, str(Path(__file__).parent)])}
    with subprocess.Popen(
        [sys.executable, str(tmp_path / "user.py")], stdout=subprocess.PIPE, text=True, env=environment
    ) as user:
        assert user.stdout is not None
        working = psutil.Process(int(user.stdout.readline()))
        before_s = working.cpu_times().user
        while working.cpu_times().user < before_s + 0.1:
            time.sleep(0.01)
        user.kill()
    _, alive = psutil.wait_procs([working], timeout=60.0)
    assert not alive


def test_answer_that_ends_in_the_middle_is_not_waited_for_forever() -> None:
    worker = LimitedProcess(prepared, ProcessLimits(cpu_s=5.0, idle_s=0.5), _PREPARING)
    with pytest.raises(ProcessLostError, match="used no CPU for"):
        worker(("die within an answer", 0))
    assert worker(("pid", 0)) == worker.pid
    worker.close()


def test_work_is_done_though_the_fork_server_is_stopped(
    worker: LimitedProcess[Task, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forking, "_LIMITS", ProcessLimits(cpu_s=60.0, idle_s=0.5))
    server = forking.fork_server()
    server.suspend()
    assert worker(("pid", 0)) == worker.pid
    assert not server.is_running() or server.status() == psutil.STATUS_ZOMBIE


def test_system_ends_a_process_that_is_not_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """At twice its limit, such as where the watcher is stopped."""
    monkeypatch.setattr("trainyard.processes.limited.watchdog", lambda *given: nullcontext())
    worker = LimitedProcess(prepared, _LIMITS, _PREPARING)
    with pytest.raises(CpuLimitError, match=r"more than 0\.5 CPU seconds"):
        worker(("spin", 0))
    worker.close()


def test_work_that_close_ends_is_not_begun_again(worker: LimitedProcess[Task, int]) -> None:
    pid, faults = worker(("pid", 0)), list[Exception]()

    def work() -> None:
        try:
            worker(("sleep", 1000))
        except ProcessLostError as error:
            faults.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    while psutil.Process(pid).status() != psutil.STATUS_SLEEPING or not worker._lock.locked():
        time.sleep(0.01)
    worker.close()
    thread.join()
    assert [str(each) for each in faults] == ["lost its process, which is closed"]
    assert worker.pid is None


def test_process_whose_fork_server_is_killed_in_the_middle_does_not_go_on_for_ever(
    worker: LimitedProcess[Task, int],
) -> None:
    pid = worker(("pid", 0))
    faults = list[Exception]()

    def spin() -> None:
        try:
            worker(("spin", 0))
        except CpuLimitError as error:
            faults.append(error)

    spinning = threading.Thread(target=spin)
    spins = psutil.Process(pid)
    begun_s = spins.cpu_times().user
    spinning.start()
    while spins.cpu_times().user - begun_s < 0.1:
        time.sleep(0.01)
    server = spins.parent()
    assert server is not None
    server.kill()
    psutil.wait_procs([spins], timeout=60.0)  # and is not left to itself
    spinning.join(60)
    assert len(faults) == 1


def _no_file_can_be_opened() -> AbstractContextManager[None]:
    @contextmanager
    def within() -> Iterator[None]:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    return within()


def test_process_is_killed_also_while_no_file_can_be_opened(worker: LimitedProcess[Task, int]) -> None:
    process = psutil.Process(worker(("pid", 0)))
    with _no_file_can_be_opened():
        worker.close()
    process.wait(60)
    assert not process.is_running()


def test_no_file_is_no_fault_of_the_work() -> None:
    process = LimitedProcess[Task, int](prepared, _LIMITS, _PREPARING)
    with _no_file_can_be_opened(), pytest.raises(ProcessLostError, match="gets no process: "):
        process(("pid", 0))
    assert process(("pid", 0)) == process.pid
    process.close()
