"""Sarathi-Serve: nobody who decodes is stalled by prompts of others."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import pytest
from served import STEP, request

from trainyard.serve.cache.block_cache import BlockCache
from trainyard.serve.instance import Instance
from trainyard.serve.policies.sarathi import sarathi
from trainyard.serve.policies.vllm import PrefillFirst
from trainyard.serve.policy import BatchPolicy
from trainyard.serve.simulate_requests import simulate_requests


def _longest_gap_s(policy: BatchPolicy) -> float:
    """The longest time between two tokens of a request, where long prompts keep coming."""
    instance = Instance(policy, BlockCache(10_000, 16))
    starts_s, of_token = [], defaultdict(list)

    def seen(_: int, now_s: float, batch) -> None:
        starts_s.append(now_s)
        for item in batch.items:
            state = instance.queues.running[item.request]
            if item.stop == state.num_tokens:
                of_token[item.request].append(len(starts_s))

    requests = [request(number, 0.1 * number, 2000 if number % 4 else 100, 60) for number in range(40)]
    results = simulate_requests(requests, [instance], STEP, seen=seen, one_by_one=True)
    starts_s.append(
        results.end_s
    )  # token of a step is there when the next one starts, as steps follow at once
    return max(
        starts_s[after] - starts_s[before] for steps in of_token.values() for before, after in pairwise(steps)
    )


def test_tokens_come_steadily_while_prompts_are_computed():
    """Figure 1a: generation stalls under vLLM, not here. A step of 256 tokens is the longest that a token waits for."""
    longest_step_s = (
        STEP.step_s + 256 * STEP.prompt_token_s + 40 * (STEP.decode_s + 2100 * STEP.cached_token_s)
    )
    longest_step_s += STEP.attention_s * 256 * 2100
    steady_s = _longest_gap_s(sarathi(256))
    assert steady_s <= longest_step_s
    assert _longest_gap_s(PrefillFirst(max_batch_tokens=4096)) > 3 * steady_s


@pytest.mark.parametrize("chunk_tokens", [64, 300])
def test_all_that_decode_are_in_every_batch_and_chunks_fill_the_rest(chunk_tokens):
    """Algorithm 3: decodes first, then prompts that were begun, then new ones, within tau tokens."""
    instance = Instance(sarathi(chunk_tokens), BlockCache(10_000, 16))
    num_full = 0

    def seen(_: int, now_s: float, batch) -> None:
        nonlocal num_full
        states = instance.queues.running
        in_batch = {item.request for item in batch.items}
        assert in_batch >= {number for number, each in states.items() if each.decodes}
        assert batch.num_tokens <= chunk_tokens
        left = sum(each.num_tokens - each.num_computed - each.num_in_step for each in states.values())
        if left or any(each.arrival_s <= now_s for each in instance.queues.waiting.values()):
            assert batch.num_tokens == chunk_tokens
            num_full += 1

    simulate_requests(
        [request(n, 0.05 * n, 500 + n, 40) for n in range(30)], [instance], STEP, seen=seen, one_by_one=True
    )
    assert num_full > 20
