"""What only level 1 knows of trainings, asked here or of a process of its own, whose memory and time are bounded.

A daemon asks such a process: capturing and measuring whatever users submit must neither stop nor fill it.
"""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple

import psutil

from trainyard.fleet.errors import FleetError, one_line
from trainyard.fleet.workload.questions import QUESTIONS

__all__ = [
    "AnswerTimeoutError",
    "BusyError",
    "Level1Process",
    "Level1Processes",
    "UnansweredError",
    "ask",
    "ask_through",
    "only_quick_answers",
    "waiting_at_most",
]

_GIB = 1 << 30
_MEMORY_SHARE, _MOST_MEMORY_BYTES, _LEAST_MEMORY_BYTES = 0.25, 16 * _GIB, 2 * _GIB
_QUICK_S, _LIMIT_S = 15.0, 90.0
_END_S = 5.0
_KEPT = 65_536
# A question that found no answer so often is to blame itself, and is not asked again for a while.
_MOST_TRIES, _REST_S = 3, 600.0

Answers = Callable[[str, tuple[Any, ...]], Any]
"""From the name of a question in `QUESTIONS`, and what it is about."""


class UnansweredError(FleetError):
    """A question found no answer, and that may be due to this machine, as it is now: asked again it may find one."""


class BusyError(UnansweredError):
    """Others ask, or it takes long, and whoever asks does not wait for longer."""


class AnswerTimeoutError(UnansweredError):
    """There was no answer in time."""


class _Tries(NamedTuple):
    """How often a question found no answer, until when that counts, and why it found none."""

    number: int
    until_s: float
    why: str


def ask(question: str, *arguments: Any) -> Any:
    """The answer to a question; equal ones are asked once.

    Raises
    ------
    FleetError
        If it cannot be answered.
    UnansweredError
        If it may be the next time.
    """
    key, now_s = (question, arguments), time.monotonic()
    tries = _tries.get(key, _NO_TRIES)
    if tries.number >= _MOST_TRIES and now_s < tries.until_s:
        raise FleetError(tries.why)
    try:
        found, problem = _known(question, arguments)
    except BusyError:
        raise
    except UnansweredError as error:
        for old in [old for old, each in list(_tries.items()) if each.until_s < now_s]:
            _tries.pop(old, None)
        count = _tries.get(key, _NO_TRIES).number + 1
        why = f"{error}, {count} times; give it fewer rows, or a smaller model"
        _tries[key] = _Tries(count, time.monotonic() + _REST_S, why)
        if count >= _MOST_TRIES:
            raise FleetError(why) from error
        raise
    _tries.pop(key, None)
    if problem:
        raise FleetError(problem)
    return found


def ask_through(answers: Answers) -> None:
    """Have all questions answered so, from now on."""
    global _answers
    _answers = answers
    _known.cache_clear()
    _tries.clear()


@contextmanager
def waiting_at_most(limit_s: float) -> Iterator[None]:
    """Within it, this thread waits no longer until a question of another is answered; then there is a `BusyError`."""
    _waits.limit_s = limit_s
    try:
        yield
    finally:
        del _waits.limit_s


@contextmanager
def only_quick_answers() -> Iterator[None]:
    """Within it, this thread has only quick answers of `Level1Processes`; else there is a `BusyError`."""
    _waits.only_quick = True
    try:
        yield
    finally:
        del _waits.only_quick


@lru_cache(maxsize=_KEPT)
def _known(question: str, arguments: tuple[Any, ...]) -> tuple[Any, str]:
    try:
        return _answers(question, arguments), ""
    except UnansweredError:
        raise
    except FleetError as error:
        return None, str(error)


@lru_cache(maxsize=_KEPT)  # those who ask at the same moment wait for each other, and then ask the same
def _here(question: str, arguments: tuple[Any, ...]) -> Any:
    return QUESTIONS[question](*arguments)


_answers: Answers = _here
_NO_TRIES = _Tries(0, 0.0, "")
_tries: dict[tuple[str, tuple[Any, ...]], _Tries] = {}
_waits = threading.local()


