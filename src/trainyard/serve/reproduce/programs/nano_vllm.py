"""Output of nano-vllm's scheduler and block manager for 64 requests, beside ours.

GeeeekExplorer/nano-vllm at bb823b3. Each of four groups of prompts begins with 512 tokens of its own. The tokens that are
generated follow from the number of the request and its length, so that no model is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from trainyard.published import PaperTable, Row
from trainyard.serve.batch import Batch
from trainyard.serve.cache.block_cache import BlockCache
from trainyard.serve.instance import Instance
from trainyard.serve.replicas.nano_vllm import NanoVLLM
from trainyard.serve.reproduce.programs.vidur import STEP_TIME
from trainyard.serve.requests.request import Request, TracedRequest
from trainyard.serve.simulate_requests import simulate_requests

__all__ = ["TABLES", "Counts", "counts", "requests"]


@dataclass
class Counts:
    """Counts of a run.

    Attributes
    ----------
    prefill_steps, decode_steps : of each kind.
    prefill_tokens : that were computed in the former.
    preemptions : of all requests.
    """

    prefill_steps: int = 0
    decode_steps: int = 0
    prefill_tokens: int = 0
    preemptions: int = 0


def requests() -> Iterator[TracedRequest]:
    """All wait from the beginning."""
    for number in range(64):
        prompt = (
            *(10000 * (number % 4) + j for j in range(512)),
            *(100000 + 1000 * number + j for j in range(100 + number)),
        )
        request = Request(f"r{number}", 0.0, len(prompt), 1000, prompt_ids=prompt)
        yield TracedRequest(request, 64 + 8 * (number % 5))


def counts(policy: NanoVLLM, num_blocks: int, seen: Callable[[bool, Batch], None] | None = None) -> Counts:
    """The requests under a policy, with so many blocks of 16 tokens.

    Parameters
    ----------
    seen : told of every step, and whether it is one of prompts.
    """
    instance, found = Instance(policy, BlockCache(num_blocks, 16)), Counts()

    def count(_: int, now_s: float, batch: Batch) -> None:
        is_prefill = not all(instance.queues.running[item.request].decodes for item in batch.items)
        found.prefill_steps += is_prefill
        found.decode_steps += not is_prefill
        found.prefill_tokens += is_prefill * batch.num_tokens
        if seen is not None:
            seen(is_prefill, batch)

    results = simulate_requests(
        requests(),
        [instance],
        STEP_TIME,
        seen=count,
        next_token=lambda each: (31 * each.number + each.num_tokens) % 1000,
    )
    found.preemptions = results.num_preemptions
    return found


def _table(policy: NanoVLLM, num_blocks: int, theirs: Counts) -> PaperTable:
    def rows() -> Iterator[Row]:
        ours = counts(policy, num_blocks)
        yield Row("steps of prompts", theirs.prefill_steps, ours.prefill_steps)
        yield Row("steps of decodes", theirs.decode_steps, ours.decode_steps)
        yield Row("tokens computed in steps of prompts", theirs.prefill_tokens, ours.prefill_tokens)
        if theirs.preemptions:
            yield Row("preemptions", theirs.preemptions, ours.preemptions)

    return PaperTable(
        f"The program nano-vllm, 2025, 64 requests of four common prefixes, {num_blocks} blocks, up to "
        f"{policy.max_requests} requests and {policy.max_batch_tokens} tokens in a step",
        "count",
        "simulated by the rules of the program, the same requests; the tests compare every step",
        rows,
        tolerance=0.0,
    )


TABLES = (
    _table(NanoVLLM(4096, 64), 4096, Counts(3, 95, 11488)),
    _table(NanoVLLM(1024, 32), 300, Counts(40, 393, 13062, 29)),
)
"""Tables with much cache and with little."""
