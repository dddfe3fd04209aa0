"""The requests of an instance: those that wait, those that run, and those that are swapped out."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from trainyard.serve.request_state import RequestState

__all__ = ["Queues"]


class Queues:
    """Requests, or samples of them, by number.

    Attributes
    ----------
    waiting : those without blocks, in the order in which they wait.
    waiting_by_client : the same of each client of which some wait.
    running : those with blocks on the device, in the order in which they got them; samples after the first of theirs.
    swapped : those with blocks on the host, in the order in which they were swapped out.
    num_to_fork : samples that those that run will become beside themselves.
    """

    def __init__(self) -> None:
        self.waiting: OrderedDict[int, RequestState] = OrderedDict()
        self.waiting_by_client: dict[str, OrderedDict[int, RequestState]] = {}
        self.running: dict[int, RequestState] = {}
        self.swapped: dict[int, RequestState] = {}
        self.num_to_fork = 0

    @property
    def num_requests(self) -> int:
        """That wait, run or are swapped out."""
        return len(self.waiting) + len(self.running) + len(self.swapped)

    def arrive(self, state: RequestState) -> None:
        """A request comes and waits after all others."""
        self.waiting[state.number] = state
        self.waiting_by_client.setdefault(state.request.client, OrderedDict())[state.number] = state

    def admit(self, state: RequestState) -> None:
        """A request that waits runs."""
        self._wait_no_longer(state)
        self._run(state)

    def wait_again(self, state: RequestState) -> None:
        """A request that runs waits before all others."""
        self._run_no_longer(state)
        self.arrive(state)
        for waiting in (self.waiting, self.waiting_by_client[state.request.client]):
            waiting.move_to_end(state.number, last=False)

    def swap_out(self, state: RequestState) -> None:
        """A request that runs is swapped out."""
        self._run_no_longer(state)
        self.swapped[state.number] = state

    def swap_in(self, state: RequestState) -> None:
        """A request that is swapped out runs."""
        del self.swapped[state.number]
        self._run(state)

    def fork(self, state: RequestState, others: Sequence[RequestState]) -> None:
        """A request that runs has become several samples, which run after it, and before those that came after it."""
        numbers = list(self.running)
        after = [self.running.pop(number) for number in numbers[numbers.index(state.number) + 1 :]]
        for each in (*others, *after):
            self.running[each.number] = each
        self.num_to_fork -= len(others)

    def leave(self, state: RequestState) -> None:
        """A request goes, from wherever it is."""
        if state.number in self.waiting:
            self._wait_no_longer(state)
        else:
            del self.running[state.number]

    def _run(self, state: RequestState) -> None:
        self.running[state.number] = state
        self.num_to_fork += state.num_to_fork

    def _run_no_longer(self, state: RequestState) -> None:
        del self.running[state.number]
        self.num_to_fork -= state.num_to_fork

    def _wait_no_longer(self, state: RequestState) -> None:
        del self.waiting[state.number]
        of_client = self.waiting_by_client[state.request.client]
        del of_client[state.number]
        if not of_client:
            del self.waiting_by_client[state.request.client]
