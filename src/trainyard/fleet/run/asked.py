"""What a cluster manager says, asked not more often than makes sense."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Generic, TypeVar

from trainyard.fleet.errors import FleetError
from trainyard.fleet.run.fault import BackendError

T = TypeVar("T")

# A controller that restarts is away for a while.
_PATIENCE_S = 300.0


class Asked(Generic[T]):
    """One answer of a cluster manager, which is as old as it may be, or older while the manager does not answer.

    Parameters
    ----------
    ask : asks the manager; raises `FleetError` if it does not answer.
    fresh_s : how old an answer may be.
    """

    def __init__(self, ask: Callable[[], T], fresh_s: float) -> None:
        self._ask, self._fresh_s = ask, fresh_s
        self._answer: T | None = None
        self._asked_s = self._answered_s = float("-inf")

    def forget(self) -> None:
        """Ask again next time."""
        self._asked_s = float("-inf")

    def answer(self) -> T:
        """What the manager says, or said.

        Raises
        ------
        BackendError
            If it has not answered for minutes, or never did.
        """
        now_s = time.monotonic()
        if self._answer is not None and now_s - self._asked_s < self._fresh_s:
            return self._answer
        try:
            self._answer = self._ask()
        except FleetError as error:
            if self._answer is None or now_s - self._answered_s > _PATIENCE_S:
                raise BackendError(str(error)) from error
        else:
            self._answered_s = now_s
        self._asked_s = now_s
        return self._answer
