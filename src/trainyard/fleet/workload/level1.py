"""Questions about trainings that level 1 answers, here or in a process with limits of memory and CPU seconds.

A daemon asks such a process: capturing and measuring whatever users submit must neither stop nor fill it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import psutil

from trainyard.fleet.errors import FleetError, one_line
from trainyard.fleet.workload.questions import QUESTIONS
from trainyard.processes import (
    IDLE_S,
    CpuLimitError,
    LimitedProcess,
    LimitedProcessError,
    LimitError,
    ProcessLimits,
)

__all__ = [
    "BusyError",
    "Level1Process",
    "Level1Processes",
    "TooLongError",
    "UnansweredError",
    "ask",
    "ask_through",
    "only_quick_answers",
    "waiting_at_most",
]

_GIB = 1 << 30
_MEMORY_SHARE, _MOST_MEMORY_BYTES, _LEAST_MEMORY_BYTES = 0.25, 16 * _GIB, 2 * _GIB
# Measuring the ops of a step takes 15 s of every process that takes part, and some seconds to start it.
_QUICK_CPU_S, _CPU_S = 15.0, 300.0
_KEPT = 65_536

Answers = Callable[[str, tuple[Any, ...]], Any]
"""From the name of a question in `QUESTIONS`, and what it is about."""
Question = tuple[str, tuple[Any, ...]]


class TooLongError(FleetError):
    """An answer takes more CPU seconds than it may."""


class UnansweredError(FleetError):
    """A question found no answer, and that is due to this machine, as it is now: asked again it may find one."""


class BusyError(UnansweredError):
    """Others ask, or it takes long, and whoever asks does not wait for longer."""


def ask(question: str, *arguments: Any) -> Any:
    """The answer to a question; equal ones are asked once.

    Raises
    ------
    FleetError
        If it cannot be answered.
    UnansweredError
        If it may be the next time.
    """
    until_s = getattr(_waits, "until_s", None)
    key = question, arguments
    found, problem = _known(key) if until_s is None else _known_soon(key, until_s)
    if problem:
        raise FleetError(problem)
    return found


def ask_through(answers: Answers) -> None:
    """Have all questions answered so, from now on."""
    global _answers
    _answers = answers
    _known.cache_clear()


@contextmanager
def waiting_at_most(limit_s: float) -> Iterator[None]:
    """Within it, this thread waits no longer for all answers together; then there is a `BusyError`.

    What was asked last goes on being answered, so that whoever asks it again later gets the answer.
    """
    _waits.until_s = time.monotonic() + limit_s
    try:
        yield
    finally:
        del _waits.until_s


@contextmanager
def only_quick_answers() -> Iterator[None]:
    """Within it, this thread has only quick answers of `Level1Processes`; else there is a `BusyError`."""
    _waits.only_quick = True
    try:
        yield
    finally:
        del _waits.only_quick


@lru_cache(maxsize=_KEPT)
def _known(key: Question) -> tuple[Any, str]:
    """The answer, and why there is none."""
    try:
        return _answers(*key), ""
    except UnansweredError:
        raise
    except FleetError as error:
        return None, str(error)


def _known_soon(key: Question, until_s: float) -> tuple[Any, str]:
    """The same, by a thread that goes on when this one waits no longer; who asks the same meanwhile waits for it, too."""
    with _asking_lock:
        found = _asking.get(key)
        if found is None:
            found = _asking[key] = Future()
            threading.Thread(target=_find, args=(key, until_s, found), daemon=True, name="asking").start()
    try:
        return found.result(max(0.0, until_s - time.monotonic()))
    except TimeoutError as error:
        raise BusyError("looking at it takes a while; ask again in some seconds") from error


def _find(key: Question, until_s: float, found: Future[tuple[Any, str]]) -> None:
    _waits.until_s = until_s
    try:
        found.set_result(_known(key))
    except BaseException as error:
        found.set_exception(error)
    finally:
        with _asking_lock:
            del _asking[key]


@lru_cache(maxsize=_KEPT)  # those who ask at the same moment wait for each other, and then ask the same
def _here(question: str, arguments: tuple[Any, ...]) -> Any:
    return QUESTIONS[question](*arguments)


_answers: Answers = _here
_asking: dict[Question, Future[tuple[Any, str]]] = {}
_asking_lock = threading.Lock()
_waits = threading.local()


class Level1Process:
    """Answers of a process that is started when one is needed, one at a time.

    Parameters
    ----------
    cpu_s : CPU seconds that one answer may take.
    idle_s : how long the process may use no CPU meanwhile.
    memory_bytes : that it may take; by default a quarter of the machine's, 2 to 16 GiB.
    """

    def __init__(self, cpu_s: float = _CPU_S, idle_s: float = IDLE_S, memory_bytes: int = 0) -> None:
        share = int(psutil.virtual_memory().total * _MEMORY_SHARE)
        memory_bytes = memory_bytes or max(_LEAST_MEMORY_BYTES, min(_MOST_MEMORY_BYTES, share))
        limits = ProcessLimits(cpu_s, memory_bytes, idle_s)
        self._process = LimitedProcess(_answering, limits, context=_context)

    def __call__(self, question: str, arguments: tuple[Any, ...]) -> Any:
        """See `Answers`.

        Raises
        ------
        TooLongError
            If it needs more CPU seconds.
        FleetError
            If it needs more memory, or the question has no answer.
        UnansweredError
            If the process was lost.
        BusyError
            See `waiting_at_most`.
        """
        until_s = getattr(_waits, "until_s", None)
        wait_s = -1.0 if until_s is None else max(0.0, until_s - time.monotonic())
        try:
            found, problem, passes = self._process((question, arguments), wait_s)
        except TimeoutError as error:
            raise BusyError(
                "other jobs are being looked at, which takes a while; ask again in some seconds"
            ) from error
        except LimitedProcessError as error:
            raise _translated(error) from error
        if passes:
            raise UnansweredError(f"looking at it failed: {problem}; it is tried again")
        if problem:
            raise FleetError(problem)
        return found

    def close(self) -> None:
        """End the process."""
        self._process.close()


class Level1Processes:
    """Answers of two processes: what takes one too long is asked of the other, and so does not keep others waiting.

    Parameters
    ----------
    quick, slow : the two.
    idle_s : how long each may use no CPU, where they are not given.
    """

    def __init__(
        self, quick: Answers | None = None, slow: Answers | None = None, idle_s: float = IDLE_S
    ) -> None:
        self._quick, self._slow = (
            quick or Level1Process(_QUICK_CPU_S, idle_s),
            slow or Level1Process(idle_s=idle_s),
        )
        self._long = dict[Question, None]()

    def __call__(self, question: str, arguments: tuple[Any, ...]) -> Any:
        """See `Level1Process`."""
        key = question, arguments
        if key not in self._long:
            try:
                return self._quick(question, arguments)
            except TooLongError:
                self._long[key] = None
                for old in list(self._long)[:-_KEPT]:
                    self._long.pop(old, None)
        if getattr(_waits, "only_quick", False):
            raise BusyError("looking at it takes a while; ask again in some seconds")
        return self._slow(question, arguments)


def _translated(error: LimitedProcessError) -> FleetError:
    """The error of this level for work in a process that has no result."""
    told = f"looking at it {error}"
    if error.may_succeed_later:
        return UnansweredError(f"{told}: this machine is busy or short of memory; it is tried again")
    if isinstance(error, LimitError):
        kind = TooLongError if isinstance(error, CpuLimitError) else FleetError
        return kind(f"{told}; give it fewer rows, or a smaller model")
    return FleetError(told)


def _context() -> Any:
    from trainyard.job.run.processes.fork_server import context

    return context()


def _answering() -> Callable[[Question], tuple[Any, str, bool]]:
    """Return the function that answers questions: run in the process."""
    return _answer


def _answer(asked: Question) -> tuple[Any, str, bool]:
    """The answer, why there is none, and whether that may pass."""
    try:
        return _here(*asked), "", False
    except (MemoryError, SystemError):  # which the process itself tells
        raise
    except Exception as error:
        return None, one_line(error), isinstance(error, OSError)  # such as a disk that is full
