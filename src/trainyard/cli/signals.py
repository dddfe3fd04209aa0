"""Ctrl-C and SIGTERM as exceptions, so that a command ends its processes and removes its folders before it exits.

In three places an exception does not end the command. Imports: some modules take any exception for a missing module and
go on without it. PyTorch's calls into Python: some end the process with a trace of C++ frames. So a signal waits for the
end of both. Destructors and callbacks: Python prints the exception and goes on; so the signal is sent once more.
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

from trainyard.signals import OwnHandlers

__all__ = ["Terminated", "raising_signals"]

_USUAL_HANDLERS = (signal.SIG_DFL, signal.default_int_handler)
# Functions by which importlib runs every import, and PyTorch every op while a model is captured.
_UNSAFE = frozenset(
    ("_find_and_load", "__torch_function__", "__torch_dispatch__", "find_torch_dispatch_rule")
)
_AGAIN_S = 0.005


class Terminated(KeyboardInterrupt):
    """SIGTERM, raised as Ctrl-C raises KeyboardInterrupt."""


@contextmanager
def raising_signals() -> Iterator[None]:
    """Raise KeyboardInterrupt at Ctrl-C and `Terminated` at SIGTERM, where the usual handlers are in place.

    A signal waits for the end of an import or of an op; a second signal does not wait.
    """
    raiser, hook = _Raiser(), sys.unraisablehook
    try:
        sys.unraisablehook = raiser.on_unraisable
        with OwnHandlers(raiser.on_signal, replaces=_USUAL_HANDLERS.__contains__):
            yield
    finally:
        sys.unraisablehook = hook
        raiser.forget()


class _Raiser:
    """Raises signals, and sends a signal again that must wait or was lost."""

    def __init__(self) -> None:
        self._print_unraisable = sys.unraisablehook
        self._timer: threading.Timer | None = None
        self._is_sent_again = False

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Raise a signal, or let it wait for the end of an import or of an op."""
        is_second = self._timer is not None and not self._is_sent_again
        self.forget()
        if _is_unsafe(frame) and not is_second:
            self._send_later(number)
            return
        raise Terminated if number == signal.SIGTERM else KeyboardInterrupt

    def on_unraisable(self, lost: Any) -> None:
        """Send a signal again whose exception Python only prints; print any other exception."""
        if issubclass(lost.exc_type, KeyboardInterrupt):
            self._send_later(signal.SIGTERM if issubclass(lost.exc_type, Terminated) else signal.SIGINT)
        else:
            self._print_unraisable(lost)

    def forget(self) -> None:
        """Send no signal again."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._is_sent_again = None, False

    def _send_later(self, number: int) -> None:
        self._timer = threading.Timer(_AGAIN_S, self._send_again, (number,))
        self._timer.daemon = True
        self._timer.start()

    def _send_again(self, number: int) -> None:
        self._is_sent_again = True
        os.kill(os.getpid(), number)


def _is_unsafe(frame: FrameType | None) -> bool:
    """Return whether an exception that is raised in a frame may be lost, or abort the process."""
    while frame is not None:
        if frame.f_code.co_name in _UNSAFE:
            return True
        frame = frame.f_back
    return False
