"""Requests, instances and step times of these tests."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from trainyard.serve.batch import Batch
from trainyard.serve.cache.block_cache import BlockCache
from trainyard.serve.cache.eviction import EvictionOrder, LeastRecentlyUsed
from trainyard.serve.check import BatchChecker
from trainyard.serve.handover import Handover
from trainyard.serve.instance import Instance
from trainyard.serve.policy import BatchPolicy
from trainyard.serve.request_state import RequestState
from trainyard.serve.requests.request import Request, TracedRequest
from trainyard.serve.results import Results
from trainyard.serve.simulate import simulate_requests
from trainyard.serve.step_time import LinearStepTime

DATA = Path(__file__).parents[3] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.exists(), reason=f"needs the files of {DATA}")

MOST_TOKENS = 4096
STEP = LinearStepTime(6e-3, 3e-5, 5e-5, 2e-8, 1.5e-9, 1e-6, 1e-4)


def request(
    number: int, arrival_s: float, prompt: int, output: int | tuple[int, ...], **more: Any
) -> TracedRequest:
    """One of which a policy sees that it takes up to 1000 tokens more."""
    return TracedRequest(Request(f"r{number}", arrival_s, prompt, 1000, **more), output)


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
        self.instance = _Watched(
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


class _Watched(Instance):
    def __init__(self, policy: BatchPolicy, cache: BlockCache, **more: Any) -> None:
        super().__init__(policy, cache, **more)
        num_host_blocks = cache.host.num_blocks if cache.host else 0
        self.checker = BatchChecker(
            cache.num_blocks,
            cache.block_tokens,
            num_host_blocks,
            more.get("max_loras"),
            more.get("num_layers"),
        )
        self.known: set[int] = set()
        self.batches: list[Batch] = []

    def arrive(self, state: RequestState) -> str:
        why = super().arrive(state)
        if not why:
            self._know(state)
        return why

    def _know(self, state: RequestState) -> None:
        self.known.add(state.number)
        self.checker.arrive(state.number, state.num_tokens, state.tokens, state.request.adapter)

    def hand_over(self, states: Sequence[RequestState], number: int) -> Handover:
        for each in states:
            self.checker.leave(each.number)
        return super().hand_over(states, number)

    def decide(self, now_s: float) -> Batch:
        batch = super().decide(now_s)
        for handover in self.moves:
            for each in handover.states:
                self.known |= {sample.number for sample in each.sequences}
                self.checker.take_over(
                    each.number, each.num_tokens, each.num_computed, each.tokens, each.request.adapter
                )
        for state in (*self.queues.waiting.values(), *self.queues.running.values()):
            if state.number not in self.known:  # samples that were split
                self._know(state)
        if not batch.launches or self.num_stages > 1:  # batches that are never repeated
            self._check(batch)
        return batch

    def repeated(self, batch: Batch, num: int) -> Batch:
        batch = super().repeated(batch, num)
        if self.num_stages == 1:
            self._check(batch)
        return batch

    def stop(self, batch: Batch) -> Batch:
        stopped = super().stop(batch)
        self._check(stopped)
        return stopped

    def _check(self, batch: Batch) -> None:
        self.checker.check(batch)
        self.batches.append(batch)
        for number, _ in batch.refused:
            self.checker.leave(number)

    def complete(self, batch: Batch, now_s: float, generated: Any) -> list[RequestState]:
        before = {number: state.num_generated for number, state in self.queues.running.items()}
        states = dict(self.queues.running)
        done = super().complete(batch, now_s, generated)
        for number, state in list(states.items()):
            for each in state.samples:
                if each.number not in self.known:
                    self.known.add(each.number)
                    self.checker.fork(number, each.number)
                    before[each.number], states[each.number] = 0, each
        for number, num in before.items():
            if states[number].num_generated > num:
                self.checker.generate(number, states[number].tokens[-1] if states[number].tokens else None)
        for state in done:
            self.checker.leave(state.number)
        return done
