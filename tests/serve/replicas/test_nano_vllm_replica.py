"""nano-vllm's scheduler and block manager, step by step beside what the program put out."""

from __future__ import annotations

import hashlib

import pytest
from served import DATA, STEP, needs_data, table

from trainyard.serve.batch import Batch
from trainyard.serve.cache.block_cache import BlockCache
from trainyard.serve.instance import Instance
from trainyard.serve.replicas.nano_vllm import NanoVLLM
from trainyard.serve.requests.request import Request, TracedRequest
from trainyard.serve.simulate import simulate_requests


def _requests():
    for number in range(64):
        prompt = (
            *(10000 * (number % 4) + j for j in range(512)),
            *(100000 + 1000 * number + j for j in range(100 + number)),
        )
        yield TracedRequest(
            Request(f"r{number}", 0.0, len(prompt), 1000, prompt_ids=prompt), 64 + 8 * (number % 5)
        )


@needs_data
@pytest.mark.parametrize("row", [0, 1])
def test_every_step_is_as_in_the_program(row):
    said = table(DATA / "reference/serve/nano_vllm.csv")[row]
    policy = NanoVLLM(int(said["max_batched_tokens"]), int(said["max_sequences"]))
    instance = Instance(policy, BlockCache(int(said["blocks"]), int(said["block_tokens"])))
    trace, num_prefills, num_prompt_tokens = hashlib.md5(), 0, 0

    def seen(_: int, now_s: float, batch: Batch) -> None:
        nonlocal num_prefills, num_prompt_tokens
        is_prefill = not all(instance.queues.running[item.request].decodes for item in batch.items)
        num_prefills += is_prefill
        num_prompt_tokens += is_prefill * batch.num_tokens
        items = [(item.request, item.stop - item.start, item.start) for item in batch.items]
        trace.update(repr((is_prefill, items)).encode())

    results = simulate_requests(
        _requests(),
        [instance],
        STEP,
        seen=seen,
        next_token=lambda each: (31 * each.number + each.num_tokens) % 1000,
    )
    assert results.num_steps == int(said["steps"])
    assert num_prefills == int(said["prefill_steps"])
    assert num_prompt_tokens == int(said["prefill_tokens_computed"])
    assert results.num_preemptions == int(said["preemptions"])
    assert trace.hexdigest() == said["trace_md5"]
