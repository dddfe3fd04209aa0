"""Work that a process is given: by name, some of it at fault."""

from __future__ import annotations

import os
import signal
import struct
import time
from collections.abc import Callable
from contextlib import suppress

Task = tuple[str, int]


def prepared() -> Callable[[Task], int]:
    """Work by name; what was kept by a piece of work stays in its process."""
    kept = []

    def do(task: Task) -> int:
        name, number = task
        if name == "spin":
            while True:
                pass
        if name == "keep":
            kept.append(bytearray(number))
        if name == "raise":
            raise LookupError("not there")
        if name == "raise without message":
            raise _UnsayableError
        if name == "raise much":
            raise LookupError("n" * number)
        if name == "return a function":
            return lambda: 0  # type: ignore[return-value]
        if name == "die within an answer":
            _die_within_an_answer()
        if name == "exit":
            raise SystemExit(3)
        if name == "sleep":
            time.sleep(number)
        if name == "signal":
            os.kill(os.getpid(), number)
        if name == "fork" and os.fork() == 0:  # a child that works counts as well
            while True:
                pass
        if name == "fork":
            time.sleep(1000)
        return os.getpid()

    return do


def _die_within_an_answer() -> None:
    """Leave a child that keeps the pipe open, and end after the first bytes of an answer."""
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)
    for fd in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{fd}").startswith("socket:"):
                os.write(fd, struct.pack("!i", 1000) + b"the first bytes")
    os.kill(os.getpid(), signal.SIGKILL)


class _UnsayableError(Exception):
    def __str__(self) -> str:
        raise ValueError


def failing() -> Callable[[Task], int]:
    raise OSError("no tokenizer")


def spinning() -> Callable[[Task], int]:
    while True:
        pass
