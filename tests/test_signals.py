"""Handlers of signals that hold in one process: forked processes and the code around have those from before."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

import pytest

from trainyard.signals import SIGNALS, OwnHandlers


def _ignore(number: int, frame: FrameType | None) -> None:
    pass


def _usual(number: int, frame: FrameType | None) -> None:
    pass


@pytest.fixture(autouse=True)
def _handlers_from_before() -> object:
    before = {number: signal.signal(number, _usual) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def _present() -> list[object]:
    return [signal.getsignal(number) for number in SIGNALS]


def _in_fork(question: Callable[[], bool]) -> bool:
    pid = os.fork()
    if not pid:
        os._exit(question())
    return bool(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def test_forked_processes_and_code_around_have_the_handlers_from_before() -> None:
    with OwnHandlers(_ignore), OwnHandlers(lambda *_: None):
        assert _usual not in _present()
        assert _in_fork(lambda: _present() == [_usual, _usual])
    assert _present() == [_usual, _usual]


def test_restored_handlers_stay_so() -> None:
    handlers = OwnHandlers(_ignore)
    with handlers:
        handlers.restore()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    assert _present() == [_usual, signal.SIG_IGN]


def test_signals_that_are_ignored_stay_so() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with OwnHandlers(_ignore):
        assert _present() == [signal.SIG_IGN, _ignore]
    with OwnHandlers(_ignore, replaces=lambda handler: handler is not _usual):
        assert _present() == [signal.SIG_IGN, _usual]


def test_in_another_thread_nothing_changes() -> None:
    seen: list[object] = []

    def look() -> None:
        with OwnHandlers(_ignore):
            seen.extend(_present())

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [_usual, _usual]
