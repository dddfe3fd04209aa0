"""How long a step of an instance takes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from trainyard.serve.batch import CacheOp, WorkItem, num_copied
from trainyard.serve.request_state import RequestState

__all__ = ["LinearStepTime", "StepTime"]

Floats = NDArray[np.float64]


class StepTime(Protocol):
    """How long steps of an instance take."""

    def seconds(self, items: Collection[WorkItem], requests: Mapping[int, RequestState]) -> float:
        """Of a step, of what it computes, and of the requests by number as they are when it starts."""
        ...

    def decode_seconds(self, items: Collection[WorkItem], num: int) -> Floats:
        """Of each of several steps in a row, in which all items decode; the first one is this one."""
        ...

    def cache_seconds(self, ops: Collection[CacheOp]) -> float:
        """Of the copies among operations on the cache, by which a step is longer; asked only where there are some."""
        ...


@dataclass(frozen=True)
class LinearStepTime:
    """Seconds of a step as a linear form of what is in it.

    Attributes
    ----------
    step_s : of any step.
    prompt_token_s : of each token of a prompt.
    decode_s : of each request that decodes.
    cached_token_s : of each token in the sequence of a request that decodes.
    attention_s : of each token of a prompt and each token before it.
    copied_block_s : of each block of the cache that is copied on the device.
    swapped_block_s : of each block of the cache that is copied to the host or back.
    """

    step_s: float
    prompt_token_s: float
    decode_s: float
    cached_token_s: float = 0.0
    attention_s: float = 0.0
    copied_block_s: float = 0.0
    swapped_block_s: float = 0.0

    def seconds(self, items: Collection[WorkItem], requests: Mapping[int, RequestState]) -> float:
        num_prompt_tokens = num_decodes = num_cached = 0
        num_pairs = 0.0
        for number, start, stop in items:
            if stop - start == 1 and requests[number].num_generated and stop == requests[number].num_tokens:
                num_decodes += 1
                num_cached += stop
            else:
                num = stop - start
                num_prompt_tokens += num
                num_pairs += num * (start + num / 2)
        return (
            self.step_s
            + self.prompt_token_s * num_prompt_tokens
            + self.decode_s * num_decodes
            + self.cached_token_s * num_cached
            + self.attention_s * num_pairs
        )

    def decode_seconds(self, items: Collection[WorkItem], num: int) -> Floats:
        num_cached = np.arange(num, dtype=np.float64) * len(items) + sum(item.stop for item in items)
        return self.cached_token_s * num_cached + (self.step_s + self.decode_s * len(items))

    def cache_seconds(self, ops: Collection[CacheOp]) -> float:
        num_on_device, num_swapped = num_copied(ops)
        return self.copied_block_s * num_on_device + self.swapped_block_s * num_swapped
