"""SGLang's server: the longest prompt that its estimate lets in beside one running request."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from trainyard.published import PaperTable, Row
from trainyard.serve.cache.block_cache import BlockCache
from trainyard.serve.instance import Instance
from trainyard.serve.policies.sglang import SGLang
from trainyard.serve.reproduce.programs.vidur import STEP_TIME
from trainyard.serve.requests.request import Request, TracedRequest
from trainyard.serve.simulate import simulate_requests

_PROMPT = 10
_CASES = ((40, 10), (100, 40), (300, 120))
"""Blocks of one token, and tokens that each of both requests may generate."""


def _is_admitted(num_blocks: int, max_tokens: int, prompt: int) -> bool:
    """Whether the second of two prompts is computed in the second step."""
    steps: list[tuple[int, ...]] = []
    instance = Instance(SGLang(), BlockCache(num_blocks, 1))
    requests = [
        TracedRequest(Request(str(number), 0.0, tokens, max_tokens), 3)
        for number, tokens in enumerate((_PROMPT, prompt))
    ]
    simulate_requests(
        requests,
        [instance],
        STEP_TIME,
        seen=lambda _number, _at_s, batch: steps.append(tuple(item.request for item in batch.items)),
    )
    return steps[1] == (1,)


def _rows() -> Iterator[Row]:
    for num_blocks, max_tokens in _CASES:
        # It needs its prompt, all that it may generate and a page, less than what is free and not estimated to be needed.
        room = num_blocks - _PROMPT - 0.7 * (max_tokens - 1)
        theirs = ceil(room) - 1 - max_tokens - 1
        ours = max(
            prompt
            for prompt in range(1, num_blocks - max_tokens)
            if _is_admitted(num_blocks, max_tokens, prompt)
        )
        yield Row(f"{num_blocks} blocks, {max_tokens} tokens of an answer", theirs, ours)


TABLES = (
    PaperTable(
        "SGLang 0.5, 2025, schedule_policy.py: a prompt is admitted if it, what it may generate and a page are less than "
        "the free tokens without 0.7 of what running requests may still generate",
        "longest prompt that is admitted, tokens",
        f"simulated, beside one request with a prompt of {_PROMPT} tokens that has generated one, in blocks of one token",
        _rows,
        tolerance=1e-9,
    ),
)
