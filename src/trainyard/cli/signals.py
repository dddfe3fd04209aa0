"""Ctrl-C and SIGTERM at the command line: both are raised where the program is, so that it tidies up and ends.

Two places swallow what is raised there. Code that is imported may take it for a missing module, and go on without; so
the signal waits until nothing is imported. Python itself only prints what is raised in a destructor or a callback; so
the signal is sent once more.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

__all__ = ["Terminated", "raising_signals"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_AGAIN_S = 0.02


class Terminated(KeyboardInterrupt):
    """SIGTERM, raised as Ctrl-C raises KeyboardInterrupt."""


@contextmanager
def raising_signals() -> Iterator[None]:
    """Raise KeyboardInterrupt at Ctrl-C and `Terminated` at SIGTERM.

    A signal during an import waits for its end, and a second one does not. A signal that is ignored stays so. Python
    handles signals in its main thread only; in another thread nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    raiser = _Raiser()
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    hook, sys.unraisablehook = sys.unraisablehook, raiser.on_unraisable
    try:
        for number, handler in before.items():
            if handler not in (None, signal.SIG_IGN):
                signal.signal(number, raiser.on_signal)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        sys.unraisablehook = hook


class _Raiser:
    """Raises signals, and sends those again that come to nothing."""

    def __init__(self) -> None:
        self._waiting: threading.Timer | None = None
        self._print_unraisable = sys.unraisablehook

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Raise a signal, or let it wait for the end of an import."""
        is_second = self._waiting is not None and self._waiting.is_alive()
        if _is_importing(frame) and not is_second:
            self._send_later(number)
        else:
            raise Terminated if number == signal.SIGTERM else KeyboardInterrupt

    def on_unraisable(self, lost: Any) -> None:
        """Send a signal again that was raised where Python only prints it; print anything else."""
        if issubclass(lost.exc_type, KeyboardInterrupt):
            self._send_later(signal.SIGTERM if issubclass(lost.exc_type, Terminated) else signal.SIGINT)
        else:
            self._print_unraisable(lost)

    def _send_later(self, number: int) -> None:
        self._waiting = threading.Timer(_AGAIN_S, os.kill, (os.getpid(), number))
        self._waiting.daemon = True
        self._waiting.start()


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_name == "_find_and_load":  # of Python's own importlib
            return True
        frame = frame.f_back
    return False
