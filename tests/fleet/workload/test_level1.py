"""What level 1 is asked is asked once, and a process that answers has bounded time and memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from multiprocessing import Pipe
from typing import Any

import pytest

from trainyard.fleet.errors import FleetError
from trainyard.fleet.run.fault import is_infrastructure_fault
from trainyard.fleet.workload import level1
from trainyard.fleet.workload.level1 import (
    AnswerTimeoutError,
    BusyError,
    Level1Process,
    Level1Processes,
    UnansweredError,
    ask,
    ask_through,
    only_quick_answers,
    waiting_at_most,
)


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


def test_what_may_be_due_to_the_machine_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Any] = [UnansweredError("lost"), 7, *3 * [UnansweredError("late")], 8]

    def answer(question: str, about: tuple[Any, ...]) -> Any:
        found = answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    ask_through(answer)
    with pytest.raises(UnansweredError) as first:
        ask("what", 1)
    assert is_infrastructure_fault(first.value)
    assert ask("what", 1) == 7
    for _ in range(2):
        with pytest.raises(UnansweredError):
            ask("what", 2)
    for _ in range(2):
        with pytest.raises(FleetError, match="late, 3 times; give it fewer rows") as last:
            ask("what", 2)
        assert not is_infrastructure_fault(last.value)
    monkeypatch.setattr(level1.time, "monotonic", lambda: 1e12)
    assert ask("what", 2) == 8
    ask_through(level1._here)


def test_what_takes_long_keeps_nobody_waiting() -> None:
    """It is asked again elsewhere, and the next time there at once."""
    heard: list[Any] = []

    def quick(question: str, about: tuple[Any, ...]) -> Any:
        heard.append(("quick", question))
        if question == "long":
            raise AnswerTimeoutError("late")
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


def test_whoever_must_not_wait_for_long_is_told_so() -> None:
    process = Level1Process()
    with process._lock, waiting_at_most(0.0), pytest.raises(BusyError, match="ask again in some seconds"):
        process("what", ())


@pytest.mark.parametrize("before", [0, 1])
def test_a_process_that_answered_before_does_not_say_what_is_too_large(
    before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have no memory left for what answered others."""
    process, said = Level1Process(), [(None, level1._NO_MEMORY), (3, "")]
    process._num_answers = before
    monkeypatch.setattr(process, "_answer", lambda *_: said.pop(0))
    if before:
        assert process("what", ()) == 3
        assert not process._num_answers
    else:
        with pytest.raises(FleetError, match=r"takes more than .* GiB of memory"):
            process("what", ())


@pytest.mark.slow
def test_a_process_that_takes_too_long_is_ended_and_the_next_one_answers() -> None:
    limited = Level1Process(limit_s=0.0)
    with pytest.raises(UnansweredError, match="took more than 0 s"):
        limited("skew", ("gpt-tiny",))
    limited.limit_s = 300.0
    assert 0 < limited("skew", ("gpt-tiny",)) < 1
    with pytest.raises(FleetError, match="no-such-model"):
        limited("skew", ("no-such-model",))
    limited._end()


@pytest.mark.parametrize("num_killed", [1, 2])
def test_what_a_process_was_killed_at_is_asked_again(
    num_killed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited, started = Level1Process(limit_s=60.0), list[Any]()

    def start() -> None:
        limited._pipe, theirs = Pipe()
        started.append(theirs)
        if len(started) <= num_killed:
            theirs.close()
        else:
            theirs.send((0.5, "", False))

    monkeypatch.setattr(limited, "_start", start)
    if num_killed == 1:
        assert limited("skew", ("gpt-tiny",)) == 0.5
    else:
        with pytest.raises(UnansweredError, match="short of memory"):
            limited("skew", ("gpt-tiny",))


@pytest.mark.parametrize(
    ("error", "problem", "passes"),
    [
        (MemoryError, level1._NO_MEMORY, False),
        (SystemError, level1._NO_MEMORY, False),
        (OSError, "OSError", True),
        (ValueError, "ValueError", False),
    ],
)
def test_a_process_says_what_is_due_to_the_machine(
    error: type[Exception], problem: str, passes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = Pipe()
    limits: list[Any] = []

    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(level1, "_here", fail)
    monkeypatch.setattr(level1.resource, "setrlimit", lambda *what: limits.append(what))
    ours.send(("skew", ("gpt-tiny",)))
    process = threading.Thread(target=level1._serve, args=(theirs, 123))
    process.start()
    assert ours.recv() == (None, problem, passes)
    ours.close()
    process.join()
    assert limits == [(level1.resource.RLIMIT_DATA, (123, 123))]
