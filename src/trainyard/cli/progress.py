"""Show the progress of a verb: one line that is rewritten on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.text import Text

from trainyard.progress import Progress, no_progress, progress_text
from trainyard.reading import visible

__all__ = ["ProgressLog", "showing_progress"]

_LOOK_EVERY_S, _SAY_EVERY_S = 1.0, 10.0
_SAY_PART = 0.1  # of the time so far, so that a long run does not fill a log
_saying = threading.Lock()
# A process that is forked in the middle of a line would inherit the locks of stderr.
os.register_at_fork(before=_saying.acquire, after_in_parent=_saying.release, after_in_child=_saying.release)


class ProgressLog:
    """Print progress to a log: a line for each new stage, else every ten seconds, and less often in long runs.

    Parameters
    ----------
    stage : the first one.
    say : prints a line.
    clock : returns seconds.
    """

    def __init__(self, stage: str, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic):
        self._at, self._say, self._clock = (stage, ""), say, clock
        self._said: set[str] = set()
        self._began_s = self._said_s = clock()

    def report(self, stage: str, part: str) -> None:
        """Remember the stage that runs and its part. Nothing is printed."""
        self._at = stage, part

    def look(self) -> None:
        """Print a line if the stage is new or the last line is old enough."""
        (stage, part), now_s = self._at, self._clock()
        every_s = max(_SAY_EVERY_S, _SAY_PART * (now_s - self._began_s))
        if stage not in self._said or now_s >= self._said_s + every_s:
            self._said.add(stage)
            self._said_s = now_s
            self._say(f"[{now_s - self._began_s:.0f} s] {progress_text(stage, part)}")


class _Timed:
    """A progress line that a terminal rewrites: seconds so far, stage, and part of the stage."""

    def __init__(self, stage: str) -> None:
        self._text, self._began_s = stage, time.monotonic()

    def report(self, stage: str, part: str) -> None:
        self._text = progress_text(stage, part)

    def __rich__(self) -> Text:
        return Text(visible(f"[{time.monotonic() - self._began_s:.0f} s] {self._text}"))


@contextmanager
def showing_progress(console: Console, stage: str) -> Iterator[Progress]:
    """Show the stage that runs, until the end of the block; yield a function that takes the next stage or part.

    If stderr is no terminal, work of less than a second prints nothing. A quiet console shows nothing, nor does any with
    ``TRAINYARD_PROGRESS=off``.
    """
    if console.quiet or os.environ.get("TRAINYARD_PROGRESS") == "off":
        yield no_progress
    elif console.is_terminal:
        timed = _Timed(stage)
        with console.status(timed):
            yield timed.report
    else:
        with _looking(ProgressLog(stage, lambda line: _print(console, line))) as log:
            yield log.report


@contextmanager
def _looking(log: ProgressLog) -> Iterator[ProgressLog]:
    """Call ``look`` every second in a thread, as the work itself may take minutes without news."""
    is_over = threading.Event()

    def look() -> None:
        while not is_over.wait(_LOOK_EVERY_S):
            with _saying:
                log.look()

    thread = threading.Thread(target=look, name="progress", daemon=True)
    thread.start()
    try:
        yield log
    finally:
        is_over.set()
        thread.join()


def _print(console: Console, line: str) -> None:
    console.print(visible(line), markup=False, highlight=False, soft_wrap=True)
