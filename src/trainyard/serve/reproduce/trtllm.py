"""TensorRT-LLM's server: how many requests run at once with either scheduler of the cache's capacity."""

from __future__ import annotations

from collections.abc import Iterator

from trainyard.published import PaperTable, Row
from trainyard.serve.cache.block_cache import BlockCache
from trainyard.serve.instance import Instance
from trainyard.serve.policies.trtllm import Capacity, TensorRTLLM
from trainyard.serve.reproduce.programs.vidur import STEP_TIME
from trainyard.serve.requests.request import Request, TracedRequest
from trainyard.serve.simulate import simulate_requests

_BLOCK, _NUM_BLOCKS, _PROMPT, _MAX_TOKENS = 32, 400, 256, 1000


def _at_once(capacity: Capacity) -> int:
    """Requests of the first step, where enough wait."""
    steps: list[int] = []
    instance = Instance(TensorRTLLM(2**20, capacity=capacity), BlockCache(_NUM_BLOCKS, _BLOCK))
    requests = [
        TracedRequest(Request(str(number), 0.0, _PROMPT, _MAX_TOKENS), 1) for number in range(_NUM_BLOCKS)
    ]
    simulate_requests(
        requests, [instance], STEP_TIME, seen=lambda _number, _at_s, batch: steps.append(len(batch.items))
    )
    return steps[0]


def _rows() -> Iterator[Row]:
    tokens: dict[Capacity, int] = {
        "guaranteed_no_evict": _PROMPT + _MAX_TOKENS,
        "max_utilization": _PROMPT,
    }
    for capacity, of_each in tokens.items():
        yield Row(capacity, _NUM_BLOCKS // -(-of_each // _BLOCK), _at_once(capacity))


TABLES = (
    PaperTable(
        "TensorRT-LLM, 2025, capacityScheduler.cpp: a request is admitted if the blocks of all its tokens are free, or "
        "those of its prompt",
        "requests in the first step",
        f"simulated, {_NUM_BLOCKS} blocks of {_BLOCK} tokens; prompts of {_PROMPT} tokens, {_MAX_TOKENS} of an answer",
        _rows,
        tolerance=1e-9,
    ),
)
