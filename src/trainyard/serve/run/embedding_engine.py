"""An engine for embeddings: a request is one forward pass over its text. No token is generated, and nothing is cached."""

from __future__ import annotations

import time
from collections.abc import Callable, Set
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from trainyard.serve.batch import Batch
from trainyard.serve.cache.block_cache import BlockCache
from trainyard.serve.check import BatchChecker, refuse_simulated_only
from trainyard.serve.errors import ServeError, check_context
from trainyard.serve.instance import Instance
from trainyard.serve.policies.turbotransformers.batching import TurboTransformers
from trainyard.serve.policy import BatchPolicy
from trainyard.serve.request_state import RequestState
from trainyard.serve.requests.request import Request
from trainyard.serve.run.embedding_cost import measured_batch_cost
from trainyard.serve.run.embedding_model import EmbeddingForm, EmbeddingModel, load_embedding_model
from trainyard.serve.run.outputs import Embedding, EngineState, Refused, StepRecord
from trainyard.serve.run.pretrained import refusing
from trainyard.serve.run.sampling import SamplingParams

__all__ = ["EmbeddingEngine", "EmbeddingEngineSpec"]

_NOT_NUMBERS = "the embedding has values that are not finite numbers; check the weights of the model"
_BLOCK_TOKENS = 16
_STEP_TOKENS = 16_384
"""Most tokens of the texts of a step, or of one longer text: it bounds the memory of a forward pass."""


