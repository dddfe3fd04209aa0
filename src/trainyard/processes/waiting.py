"""Waiting for several processes that work together, under limits."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from subprocess import Popen

from trainyard.processes.watch import ExceededLimit

__all__ = ["wait_for_all"]

_POLL_S, _LOOK_S = 0.02, 1.0

Codes = Sequence[int | None]


def wait_for_all(
    processes: Sequence[Popen[bytes]], look: Callable[[Codes], ExceededLimit | None]
) -> tuple[Codes, ExceededLimit | None]:
    """Wait until all processes have ended; kill the others when one fails or a limit is passed.

    Parameters
    ----------
    look : returns the limit that is passed, if any; called about every second with the exit codes so far.

    Returns
    -------
    The exit codes, None for each process that was killed here; and the limit that was passed, if any.
    """
    looked_s, exceeded = time.monotonic(), None
    try:
        codes = [process.poll() for process in processes]
        while None in codes and not any(codes) and exceeded is None:
            time.sleep(_POLL_S)
            codes = [process.poll() for process in processes]
            if time.monotonic() > looked_s + _LOOK_S:
                looked_s, exceeded = time.monotonic(), look(codes)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return codes, exceeded
