"""Requests, instances and step times of these tests."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from shared_data import DATA

from trainyard.serve.batch import Batch
from trainyard.serve.cache.block_cache import BlockCache
from trainyard.serve.cache.eviction import EvictionOrder, LeastRecentlyUsed
from trainyard.serve.checked_instance import CheckedInstance
from trainyard.serve.policy import BatchPolicy
from trainyard.serve.request_state import RequestState
from trainyard.serve.requests.request import Request, TracedRequest
from trainyard.serve.results import Results
from trainyard.serve.simulate import simulate_requests
from trainyard.serve.step_time import LinearStepTime

MOST_TOKENS = 4096
STEP = LinearStepTime(6e-3, 3e-5, 5e-5, 2e-8, 1.5e-9, copied_block_s=1e-6, swapped_block_s=1e-4)


def request(
    number: int,
    arrival_s: float,
    prompt: int,
    output: int | tuple[int, ...],
    max_tokens: int = 1000,
    **more: Any,
) -> TracedRequest:
    """One of which a policy sees how many tokens more it takes at most."""
    return TracedRequest(Request(f"r{number}", arrival_s, prompt, max_tokens, **more), output)


def table(path: Path) -> list[dict[str, str]]:
    """Rows of a CSV file."""
    with path.open() as file:
        return list(csv.DictReader(file))


def vidur_requests(time_scale: float, num: int = 512) -> Iterator[TracedRequest]:
    """Those of Vidur's reference runs: prompts are cut where prompt and output are longer than 4096 tokens."""
    for number, row in enumerate(table(DATA / "serving/vidur/splitwise_conv.csv")[:num]):
        output = int(row["num_decode_tokens"])
        prompt = min(int(row["num_prefill_tokens"]), MOST_TOKENS - output)
        arrival_s = float(row["arrived_at"]) * time_scale
        yield TracedRequest(Request(str(number), arrival_s, prompt, MOST_TOKENS), output)


class Checked:
    """An instance of which every batch is checked, and what it computed."""

    def __init__(
        self,
        policy: BatchPolicy,
        num_blocks: int,
        block_tokens: int = 16,
        num_host_blocks: int = 0,
        eviction: EvictionOrder = LeastRecentlyUsed,
        **more: Any,
    ) -> None:
        self.instance = _Recording(
            policy, BlockCache(num_blocks, block_tokens, num_host_blocks, eviction), **more
        )
        self.batches = self.instance.batches

    def run(
        self,
        requests: Sequence[TracedRequest] | Iterator[TracedRequest],
        next_token: Callable[[RequestState], int] | None = None,
        **more: Any,
    ) -> Results:
        """Serve these; then nobody holds anything."""
        results = simulate_requests(requests, [self.instance], STEP, next_token=next_token, **more)
        assert self.instance.checker.num_held == 0
        for tier in (self.instance.cache, self.instance.cache.host):
            assert tier is None or tier.num_free == tier.num_blocks
        return results


class _Recording(CheckedInstance):
    def __init__(self, policy: BatchPolicy, cache: BlockCache, **more: Any) -> None:
        super().__init__(policy, cache, **more)
        self.batches: list[Batch] = []

    def check(self, batch: Batch) -> None:
        super().check(batch)
        self.batches.append(batch)
