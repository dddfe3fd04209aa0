"""What level 1 is asked is asked once, and a process that answers has bounded time and memory."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trainyard.fleet.errors import FleetError
from trainyard.fleet.run.fault import is_infrastructure_fault
from trainyard.fleet.workload import level1
from trainyard.fleet.workload.level1 import (
    BusyError,
    Level1Process,
    Level1Processes,
    TooLongError,
    UnansweredError,
    ask,
    ask_through,
    only_quick_answers,
    waiting_at_most,
)
from trainyard.processes import ProcessLimits


@pytest.fixture
def asked() -> Iterator[list[Any]]:
    """What is asked, of somebody who knows little."""
    heard: list[Any] = []

    def know(question: str, about: tuple[Any, ...]) -> Any:
        heard.append((question, *about))
        if question == "why":
            raise FleetError("nobody knows")
        return len(heard)

    ask_through(know)
    yield heard
    ask_through(level1._here)


def test_equal_questions_are_asked_once(asked: list[Any]) -> None:
    assert [ask("what", 1), ask("what", 2), ask("what", 1)] == [1, 2, 1]
    for _ in range(2):
        with pytest.raises(FleetError, match="nobody knows"):
            ask("why")
    assert asked == [("what", 1), ("what", 2), ("why",)]


def test_what_is_due_to_the_machine_is_asked_again_however_often() -> None:
    """What is due to the question is not."""
    answers: list[Any] = [*10 * [UnansweredError("lost")], 7, TooLongError("long")]

    def answer(question: str, about: tuple[Any, ...]) -> Any:
        found = answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    ask_through(answer)
    for _ in range(10):
        with pytest.raises(UnansweredError, match="lost") as lost:
            ask("what", 1)
        assert is_infrastructure_fault(lost.value)
    assert ask("what", 1) == 7
    for _ in range(2):
        with pytest.raises(FleetError, match="long") as long:
            ask("what", 2)
        assert not is_infrastructure_fault(long.value)
    assert not answers
    ask_through(level1._here)


def test_who_does_not_wait_gets_the_answer_later() -> None:
    heard, goes_on = list[Any](), threading.Event()

    def answer(question: str, about: tuple[Any, ...]) -> Any:
        heard.append(question)
        goes_on.wait()
        return 7

    ask_through(answer)
    for _ in range(2):  # the second one waits for the answer of the first
        with waiting_at_most(0.0), pytest.raises(BusyError, match="ask again in some seconds"):
            ask("what", 1)
    goes_on.set()
    with waiting_at_most(60.0):
        assert ask("what", 1) == 7
    assert heard == ["what"]
    assert not level1._asking
    ask_through(level1._here)


def test_what_takes_long_keeps_nobody_waiting() -> None:
    """It is asked again elsewhere, and the next time there at once."""
    heard: list[Any] = []

    def quick(question: str, about: tuple[Any, ...]) -> Any:
        heard.append(("quick", question))
        if question == "long":
            raise TooLongError("late")
        return 1

    def slow(question: str, about: tuple[Any, ...]) -> Any:
        heard.append(("slow", question))
        return 2

    answers = Level1Processes(quick, slow)
    with only_quick_answers():
        assert answers("short", ()) == 1
        with pytest.raises(BusyError, match="takes a while"):
            answers("long", ())
    assert answers("long", ()) == 2
    assert heard == [("quick", "short"), ("quick", "long"), ("slow", "long")]


def test_whoever_must_not_wait_for_others_is_told_so() -> None:
    process = Level1Process()
    with (
        process._process._lock,
        waiting_at_most(0.0),
        pytest.raises(BusyError, match="ask again in some seconds"),
    ):
        process("what", ())


@pytest.fixture
def limited() -> Iterator[Level1Process]:
    """An answer may take little CPU, and the process may not wait for long."""
    found = Level1Process(cpu_s=0.5, idle_s=1.0, memory_bytes=4 << 30)
    found._process._prepare, found._process._prepare_limits = answering, ProcessLimits(cpu_s=60.0)
    yield found
    found.close()


QUESTIONS = {
    "spin": lambda: next(n for n in iter(int, 1) if n),
    "sleep": lambda: time.sleep(10_000.0),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "fall": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "fill": lambda: bytearray(8 << 30),
    "full": lambda: Path("/dev/full").write_text("full"),
    "wrong": lambda: 1 / 0,
    "right": lambda: 7,
}


def answering() -> Any:
    """What the process does here, instead of loading PyTorch first."""
    level1.QUESTIONS = QUESTIONS
    return level1._answer


@pytest.mark.parametrize(
    ("question", "passes", "said"),
    [
        (
            "spin",
            False,
            r"^looking at it takes more than 0\.5 CPU seconds; give it fewer rows, or a smaller model$",
        ),
        (
            "fill",
            False,
            r"^looking at it takes more than 4 GiB of memory; give it fewer rows, or a smaller model$",
        ),
        ("fall", False, r"4 GiB of memory, or crashes its process \(SIGSEGV\); give it"),
        ("wrong", False, r"^ZeroDivisionError: division by zero$"),
        ("sleep", True, r"used no CPU for .* busy or short of memory; it is tried again$"),
        ("kill", True, r"status -9: .* busy or short of memory; it is tried again$"),
        ("full", True, r"No space left on device; it is tried again$"),
    ],
)
def test_whose_fault_it_is(question: str, passes: bool, said: str, limited: Level1Process) -> None:
    with pytest.raises(FleetError, match=said) as error:
        limited(question, ())
    assert is_infrastructure_fault(error.value) is passes
    assert limited("right", ()) == 7


def test_a_process_that_is_stopped_for_a_moment_answers(limited: Level1Process) -> None:
    """As one that gets no core for a while: that is not its fault."""
    limited._process.limits = ProcessLimits(cpu_s=0.5, idle_s=600.0)
    assert limited("right", ()) == 7
    pid = limited._process.pid
    os.kill(pid, signal.SIGSTOP)
    threading.Timer(2.0, os.kill, (pid, signal.SIGCONT)).start()
    assert limited("right", ()) == 7
    assert limited._process.pid == pid


@pytest.mark.slow
def test_a_process_answers_by_level_1() -> None:
    process = Level1Process()
    assert 0 < process("skew", ("gpt-tiny",)) < 1
    with pytest.raises(FleetError, match="no-such-model"):
        process("skew", ("no-such-model",))
    process.close()
