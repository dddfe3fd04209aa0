"""What level 1 is asked is asked once, and a process that answers has bounded time and memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from multiprocessing import Pipe
from typing import Any

import pytest

from trainyard.fleet.site import FleetError
from trainyard.fleet.workload import level1
from trainyard.fleet.workload.level1 import Level1Process, ask, ask_through


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


@pytest.mark.slow
def test_a_process_that_takes_too_long_is_ended_and_the_next_one_answers() -> None:
    limited = Level1Process(limit_s=0.0)
    with pytest.raises(FleetError, match="takes more than 0 s"):
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
            theirs.send((0.5, ""))

    monkeypatch.setattr(limited, "_start", start)
    if num_killed == 1:
        assert limited("skew", ("gpt-tiny",)) == 0.5
    else:
        with pytest.raises(FleetError, match="GiB of memory"):
            limited("skew", ("gpt-tiny",))


@pytest.mark.parametrize("error", [MemoryError, SystemError])
def test_a_process_without_memory_says_so(error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = Pipe()
    limits: list[Any] = []

    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(level1, "_here", fail)
    monkeypatch.setattr(level1.resource, "setrlimit", lambda *what: limits.append(what))
    ours.send(("skew", ("gpt-tiny",)))
    process = threading.Thread(target=level1._serve, args=(theirs, 123))
    process.start()
    assert ours.recv() == (None, level1._NO_MEMORY)
    ours.close()
    process.join()
    assert limits == [(level1.resource.RLIMIT_DATA, (123, 123))]
