"""Frontier of a split model in a steady state: tokens/s per device against tokens/s per user.

In a steady state the number of concurrent requests is constant, and all have the mean length. Each token takes a decode
step, and its share of the prefills in between: one for every request that ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from trainyard.serve.batch import WorkItem
from trainyard.serve.deployment import split_text
from trainyard.serve.request_state import RequestState
from trainyard.serve.requests.request import Request, TracedRequest
from trainyard.serve.splits import PossibleSplit

__all__ = ["FrontierPoint", "frontier", "steady_states"]


@dataclass(frozen=True)
class FrontierPoint:
    """The steady state of a split with some number of concurrent requests.

    Attributes
    ----------
    tensor_parallel, pipeline_stages, data_parallel : the split.
    num_requests : concurrent requests of a replica.
    user_tokens_per_s : tokens that each user gets per second, after the first token.
    device_tokens_per_s : tokens that a device generates per second.
    """

    tensor_parallel: int
    pipeline_stages: int
    data_parallel: int
    num_requests: int
    user_tokens_per_s: float
    device_tokens_per_s: float

    @property
    def split(self) -> str:
        """The split as text."""
        return split_text(self.tensor_parallel, self.pipeline_stages, self.data_parallel)


def steady_states(split: PossibleSplit, requests: Sequence[TracedRequest]) -> tuple[FrontierPoint, ...]:
    """The points of a split with 1, 2, 4, ... concurrent requests, up to what the KV cache has room for."""
    prompt = max(1, round(float(np.mean([each.request.prompt_tokens for each in requests]))))
    output = max(1, round(float(np.mean([each.output_tokens for each in requests]))))
    room = split.num_blocks * split.block_tokens // (prompt + output) * split.model.data_parallel
    nums = [2**power for power in range(room.bit_length()) if 2**power <= room]
    return tuple(_steady_state(split, num, prompt, output) for num in nums)


def frontier(points: Iterable[FrontierPoint]) -> tuple[FrontierPoint, ...]:
    """The Pareto frontier of points: no other point is better in both. Most tokens/s per user first."""
    best, found = 0.0, []
    for each in sorted(points, key=lambda point: (-point.user_tokens_per_s, -point.device_tokens_per_s)):
        if each.device_tokens_per_s > best:
            best = each.device_tokens_per_s
            found.append(each)
    return tuple(found)


def _steady_state(split: PossibleSplit, num: int, prompt: int, output: int) -> FrontierPoint:
    """The stages of a pipeline, or data-parallel ranks, share the requests.

    A prefill occupies one stage at a time. Ranks prefill at the same time.
    """
    model = split.model
    stages, ranks = model.pipeline_stages, model.data_parallel
    length = prompt + (output + 1) // 2
    num_in_step, num_prompts = -(-num // stages), min(num, ranks)
    states = {number: _decoding(number, prompt, length) for number in range(num_in_step)}
    for number in range(num_in_step, num_in_step + num_prompts):
        states[number] = RequestState(number, Request("new", 0.0, prompt, output), 0.0)
    for number, state in states.items():
        state.rank = number % ranks
    decodes = [WorkItem(number, length - 1, length) for number in range(num_in_step)]
    prompts = [WorkItem(number, 0, prompt) for number in range(num_in_step, len(states))]
    decodes_s, both_s = (
        model.step_time.stage_seconds(items, states, stages) for items in (decodes, (*decodes, *prompts))
    )
    # Each stage computes a batch after the other, so that all wait for the slowest one.
    decode_s = max(float(decodes_s.sum()), min(num, stages) * float(decodes_s.max()))
    prompts_s = stages * float(both_s.max() - decodes_s.max())
    token_s = decode_s + num * prompts_s / (num_prompts * stages * output)
    return FrontierPoint(
        model.tensor_parallel, stages, ranks, num, 1 / token_s, num / (token_s * model.num_devices)
    )


def _decoding(number: int, prompt: int, length: int) -> RequestState:
    """A request with a sequence of so many tokens, of which only the last is not in the cache."""
    state = RequestState(number, Request(str(number), 0.0, prompt, length), 0.0)
    state.num_tokens, state.num_computed, state.num_generated = length, length - 1, max(1, length - prompt)
    state.num_prefill_tokens = length - 1
    return state
