"""Usage of accounts and users, kept in the daemon's state over restarts."""

from __future__ import annotations

from trainyard.fleet.daemon.store import Store
from trainyard.fleet.jobs.job_table import JobTable

__all__ = ["StoredUsage"]

_NAME = "usage"


class StoredUsage:
    """Restores usage from the state once, and writes later usage to it.

    It does nothing for a policy that does not read usage.
    """

    def __init__(self, store: Store, table: JobTable) -> None:
        self._store, self._table, self._is_back = store, table, table.usage is None

    def restore(self, now_s: float) -> None:
        """Continue the usage of the last daemon. Call it before any job is restored.

        Raises
        ------
        StateError
            If the state cannot be read now; nothing is changed.
        """
        usage = self._table.usage
        if usage is None or self._is_back:
            return
        if (text := self._store.remembered(_NAME)) is not None:
            usage.restore(text, now_s)
        self._is_back = True

    def note(self, now_s: float) -> None:
        """Write the usage to the state.

        Raises
        ------
        StateError
            If the state cannot be written now.
        """
        if self._table.usage is not None and self._is_back:
            self._table.count_usage(now_s)
            self._store.remember(_NAME, self._table.usage.text())
