"""Stops of a run before its last step: at Ctrl-C, at SIGTERM, or because a callback raised an exception.

The run ends after its present step, with a checkpoint. A second signal ends it at once, except under a launcher, which
may pass on a signal that its processes got already, and ends processes that take too long.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from trainyard.signals import SIGNALS, OwnHandlers

__all__ = ["EndedBySignal", "StopRequest", "handling_signals", "leave_signals_to_caller"]


class StopRequest:
    """A request to end a run after its present step, with a checkpoint.

    Parameters
    ----------
    is_launched : whether a launcher started this process.

    Attributes
    ----------
    can_save : whether the run trains, and has a folder of checkpoints; without that a stop has nothing to wait for.
    signal : that asked for the stop; None if no signal did.
    """

    def __init__(self, is_launched: bool = False) -> None:
        self.is_launched, self.can_save = is_launched, False
        self.signal: signal.Signals | None = None
        self._is_asked = False
        self._file: Path | None = None

    def tell_through(self, file: Path) -> None:
        """Let other processes know of the request by a file, which appears with it."""
        self._file = file
        self._write()

    def ask(self) -> None:
        """Request the stop."""
        self._is_asked = True
        self._write()

    def is_asked(self) -> bool:
        """Return whether the stop was requested."""
        return self._is_asked

    def _write(self) -> None:
        if self._is_asked and self._file is not None:
            with suppress(OSError):  # the run is over, and so is its folder
                self._file.touch()


class EndedBySignal(BaseException):
    """A signal ends the run at once; raised within `handling_signals` only."""


@contextmanager
def handling_signals(stop: StopRequest) -> Iterator[None]:
    """Turn the first SIGINT or SIGTERM into a request to stop, as long as there is something to save.

    Another signal ends the run at once, if no launcher sends it. When the run has ended, the signal does what it would
    have done without this.
    """

    def on_signal(number: int, frame: FrameType | None) -> None:
        is_first = stop.signal is None and not stop.is_asked()
        stop.signal = signal.Signals(number)
        if stop.can_save and (is_first or stop.is_launched):
            stop.ask()
            return
        handlers.restore()
        raise EndedBySignal

    handlers = OwnHandlers(on_signal)
    with suppress(EndedBySignal), handlers:
        yield
    if stop.signal is not None:
        signal.raise_signal(stop.signal)


def leave_signals_to_caller() -> None:
    """Let Ctrl-C and SIGTERM, which may reach all processes of a run, pass: the calling process decides.

    Processes that this one forks let Ctrl-C pass, too, so that workers which load data finish the step. SIGTERM ends
    them, because `multiprocessing` ends its workers so; a forked process that must not end calls this function itself.
    Programs that this process starts have the usual handlers.
    """
    signal.signal(signal.SIGINT, _pass)
    OwnHandlers(_pass, signals=(signal.SIGTERM,)).__enter__()
    for number in SIGNALS:
        signal.siginterrupt(number, False)


def _pass(number: int, frame: FrameType | None) -> None:
    """Do nothing."""
