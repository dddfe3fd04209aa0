"""Prompts that are computed again after their request lost its blocks, with the tokens that it had generated."""

from __future__ import annotations

import pytest
from served import Checked, request

from trainyard.serve.batch import Batch
from trainyard.serve.cache.block_cache import BlockCache
from trainyard.serve.instance import Instance
from trainyard.serve.policies.sarathi import sarathi
from trainyard.serve.simulate import simulate_requests
from trainyard.serve.step_time import LinearStepTime

_CHUNKS = range(4, 16)


def _last_chunks(chunk_tokens: int) -> list[int]:
    """Tokens of the last chunks of what is computed again; times are compared on the way."""
    step_time = LinearStepTime(1.0, 10.0, 100.0)
    instance, lengths = Instance(sarathi(chunk_tokens, max_requests=2), BlockCache(5, 16)), list[int]()

    def seen(_: int, start_s: float, batch: Batch) -> None:
        running = instance.queues.running
        for item in batch.items:
            state, num = running[item.request], item.stop - item.start
            is_prefill = item.stop <= state.num_prefill_tokens
            assert state.decodes == (not is_prefill)
            assert step_time.seconds([item], running) == 1.0 + (10.0 * num if is_prefill else 100.0)
            if state.num_preemptions and item.stop == state.num_prefill_tokens:
                assert state.num_generated
                lengths.append(num)

    simulate_requests([request(n, 0.0, 30, 40) for n in range(2)], [instance], step_time, seen=seen)
    return lengths


def test_a_last_chunk_of_one_token_is_no_decode() -> None:
    """Its token had been generated before the request lost its blocks."""
    lengths = [num for chunk_tokens in _CHUNKS for num in _last_chunks(chunk_tokens)]
    assert 1 in lengths
    assert max(lengths) > 1


@pytest.mark.parametrize("chunk_tokens", _CHUNKS)
def test_repeated_steps_begin_after_the_last_chunk(chunk_tokens: int) -> None:
    repeated, single = (Checked(sarathi(chunk_tokens, max_requests=2), 5) for _ in range(2))
    given = [request(n, 0.0, 30, 40) for n in range(2)]
    assert repeated.run(given) == single.run(given, one_by_one=True)