class Level1Process:
    """Answers of a process that is started when one is needed, one at a time.

    Parameters
    ----------
    memory_bytes : that it may take; by default a quarter of the machine's, 2 to 16 GiB.
    limit_s : for one answer.
    """

    def __init__(self, memory_bytes: int = 0, limit_s: float = _LIMIT_S) -> None:
        share = int(psutil.virtual_memory().total * _MEMORY_SHARE)
        self.memory_bytes = memory_bytes or max(_LEAST_MEMORY_BYTES, min(_MOST_MEMORY_BYTES, share))
        self.limit_s = limit_s
        self._lock = threading.Lock()
        self._process: Any = None
        self._num_answers = 0  # of this process

    def __call__(self, question: str, arguments: tuple[Any, ...]) -> Any:
        """See `Answers`.

        Raises
        ------
        FleetError
            If it needs more memory, or the question has no answer.
        UnansweredError
            If the process was lost.
        AnswerTimeoutError
            If there was no answer in time.
        BusyError
            See `waiting_at_most`.
        """
        if not self._lock.acquire(timeout=getattr(_waits, "limit_s", -1.0)):
            raise BusyError("other jobs are being looked at, which takes a while; ask again in some seconds")
        try:
            is_first = not self._num_answers
            found, problem = self._answer(question, arguments)
            if problem == _NO_MEMORY and not is_first:
                self._end()  # answers before this one took a part of it
                found, problem = self._answer(question, arguments)
        finally:
            self._lock.release()
        if problem == _NO_MEMORY:
            raise FleetError(
                f"looking at it takes more than {self.memory_bytes / _GIB:.3g} GiB of memory; give it fewer rows, or "
                "a smaller model"
            )
        if problem:
            raise FleetError(problem)
        return found

    def _answer(self, question: str, arguments: tuple[Any, ...]) -> tuple[Any, str]:
        """The answer, and why there is none."""
        try:
            return self._asked(question, arguments)
        except (EOFError, OSError):
            # Somebody may have killed the process, which says nothing of what it looked at.
            self._end()
        try:
            return self._asked(question, arguments)
        except (EOFError, OSError) as error:
            self._end()
            raise UnansweredError(
                f"looking at it ended with {type(error).__name__}: this machine may be short of memory, of which it may "
                f"take {self.memory_bytes / _GIB:.3g} GiB"
            ) from error

    def _asked(self, question: str, arguments: tuple[Any, ...]) -> tuple[Any, str]:
        self._start()
        self._pipe.send((question, arguments))
        if not self._pipe.poll(self.limit_s):
            self._end()
            raise AnswerTimeoutError(f"looking at it took more than {self.limit_s:g} s")
        self._num_answers += 1
        found, problem, passes = self._pipe.recv()
        if passes:
            raise UnansweredError(f"looking at it failed: {problem}")
        return found, problem

    def _start(self) -> None:
        from trainyard.job.run.processes.fork_server import WorkerError, context, start

        if self._process is None or not self._process.is_alive():
            self._num_answers = 0
            self._pipe, theirs = context().Pipe()
            arguments = (theirs, self.memory_bytes)
            process = context().Process(target=_serve, args=arguments, daemon=True)
            try:
                with theirs:
                    start(process)
            except WorkerError as error:
                raise OSError(str(error)) from error
            self._process = process

    def _end(self) -> None:
        self._num_answers = 0
        if self._process is None:
            return
        self._pipe.close()
        self._process.kill()
        self._process.join(_END_S)  # where it is not known to have ended, it has all the same
        self._process = None


class Level1Processes:
    """Answers of two processes: what one does not answer soon is asked of the other, and so does not keep others waiting.

    Parameters
    ----------
    quick, slow : the two.
    """

    def __init__(self, quick: Answers | None = None, slow: Answers | None = None) -> None:
        self._quick, self._slow = quick or Level1Process(limit_s=_QUICK_S), slow or Level1Process()
        self._late = dict[tuple[str, tuple[Any, ...]], None]()

    def __call__(self, question: str, arguments: tuple[Any, ...]) -> Any:
        """See `Level1Process`."""
        key = question, arguments
        if key not in self._late:
            try:
                return self._quick(question, arguments)
            except AnswerTimeoutError:
                self._late[key] = None
                for old in list(self._late)[:-_KEPT]:
                    self._late.pop(old, None)
        if getattr(_waits, "only_quick", False):
            raise BusyError("looking at it takes a while; ask again in some seconds")
        return self._slow(question, arguments)


_NO_MEMORY = "no memory"


def _serve(pipe: Any, memory_bytes: int) -> None:
    """What the process does, until its pipe is closed."""
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    while True:
        try:
            question, arguments = pipe.recv()
        except EOFError:
            return
        try:
            answer = _here(question, arguments), "", False
        except (MemoryError, SystemError):  # the latter where Python itself finds no room
            answer = None, _NO_MEMORY, False
        except Exception as error:
            answer = None, one_line(error), isinstance(error, OSError)  # such as a disk that is full
        try:
            pipe.send(answer)
        except BrokenPipeError:  # whoever asked is gone
            return