class EmbeddingEngine:
    """Embeds texts in batches, as a policy for encoders decides. Every call of `step` computes one batch.

    Requests have a `max_tokens` of 1, as such policies want it: they end where the first token would be. The blocks that
    the policy gives are those of an instance that keeps nothing: they only bound the tokens of a step.

    Parameters
    ----------
    model : that computes.
    policy : that decides, the same as in the simulator.
    max_model_len : the longest text, in tokens; by default what the model was made for.
    clock : tells the time in seconds.
    seen : is told of every step that was computed.

    Raises
    ------
    ServeError
        If the model was not made for texts so long.
    """

    def __init__(
        self,
        model: EmbeddingModel,
        policy: BatchPolicy,
        max_model_len: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        seen: Callable[[StepRecord], None] = lambda record: None,
    ) -> None:
        self.max_model_len = max_model_len or model.context
        check_context(self.max_model_len, model.name, model.context)
        num_blocks = -(-max(_STEP_TOKENS, self.max_model_len + 1) // _BLOCK_TOKENS)
        # One more: the instance counts the token that is not generated.
        self._instance = Instance(
            policy, BlockCache(num_blocks, _BLOCK_TOKENS), self.max_model_len + 1, prefix_caching=False
        )
        self._checker = BatchChecker(num_blocks, _BLOCK_TOKENS)
        self._model, self._clock, self._seen = model, clock, seen
        self._states: dict[int, RequestState] = {}
        self._next_number = 0

    @property
    def options(self) -> None:
        """None: an engine of embeddings has no cache."""

    @property
    def embedding_form(self) -> EmbeddingForm:
        """Form of the model's embeddings."""
        return self._model.form

    @property
    def has_work(self) -> bool:
        """Whether a request waits."""
        return bool(self._states)

    @property
    def state(self) -> EngineState:
        """Load of the engine."""
        return EngineState(len(self._instance.queues.waiting), len(self._instance.queues.running))

    def add(
        self,
        request: Request,
        sampling: SamplingParams | None = None,
        stop_token_ids: Set[int] = frozenset(),
    ) -> int:
        """Queue a request; return the number under which its embedding comes.

        Parameters
        ----------
        request : with the tokens of its text.
        sampling, stop_token_ids : of requests for text, which are refused.

        Raises
        ------
        ServeError
            If it asks for text, or its tokens are none, too many, or not known to the model.
        """
        ids, most, known = request.prompt_ids, self.max_model_len, self._model.vocabulary
        problem = ""
        if sampling is not None or stop_token_ids or request.max_tokens != 1:
            problem = f"asks for text, and {self._model.name} gives embeddings only; ask for one"
        elif not 0 < len(ids) <= most:
            problem = f"has {len(ids)} tokens; allowed are 1 to {most}; shorten it"
        elif not 0 <= min(ids) <= max(ids) < known:
            problem = f"has tokens from {min(ids)} to {max(ids)}; allowed are 0 to {known - 1}"
        if problem:
            raise ServeError(f"request {request.name!r} {problem}")
        state = RequestState(self._next_number, request, self._clock())
        self._next_number += 1
        self._instance.arrive(state)
        self._states[state.number] = state
        self._checker.arrive(state.number, state.num_tokens, state.tokens)
        return state.number

    def load_adapter(self, adapter: str, folder: Path) -> None:
        """Not done.

        Raises
        ------
        ServeError
            Always.
        """
        raise ServeError(f"{self._model.name} gives embeddings; adapters are for models that generate text")

    def unload_adapter(self, adapter: str) -> None:
        """There are none."""

    def reset_prefix_cache(self) -> None:
        """Do nothing: there is no prefix cache."""

    def cancel(self, number: int) -> None:
        """Serve a request no longer. Nothing happens if it has ended."""
        if number in self._states:
            self._instance.cancel(self._states[number], self._clock())
            self._forget(number)

    def end_sample(self, number: int, sample: int) -> None:
        """End a request: it has one answer."""
        self.cancel(number)

    def serves(self, number: int) -> bool:
        """Whether a request waits."""
        return number in self._states

    def step(self) -> list[Embedding | Refused]:
        """Compute one batch; return what became of its requests.

        Raises
        ------
        ServeError
            If the policy decides on what cannot be done, or lets all requests wait.
        """
        if not self._states:
            return []
        start_s = self._clock()
        batch = self._instance.decide(start_s)
        refuse_simulated_only(batch)
        self._checker.check(batch)
        found: list[Embedding | Refused] = []
        for state, why in self._instance.refused:
            self._forget(state.number)
            found.append(Refused(state.number, why))
        if batch.items:
            found += self._compute(batch)
        elif not found:
            raise ServeError(
                f"{len(self._states)} requests wait and the policy computes none of them: {batch.wait_reason}; use "
                "another policy"
            )
        self._seen(StepRecord(start_s, self._clock(), batch))
        return found

    def report_progress(self, report: Callable[[], None]) -> None:
        """Call a function whenever a layer is computed."""
        self._model.report_progress(report)

    def close(self) -> None:
        """Nothing but the engine itself is to be ended."""

    def _compute(self, batch: Batch) -> list[Embedding | Refused]:
        for number, start, stop in batch.items:
            if (start, stop) != (0, self._states[number].num_tokens):
                raise ServeError(
                    f"the policy computes tokens {start} to {stop} of {self._states[number].num_tokens}; a text is "
                    "embedded as a whole; use turbotransformers"
                )
        vectors = self._model.embed([self._states[item.request].tokens for item in batch.items]).numpy()
        found: list[Embedding | Refused] = [
            Embedding(item.request, vector)
            if np.isfinite(vector).all()
            else Refused(item.request, _NOT_NUMBERS, is_fault_of_model=True)
            for item, vector in zip(batch.items, vectors, strict=True)
        ]
        for state in self._instance.complete(batch, self._clock(), lambda state: (None, True)):
            self._forget(state.number)
        return found

    def _forget(self, number: int) -> None:
        del self._states[number]
        self._checker.leave(number)


@dataclass(frozen=True)
class EmbeddingEngineSpec:
    """A model, of which a process makes an engine for embeddings with batches as of TurboTransformers.

    Attributes
    ----------
    folder : of the model, in the form of sentence-transformers.
    max_model_len : the longest text, in tokens; by default what the model was made for.
    dtype : type of its weights.
    num_threads : of the process.
    """

    folder: Path
    max_model_len: int | None = None
    dtype: torch.dtype = torch.float32
    num_threads: int = 1

    def make_engine(self) -> EmbeddingEngine:
        """Load the model, measure how long batches take, and make the engine."""
        torch.set_num_threads(self.num_threads)
        model = load_embedding_model(self.folder, self.dtype)
        with refusing(self.folder, "cannot be computed"):
            cost = measured_batch_cost(model)
        return EmbeddingEngine(model, TurboTransformers(cost), self.max_model_len)
