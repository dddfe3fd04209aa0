"""Sarathi-Serve: how many steps a prompt takes beside decodes, and what Vidur's scheduler of this name puts out."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from trainyard.published import PaperTable, Row
from trainyard.serve.batch import Batch
from trainyard.serve.cache.block_cache import BlockCache
from trainyard.serve.instance import Instance
from trainyard.serve.policies.sarathi import sarathi
from trainyard.serve.replicas.vidur import VidurSarathi
from trainyard.serve.reproduce.programs.vidur import SARATHI_S, STEP_TIME, run_table
from trainyard.serve.requests.request import Request, TracedRequest
from trainyard.serve.simulate_requests import simulate_requests

_PROMPT_TOKENS = 4096
_NUM_DECODES = 31


def _num_steps(chunk_tokens: int) -> int:
    """In which a prompt is computed that comes while others decode."""
    begun = [TracedRequest(Request(str(n), 0.0, 1, 1000), 1000) for n in range(_NUM_DECODES)]
    late = TracedRequest(Request("late", 1.0, _PROMPT_TOKENS, 1000), 1)
    num_steps = 0

    def seen(_: int, now_s: float, batch: Batch) -> None:
        nonlocal num_steps
        num_steps += any(item.request == _NUM_DECODES for item in batch.items)

    instance = Instance(sarathi(chunk_tokens), BlockCache(10_000, 16))
    simulate_requests([*begun, late], [instance], STEP_TIME, seen=seen)
    return num_steps


def _rows() -> Iterator[Row]:
    for chunk_tokens in (256, 512, 2048):
        theirs = ceil(_PROMPT_TOKENS / (chunk_tokens - _NUM_DECODES))
        yield Row(f"{chunk_tokens} tokens", theirs, _num_steps(chunk_tokens))


TABLES = (
    PaperTable(
        "Agrawal et al., OSDI 2024, Algorithm 3, which spends tau tokens on decodes and then on prompts",
        f"steps for a prompt of {_PROMPT_TOKENS} tokens beside {_NUM_DECODES} decodes, by tau",
        "simulated; theirs is the closed form, tokens of the prompt by what is left of tau, rounded up",
        _rows,
        tolerance=0.0,
    ),
    run_table("sarathi", VidurSarathi(512), SARATHI_S),
)
