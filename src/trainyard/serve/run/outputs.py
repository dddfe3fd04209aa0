"""What an engine reports after a step: new tokens, embeddings, refused requests, and how busy it is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainyard.serve.batch import Batch
from trainyard.serve.run.prompt_logprobs import PromptLogprobs
from trainyard.serve.run.sampling import TokenLogprobs

__all__ = [
    "NO_TIMES",
    "STEP_TOKENS",
    "Embedding",
    "EngineState",
    "FinishReason",
    "Floats",
    "NewToken",
    "Refused",
    "StepRecord",
    "TokenTimes",
]

STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
"""Bounds of the classes in which steps are counted, in tokens of a step; those of vLLM."""

Floats = NDArray[np.float32]

FinishReason = Literal["", "stop", "length"]
"""Why an answer ends: at a token that ends it, or at the longest one; "" if more will follow."""


class TokenTimes(NamedTuple):
    """Times at which a request came, was first in a step, and got a token, by the engine's clock; NaN if unknown."""

    arrival_s: float = math.nan
    scheduled_s: float = math.nan
    generated_s: float = math.nan


NO_TIMES = TokenTimes()
"""Times of a token whose engine tells none."""


@dataclass(frozen=True, slots=True)
class NewToken:
    """A token that a request generated.

    Attributes
    ----------
    request : its number, as `Engine.add` returned it.
    sample : which of its answers, from 0 on.
    token : its id.
    logprobs : if the request asks for them.
    finish_reason : "stop" at a token that ends the answer, "length" at the longest one, "" if more will follow.
    num_cached_tokens : tokens of the prompt that were in the KV cache.
    times : of the request, and of this token.
    prompt_logprobs : of the prompt, with the first token of the first answer, if the request asks for them.
    """

    request: int
    sample: int
    token: int
    logprobs: TokenLogprobs | None
    finish_reason: FinishReason
    num_cached_tokens: int
    times: TokenTimes = NO_TIMES
    prompt_logprobs: PromptLogprobs | None = None


class Embedding(NamedTuple):
    """The embedding of a request's text.

    Attributes
    ----------
    request : its number.
    vector : the embedding; shape ``(width,)``.
    """

    request: int
    vector: Floats


@dataclass(frozen=True, slots=True)
class Refused:
    """A request that is not served.

    Attributes
    ----------
    request : its number.
    why : in a sentence.
    is_fault_of_model : whether the model computed what cannot be served, and the request asked for nothing wrong.
    """

    request: int
    why: str
    is_fault_of_model: bool = False


class EngineState(NamedTuple):
    """How busy an engine is, and what it did so far.

    Attributes
    ----------
    num_waiting, num_running, num_swapped : requests and samples.
    cache_use : share of the blocks of the KV cache that requests hold.
    num_preemptions : since the beginning.
    wait_reason : why no further waiting request runs; "" if none waits, or the policy does not say.
    step_tokens : how many steps computed at most as many tokens as each of `STEP_TOKENS`, and then all of them.
    num_tokens : that all steps computed.
    running_adapters, waiting_adapters : that running and waiting requests have, in order.
    """

    num_waiting: int = 0
    num_running: int = 0
    num_swapped: int = 0
    cache_use: float = 0.0
    num_preemptions: int = 0
    wait_reason: str = ""
    step_tokens: tuple[int, ...] = (0,) * (len(STEP_TOKENS) + 1)
    num_tokens: int = 0
    running_adapters: tuple[str, ...] = ()
    waiting_adapters: tuple[str, ...] = ()

    @property
    def has_requests(self) -> bool:
        """Whether any request waits, runs, or holds a block of the cache."""
        return bool(self.num_waiting or self.num_running or self.num_swapped or self.cache_use)


@dataclass(frozen=True, slots=True)
class StepRecord:
    """A step that was computed.

    Attributes
    ----------
    start_s, end_s : by the clock of the engine.
    batch : what was computed.
    """

    start_s: float
    end_s: float
    batch: Batch
