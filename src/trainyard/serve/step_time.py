"""The interface of step times, and a linear one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from trainyard.serve.batch import CacheOp, WeightOp, WorkItem, num_copied, share_of_layers
from trainyard.serve.request_state import RequestState

__all__ = ["ATTENTION_BACKWARD", "CopyTimes", "LinearStepTime", "StepTime"]

Floats = NDArray[np.float64]

ATTENTION_BACKWARD = 2.5
"""Work of attention's backward pass, relative to its forward pass: five matrix products instead of two, where scores are
computed once more (Dao, "FlashAttention-2", arXiv 2307.08691, section 4.1).
"""


class StepTime(Protocol):
    """The time of each step of a replica."""

    def seconds(self, items: Collection[WorkItem], requests: Mapping[int, RequestState]) -> float:
        """Seconds of a step, by its items and the state of its requests (by number) when it starts."""
        ...

    def stage_seconds(
        self, items: Collection[WorkItem], requests: Mapping[int, RequestState], num_stages: int
    ) -> Floats:
        """Seconds of a step on each of several pipeline stages, shape ``(num_stages,)``."""
        ...

    def decode_seconds(self, items: Collection[WorkItem], num: int) -> Floats:
        """Seconds of each of ``num`` steps in a row, in which all items decode; they are the items of the first step."""
        ...

    def backward_seconds(self, items: Collection[WorkItem], requests: Mapping[int, RequestState]) -> float:
        """Seconds of a backward pass of these items through all layers, where weights of the model do not change.

        Raises
        ------
        ServeError
            If it is not known; then none is begun.
        """
        ...

    def cache_seconds(self, ops: Collection[CacheOp]) -> float:
        """Seconds that copies of blocks add to a step, without moves; called only if there are copies."""
        ...

    def move_seconds(self, num_blocks: int) -> float:
        """Seconds until so many blocks have come from another instance."""
        ...

    def weight_seconds(self, ops: Collection[WeightOp], num_layers: int | None) -> float:
        """Seconds that loading weights adds to a step; called only if there are operations on weights.

        Parameters
        ----------
        num_layers : of the model; None where weights come and go only as a whole.
        """
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class CopyTimes:
    """What copies of blocks and loads of weights take: so many seconds each.

    Attributes
    ----------
    copied_block_s : for each block that is copied on the device.
    swapped_block_s : for each block that is copied to the host or back.
    moved_block_s : for each block that comes from another instance.
    adapter_s, weights_s : for each adapter that is loaded, and for the model; some of the layers take their share.
    """

    copied_block_s: float = 0.0
    swapped_block_s: float = 0.0
    moved_block_s: float = 0.0
    adapter_s: float = 0.0
    weights_s: float = 0.0

    def cache_seconds(self, ops: Collection[CacheOp]) -> float:
        num = num_copied(ops)
        return self.copied_block_s * num.on_device + self.swapped_block_s * num.swapped

    def move_seconds(self, num_blocks: int) -> float:
        return self.moved_block_s * num_blocks

    def weight_seconds(self, ops: Collection[WeightOp], num_layers: int | None) -> float:
        return sum(
            (self.adapter_s if op.adapter else self.weights_s) * share_of_layers(op.layers, num_layers)
            for op in ops
            if op.kind == "load"
        )


@dataclass(frozen=True)
class LinearStepTime(CopyTimes):
    """Step time as a linear function of the tokens and requests in it; pipeline stages take equal parts of it.

    A backward pass takes as long as the forward pass of the same prompt tokens: with frozen weights, the gradient to the
    input of a matrix product is one product of the same size. Of attention, it takes `ATTENTION_BACKWARD` times as long.

    Attributes
    ----------
    step_s : for each step.
    prompt_token_s : for each prompt token.
    decode_s : for each request that decodes.
    cached_token_s : for each token of the sequence of a request that decodes.
    attention_s : for each pair of a prompt token and a token before it.
    """

    step_s: float
    prompt_token_s: float
    decode_s: float
    cached_token_s: float = 0.0
    attention_s: float = 0.0

    def seconds(self, items: Collection[WorkItem], requests: Mapping[int, RequestState]) -> float:
        num_prompt_tokens = num_decodes = num_cached = 0
        num_pairs = 0.0
        for number, start, stop in items:
            if stop > requests[number].num_prefill_tokens:
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

    def stage_seconds(
        self, items: Collection[WorkItem], requests: Mapping[int, RequestState], num_stages: int
    ) -> Floats:
        return np.full(num_stages, self.seconds(items, requests) / num_stages)

    def decode_seconds(self, items: Collection[WorkItem], num: int) -> Floats:
        num_cached = np.arange(num, dtype=np.float64) * len(items) + sum(item.stop for item in items)
        return self.cached_token_s * num_cached + (self.step_s + self.decode_s * len(items))

    def backward_seconds(self, items: Collection[WorkItem], requests: Mapping[int, RequestState]) -> float:
        num_tokens = sum(stop - start for _, start, stop in items)
        num_pairs = sum((stop - start) * (start + stop) / 2 for _, start, stop in items)
        attention_s = ATTENTION_BACKWARD * self.attention_s * num_pairs
        return self.step_s + self.prompt_token_s * num_tokens + attention_s
