"""The requests of an instance: waiting, running, and swapped out."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence

from trainyard.serve.request_state import RequestState

__all__ = ["Queues"]


class Queues:
    """Requests of an instance, or samples of them, by number.

    Attributes
    ----------
    waiting : requests without blocks, in the order of the queue.
    waiting_by_client : the waiting requests of each client that has any.
    running : requests with blocks on the device, in the order of admission; samples follow the first one of theirs.
    swapped : requests with blocks on the host, in the order in which they were swapped out.
    running_by_adapter : number of running requests of each adapter that has any; "" for none.
    num_to_fork : samples that running requests will be forked into, beside themselves.
    num_requests : waiting, running and swapped-out requests, with the samples that they are or will become.
    """

    def __init__(self) -> None:
        self.waiting: OrderedDict[int, RequestState] = OrderedDict()
        self.waiting_by_client: dict[str, OrderedDict[int, RequestState]] = {}
        self.running: dict[int, RequestState] = {}
        self.swapped: dict[int, RequestState] = {}
        self.running_by_adapter: Counter[str] = Counter()
        self.num_to_fork = 0
        self.num_requests = 0

    def arrive(self, state: RequestState) -> None:
        """Put a new request at the end of the queue."""
        self.num_requests += 1 + state.num_to_fork
        self._wait(state)

    def admit(self, state: RequestState) -> None:
        """Move a waiting request to the running ones."""
        self._wait_no_longer(state)
        self._run(state)

    def wait_again(self, state: RequestState, *, to_back: bool = False) -> None:
        """Move a running request to the front of the queue, or to its end."""
        self._run_no_longer(state)
        self._wait(state)
        if to_back:
            return
        for waiting in (self.waiting, self.waiting_by_client[state.request.client]):
            waiting.move_to_end(state.number, last=False)

    def swap_out(self, state: RequestState) -> None:
        """Move a running request to the swapped-out ones."""
        self._run_no_longer(state)
        self.swapped[state.number] = state

    def swap_in(self, state: RequestState) -> None:
        """Move a swapped-out request to the running ones."""
        del self.swapped[state.number]
        self._run(state)

    def move_in(self, state: RequestState) -> None:
        """Add a running request that comes from another instance."""
        self.num_requests += 1
        self._run(state)

    def fork(self, state: RequestState, others: Sequence[RequestState]) -> None:
        """Add the other samples of a running request right after it."""
        numbers = list(self.running)
        after = [self.running.pop(number) for number in numbers[numbers.index(state.number) + 1 :]]
        for each in (*others, *after):
            self.running[each.number] = each
        self.running_by_adapter[state.request.adapter] += len(others)
        self.num_to_fork -= len(others)

    def leave(self, state: RequestState) -> None:
        """Remove a request."""
        self.num_requests -= 1 + state.num_to_fork
        if state.number in self.waiting:
            self._wait_no_longer(state)
        elif state.number in self.running:
            self._run_no_longer(state)
        else:
            del self.swapped[state.number]

    def _wait(self, state: RequestState) -> None:
        self.waiting[state.number] = state
        self.waiting_by_client.setdefault(state.request.client, OrderedDict())[state.number] = state

    def _run(self, state: RequestState) -> None:
        self.running[state.number] = state
        self.running_by_adapter[state.request.adapter] += 1
        self.num_to_fork += state.num_to_fork

    def _run_no_longer(self, state: RequestState) -> None:
        del self.running[state.number]
        adapter = state.request.adapter
        self.running_by_adapter[adapter] -= 1
        if not self.running_by_adapter[adapter]:
            del self.running_by_adapter[adapter]
        self.num_to_fork -= state.num_to_fork

    def _wait_no_longer(self, state: RequestState) -> None:
        del self.waiting[state.number]
        of_client = self.waiting_by_client[state.request.client]
        del of_client[state.number]
        if not of_client:
            del self.waiting_by_client[state.request.client]
