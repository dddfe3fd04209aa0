"""The requests of an instance: those that wait and those that run."""

from __future__ import annotations

from collections import OrderedDict

from trainyard.serve.request_state import RequestState

__all__ = ["Queues"]


class Queues:
    """Requests by number.

    Attributes
    ----------
    waiting : those without blocks, in the order in which they wait.
    waiting_by_client : the same of each client of which some wait.
    running : those with blocks, in the order in which they got them.
    """

    def __init__(self) -> None:
        self.waiting: OrderedDict[int, RequestState] = OrderedDict()
        self.waiting_by_client: dict[str, OrderedDict[int, RequestState]] = {}
        self.running: dict[int, RequestState] = {}

    @property
    def num_requests(self) -> int:
        """That wait or run."""
        return len(self.waiting) + len(self.running)

    def arrive(self, state: RequestState) -> None:
        """A request comes and waits after all others."""
        self.waiting[state.number] = state
        self.waiting_by_client.setdefault(state.request.client, OrderedDict())[state.number] = state

    def admit(self, state: RequestState) -> None:
        """A request that waits runs."""
        self._wait_no_longer(state)
        self.running[state.number] = state

    def wait_again(self, state: RequestState) -> None:
        """A request that runs waits before all others."""
        del self.running[state.number]
        self.arrive(state)
        for waiting in (self.waiting, self.waiting_by_client[state.request.client]):
            waiting.move_to_end(state.number, last=False)

    def leave(self, state: RequestState) -> None:
        """A request goes, from wherever it is."""
        if state.number in self.waiting:
            self._wait_no_longer(state)
        else:
            del self.running[state.number]

    def _wait_no_longer(self, state: RequestState) -> None:
        del self.waiting[state.number]
        of_client = self.waiting_by_client[state.request.client]
        del of_client[state.number]
        if not of_client:
            del self.waiting_by_client[state.request.client]
