"""What only level 1 knows of trainings, asked here or of a process of its own, whose memory and time are bounded.

A daemon asks such a process: capturing and measuring whatever users submit must neither stop nor fill it.
"""

from __future__ import annotations

import resource
import threading
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import psutil

from trainyard.fleet.site import FleetError

__all__ = ["Level1Process", "ask", "ask_through"]

_GIB = 1 << 30
_MEMORY_SHARE, _MOST_MEMORY_BYTES, _LEAST_MEMORY_BYTES = 0.25, 16 * _GIB, 2 * _GIB
_LIMIT_S = 90.0
_KEPT = 65_536

Answers = Callable[[str, tuple[Any, ...]], Any]
"""From the name of a question in `trainyard.fleet.workload.questions.QUESTIONS`, and what it is about."""


def ask(question: str, *about: Any) -> Any:
    """The answer to a question; equal ones are asked once.

    Raises
    ------
    FleetError
        If it cannot be answered.
    """
    found, problem = _known(question, about)
    if problem:
        raise FleetError(problem)
    return found


def ask_through(answers: Answers) -> None:
    """Have all questions answered so, from now on."""
    global _answers
    _answers = answers
    _known.cache_clear()


@lru_cache(maxsize=_KEPT)
def _known(question: str, about: tuple[Any, ...]) -> tuple[Any, str]:
    try:
        return _answers(question, about), ""
    except FleetError as error:
        return None, str(error)


@lru_cache(maxsize=_KEPT)  # those who ask at the same moment wait for each other, and then ask the same
def _here(question: str, about: tuple[Any, ...]) -> Any:
    from trainyard.fleet.workload.questions import QUESTIONS

    return QUESTIONS[question](*about)


_answers: Answers = _here


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

    def __call__(self, question: str, about: tuple[Any, ...]) -> Any:
        """See `Answers`.

        Raises
        ------
        FleetError
            If it needs more memory or time, or the question has no answer.
        """
        with self._lock:
            try:
                found, problem = self._answer(question, about)
            except (EOFError, OSError):
                # Somebody may have killed the process, which says nothing of what it looked at.
                self._end()
                try:
                    found, problem = self._answer(question, about)
                except (EOFError, OSError) as error:
                    self._end()
                    raise FleetError(self._too_large()) from error
        if problem:
            raise FleetError(self._too_large() if problem == _NO_MEMORY else problem)
        return found

    def _answer(self, question: str, about: tuple[Any, ...]) -> tuple[Any, str]:
        """The answer, and why there is none."""
        self._start()
        self._pipe.send((question, about))
        if not self._pipe.poll(self.limit_s):
            self._end()
            raise FleetError(
                f"looking at it takes more than {self.limit_s:g} s; give it fewer rows, or a smaller model"
            )
        found: tuple[Any, str] = self._pipe.recv()
        return found

    def _too_large(self) -> str:
        return (
            f"looking at it takes more than {self.memory_bytes / _GIB:.3g} GiB of memory; give it fewer rows, or a "
            "smaller model"
        )

    def _start(self) -> None:
        from trainyard.job.run.processes import context

        if self._process is None or not self._process.is_alive():
            self._pipe, theirs = context().Pipe()
            arguments = (theirs, self.memory_bytes)
            self._process = context().Process(target=_serve, args=arguments, daemon=True)
            self._process.start()
            theirs.close()

    def _end(self) -> None:
        if self._process is None:
            return
        self._pipe.close()
        self._process.kill()
        self._process.join()
        self._process = None


_NO_MEMORY = "no memory"


def _serve(pipe: Any, memory_bytes: int) -> None:
    """What the process does, until its pipe is closed."""
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    while True:
        try:
            question, about = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((_here(question, about), ""))
        except (MemoryError, SystemError):  # the latter where Python itself finds no room
            pipe.send((None, _NO_MEMORY))
        except Exception as error:
            pipe.send((None, " ".join(str(error).split()) or type(error).__name__))
