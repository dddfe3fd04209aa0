"""Handlers of Ctrl-C and SIGTERM that hold in one process, and not in processes that it forks.

`multiprocessing` ends its workers by SIGTERM, so a worker that inherited a handler might go on, or remove folders of its
parent.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

__all__ = ["SIGNALS", "OwnHandlers"]

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class OwnHandlers:
    """Handle Ctrl-C and SIGTERM while the context is open; forked processes have the handlers from before.

    A signal that is ignored stays so. Python handles signals in its main thread only; in another thread nothing changes.

    Parameters
    ----------
    handle : called at a signal.
    replaces : returns whether a present handler is replaced; by default any is.
    signals : signals to handle.
    """

    def __init__(
        self,
        handle: Callable[[int, FrameType | None], None],
        replaces: Callable[[Any], bool] = lambda _: True,
        signals: Sequence[signal.Signals] = SIGNALS,
    ) -> None:
        self._handle, self._replaces, self._signals = handle, replaces, signals
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        _open.append(self)
        for number in self._signals:
            before = signal.getsignal(number)
            if before not in (None, signal.SIG_IGN) and self._replaces(before):
                self._before[number] = before
                signal.signal(number, self._handle)

    def __exit__(self, *_: object) -> None:
        self.restore()

    def restore(self) -> None:
        """Restore the handlers from before, ahead of the end of the context."""
        while self._before:
            signal.signal(*self._before.popitem())
        if self in _open:
            _open.remove(self)


_open: list[OwnHandlers] = []
_masks = threading.local()  # the signals that were blocked before a fork


def _before_fork() -> None:
    """Block signals, which Python forgets if they come while a forked process begins."""
    _masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def _after_fork() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _masks.before)


def _begin_fork() -> None:
    for handlers in _open[::-1]:
        handlers.restore()
    _after_fork()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_begin_fork)
