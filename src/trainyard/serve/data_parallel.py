"""An instance whose attention is data parallel: ranks with requests and caches of their own, which share experts.

Each rank decides its own batches. Since all tokens of a step go through the same experts, wherever these are, all ranks
compute a step together, and the next one begins when the last of them is done. It is how mixtures with many experts are
served (DeepSeek-AI, "DeepSeek-V3 Technical Report", arXiv 2412.19437, section 3.4).
"""

from __future__ import annotations

from collections import ChainMap, defaultdict
from collections.abc import Callable, Sequence

from trainyard.serve.batch import Batch, Launch
from trainyard.serve.errors import ServeError
from trainyard.serve.instance import Generated, Instance
from trainyard.serve.policy import StoppingPolicy
from trainyard.serve.queues import Queues
from trainyard.serve.request_move import RequestMove
from trainyard.serve.request_state import RequestState

__all__ = ["DataParallelInstance"]


class DataParallelInstance(Instance):
    """Ranks that compute each step together; a request goes to the rank with the fewest.

    Parameters
    ----------
    ranks : each with a cache and a policy's state of its own, without a pipeline.

    Raises
    ------
    ServeError
        If one of them is a pipeline, or the policy stops steps.
    """

    def __init__(self, ranks: Sequence[Instance]) -> None:
        if isinstance(ranks[0].policy, StoppingPolicy):
            raise ServeError("the policy stops steps, which data-parallel ranks do not; use one rank")
        if any(rank.num_stages > 1 for rank in ranks):
            raise ServeError("data-parallel attention with pipeline stages; use one of the two")
        self.ranks = tuple(ranks)
        self.num_stages, self.num_layers = 1, ranks[0].num_layers
        self.policy, self.cache, self.max_model_len = ranks[0].policy, ranks[0].cache, ranks[0].max_model_len
        self.queues = _JoinedQueues([rank.queues for rank in ranks])
        self.refused, self.arriving, self.moves, self.num_expected = [], [], [], 0
        self._stopping = None

    def arrive(self, state: RequestState) -> str:
        """A request comes; returns why it is refused, or nothing."""
        state.rank = min(range(len(self.ranks)), key=lambda rank: self.ranks[rank].queues.num_requests)
        return self.ranks[state.rank].arrive(state)

    def decide(self, now_s: float) -> Batch:
        """What all ranks want: a launch of each that has something to compute."""
        batches = [rank.decide(now_s) for rank in self.ranks]
        self.refused = [each for rank in self.ranks for each in rank.refused]
        return Batch(
            tuple(launch for batch in batches for launch in batch.launches),
            tuple(op for batch in batches for op in batch.cache_ops),
            tuple(number for batch in batches for number in batch.preempted),
            tuple(each for batch in batches for each in batch.refused),
            tuple(op for batch in batches for op in batch.weight_ops),
            wait_reason=next((each.wait_reason for each in batches if each.wait_reason), None),
        )

    def move_out(self, states: Sequence[RequestState], number: int) -> RequestMove:
        """Requests stay where their blocks are.

        Raises
        ------
        ServeError
            Always.
        """
        raise ServeError(
            "data-parallel ranks do not hand requests over; use a router whose routes are of one replica"
        )

    def max_repeats(self, batch: Batch, count_most: Callable[[], int]) -> int:
        """Every step is decided by itself."""
        return 1

    def complete(self, batch: Batch, now_s: float, generated: Generated) -> list[RequestState]:
        """A step of all ranks ended; returns the requests that have all their tokens, which leave."""
        own: dict[int, list[Launch]] = defaultdict(list)
        for launch in batch.launches:
            own[self.queues.running[launch.items[0].request].rank].append(launch)
        return [
            state
            for number, launches in own.items()
            for state in self.ranks[number].complete(Batch(tuple(launches)), now_s, generated)
        ]


class _JoinedQueues(Queues):
    """The requests of all ranks."""

    def __init__(self, parts: Sequence[Queues]) -> None:
        self.waiting = ChainMap(*[part.waiting for part in parts])  # type: ignore[assignment]
        self.running = ChainMap(*[part.running for part in parts])  # type: ignore[assignment]
        self._parts = parts

    @property
    def num_requests(self) -> int:  # type: ignore[override]
        """Requests and samples of all ranks."""
        return sum(part.num_requests for part in self._parts)
