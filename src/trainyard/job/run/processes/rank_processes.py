"""Rank processes: the ranks of a training on one machine, forked together, watched, and ended together."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

from trainyard.job.run.processes.heartbeat import Heartbeats, RankProblem
from trainyard.job.run.processes.logs import cut, print_to, rank_log
from trainyard.processes import process_state

__all__ = ["RankProcesses", "how_it_ended"]


class RankProcesses:
    """One process per rank, forked from this one: no thread may be left here then, which they would lack.

    Parameters
    ----------
    ranks : that run here.
    logs : folder of what each prints.
    heartbeat_s, stall_s : after which a rank counts as stopped, or as stuck; see `Heartbeats`.
    other_logs : files that are kept as short as those of the ranks.
    """

    def __init__(
        self,
        ranks: Sequence[int],
        logs: Path,
        heartbeat_s: float,
        stall_s: float,
        other_logs: Iterable[Path] = (),
    ) -> None:
        self._heartbeats = Heartbeats(ranks, heartbeat_s, stall_s)
        self._logs = {rank: rank_log(logs, rank) for rank in ranks}
        self._other_logs = tuple(other_logs)
        self._processes: dict[int, ForkProcess] = {}
        self._look_at_s = 0.0

    def start(self, rank: int, be_rank: Callable[..., None], *arguments: Any) -> None:
        """Fork the process of a rank, which calls a function; that calls `begin`, and `stepped` after every step."""
        process = get_context("fork").Process(target=be_rank, args=arguments)
        process.start()
        self._processes[rank] = process

    @property
    def look_s(self) -> float:
        """Seconds from one look to the next."""
        return self._heartbeats.look_s

    # In the process of a rank.

    def begin(self, rank: int) -> None:
        """Give heartbeats from now on, and print into the log of the rank."""
        print_to(self._logs[rank])
        self._heartbeats.alive(rank)

    def stepped(self, rank: int) -> None:
        """Note that the process has done a step."""
        self._heartbeats.stepped(rank)

    # In the process that has forked them.

    def wait(
        self, running: Iterable[int], connections: Iterable[Connection] = (), limit_s: float | None = None
    ) -> tuple[list[int], list[Connection]]:
        """Wait until one of some ranks has ended, one of some connections can be read, or it is time to look.

        Parameters
        ----------
        limit_s : to wait at most; by default until it is time to look.

        Returns
        -------
        The ranks that have ended, and the connections that can be read.
        """
        ends = {self._processes[rank].sentinel: rank for rank in running}
        found = wait([*connections, *ends], self.look_s if limit_s is None else limit_s)
        return [ends[s] for s in found if isinstance(s, int)], [s for s in found if isinstance(s, Connection)]

    def exit_codes(self) -> dict[int, int | None]:
        """Exit codes by rank: None for a running process, and the negative number of the signal for a killed one."""
        return {rank: process.exitcode for rank, process in self._processes.items()}

    def is_time_to_look(self) -> bool:
        """Return whether to ask `problem` now; then not again for a while."""
        if time.monotonic() <= self._look_at_s:
            return False
        self._look_at_s = time.monotonic() + self.look_s
        return True

    def problem(self, running: Iterable[int]) -> RankProblem | None:
        """A rank that is stopped or stuck; and logs that have grown too long are cut."""
        self._cut_logs()
        return self._heartbeats.problem(
            {rank: process_state(self._processes[rank].pid or 0) for rank in running}
        )

    def end(self, patience_s: float = 0.0) -> None:
        """End all at once, whatever they wait for.

        Parameters
        ----------
        patience_s : in which each may end by itself.
        """
        for process in self._processes.values():
            process.join(patience_s)
            process.kill()
        for process in self._processes.values():
            process.join()
            process.close()
        self._processes.clear()
        self._cut_logs()

    def _cut_logs(self) -> None:
        cut([*self._other_logs, *self._logs.values()])


def how_it_ended(exit_code: int) -> str:
    """Describe the end of a process by its exit code."""
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    names = {int(number): number.name for number in signal.Signals}
    return f"was ended by {names.get(-exit_code, f'signal {-exit_code}')}"
