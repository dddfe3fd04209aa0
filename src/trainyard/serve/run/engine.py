"""An engine: a model on this machine that serves requests step by step, as a batch policy decides."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from trainyard.serve.batch import Batch, WorkItem
from trainyard.serve.cache.block_cache import BlockCache
from trainyard.serve.check import BatchChecker, refuse_simulated_only
from trainyard.serve.errors import ServeError, check_context
from trainyard.serve.instance import Instance
from trainyard.serve.policy import BatchPolicy, StoppingPolicy, check_no_oracle
from trainyard.serve.request_state import RequestState
from trainyard.serve.requests.request import Request
from trainyard.serve.run.engine_adapters import adapters_of
from trainyard.serve.run.outputs import EngineState, FinishReason, NewToken, Refused, StepRecord, TokenTimes
from trainyard.serve.run.prompt_logprobs import PromptLogprobsCollector, scores_after
from trainyard.serve.run.sampling import NO_TOKEN, OutputForm, SamplingParams, seed_of
from trainyard.serve.run.served_request import ServedRequest
from trainyard.serve.run.step_counts import StepCounts
from trainyard.serve.run.step_model import StepModel
from trainyard.serve.run.structured_outputs import TokenConstraint
from trainyard.serve.run.token_chooser import TokenChooser

__all__ = ["Engine", "EngineOptions"]

_NOT_NUMBERS = "scores of tokens are not finite numbers; check the weights of the model and of its adapter"


@dataclass(frozen=True)
class EngineOptions:
    """Options of an engine beside its model and policy.

    Attributes
    ----------
    num_blocks : KV cache, in blocks.
    block_tokens : tokens per block.
    num_host_blocks : blocks on the host, to which requests may be swapped out.
    max_model_len : the longest sequence, in tokens; by default what the model and the KV cache allow.
    prefix_caching : whether requests reuse blocks with the same tokens.
    """

    num_blocks: int
    block_tokens: int = 16
    num_host_blocks: int = 0
    max_model_len: int | None = None
    prefix_caching: bool = True


class Engine:
    """Serves requests on one model. It has no thread of its own: every call of `step` computes one batch.

    Parameters
    ----------
    model : that computes.
    policy : that decides, the same as in the simulator.
    options : cache and limits.
    clock : tells the time in seconds.
    seen : is told of every step that was computed.
    finished : is told of every request that ended with all of its tokens.
    constrain : makes what holds an answer to its form, such as a JSON schema; None if requests have none.

    Attributes
    ----------
    options : cache and limits.

    Raises
    ------
    ServeError
        If the cache has no room for the longest sequence, the model was not made for sequences so long, or the policy
        stops steps that run or has to know how long outputs will be.
    """

    def __init__(
        self,
        model: StepModel,
        policy: BatchPolicy,
        options: EngineOptions,
        clock: Callable[[], float] = time.monotonic,
        seen: Callable[[StepRecord], None] = lambda record: None,
        finished: Callable[[RequestState], None] = lambda state: None,
        constrain: Callable[[OutputForm], TokenConstraint] | None = None,
    ) -> None:
        room = options.num_blocks * options.block_tokens
        if isinstance(policy, StoppingPolicy):
            raise ServeError(
                "the policy stops steps that run, and an engine on this machine computes each step to its end; use "
                "another policy, or simulate"
            )
        check_no_oracle(policy)
        length = min(model.context, room) if options.max_model_len is None else options.max_model_len
        check_context(length, model.name, model.context)
        cache = BlockCache(options.num_blocks, options.block_tokens, options.num_host_blocks)
        self._instance = Instance(policy, cache, length, prefix_caching=options.prefix_caching)
        model.new_cache(options.num_blocks, options.block_tokens, options.num_host_blocks)
        self._checker = BatchChecker(options.num_blocks, options.block_tokens, options.num_host_blocks)
        self._model, self._clock = model, clock
        self._seen, self._finished = seen, finished
        self._chooser = TokenChooser(model.vocabulary, constrain)
        self._entries: dict[int, ServedRequest] = {}
        self._next_number, self._num_preemptions, self._batch = 0, 0, Batch()
        self._adapters: dict[str, bool] = {}  # whether it is still loaded
        self.options, self._counts = options, StepCounts()

    @property
    def embedding_form(self) -> None:
        """None: the engine generates tokens, no embeddings."""

    @property
    def has_work(self) -> bool:
        """Whether a request waits or runs."""
        return bool(self._entries)

    @property
    def max_model_len(self) -> int:
        """The longest sequence, in tokens."""
        return self._instance.max_model_len

    @property
    def state(self) -> EngineState:
        """Load of the engine."""
        queues, cache = self._instance.queues, self._instance.cache
        reason = self._batch.wait_reason
        return EngineState(
            len(queues.waiting),
            len(queues.running),
            len(queues.swapped),
            1 - cache.num_free / cache.num_blocks,
            self._num_preemptions,
            "" if reason is None or not queues.waiting else str(reason),
            self._counts.cumulative,
            self._counts.num_tokens,
            adapters_of(queues.running.values()),
            adapters_of((*queues.waiting.values(), *queues.swapped.values())),
        )

    @property
    def num_free_blocks(self) -> int:
        """Blocks of the KV cache on the device that no request holds."""
        return self._instance.cache.num_free

    def load_adapter(self, adapter: str, folder: Path) -> None:
        """Read an adapter, which requests choose by its name from now on.

        Parameters
        ----------
        adapter : its name, which no other adapter of this engine has or had.
        folder : as PEFT saves it.

        Raises
        ------
        ServeError
            If it cannot be read or is not for this model, or there was another one of this name.
        """
        if adapter in self._adapters:
            raise ServeError(
                f"an adapter {adapter!r} was loaded before, and blocks of it may be cached; give another name"
            )
        self._model.load_adapter(adapter, folder)
        self._adapters[adapter] = True

    def unload_adapter(self, adapter: str) -> None:
        """Take no more requests with an adapter, and forget it when those that wait and run have ended.

        Nothing happens if it is not loaded.
        """
        if self._adapters.get(adapter):
            self._adapters[adapter] = False
            self._forget_unused(adapter)

    def reset_prefix_cache(self) -> None:
        """Let later requests reuse nothing that was computed before; those that run go on."""
        self._instance.cache.forget()

    def add(
        self,
        request: Request,
        sampling: SamplingParams | None = None,
        stop_token_ids: Set[int] = frozenset(),
        arrival_s: float | None = None,
    ) -> int:
        """Queue a request; return the number under which its tokens come.

        Parameters
        ----------
        request : with the tokens of its prompt.
        sampling : how its tokens are chosen.
        stop_token_ids : tokens that end an answer.
        arrival_s : when it came, by the clock of the engine, whatever the request says; now by default.

        Raises
        ------
        ServeError
            If it cannot be served: its prompt is not known, too long, or has tokens that the model does not know; its
            adapter is not loaded; or all tokens would end its answer before ``min_tokens``.
        """
        params = sampling or SamplingParams()
        self._require_servable(request, params, stop_token_ids)
        state = RequestState(self._next_number, request, self._clock() if arrival_s is None else arrival_s)
        why = self._instance.arrive(state)
        if why:
            raise ServeError(f"request {request.name!r}: {why}; give a shorter prompt")
        self._next_number += request.num_samples
        entry = ServedRequest(state, params, stop_token_ids, seed_of(params), {state.number})
        if (num := params.prompt_logprobs) is not None:
            entry.prompt = PromptLogprobsCollector(request.prompt_ids, num, self._model.vocabulary)
        self._entries[state.number] = entry
        self._checker.arrive(state.number, state.num_tokens, state.tokens)
        return state.number

    def _require_servable(self, request: Request, params: SamplingParams, stop_token_ids: Set[int]) -> None:
        if request.trains:
            raise ServeError(
                f"request {request.name!r} trains its adapter, which no engine does; simulate it"
            )
        if not request.prompt_ids:
            raise ServeError(f"request {request.name!r} has no prompt_ids; give the tokens of its prompt")
        if not 0 <= min(request.prompt_ids) <= max(request.prompt_ids) < self._model.vocabulary:
            raise ServeError(
                f"request {request.name!r} has tokens from {min(request.prompt_ids)} to {max(request.prompt_ids)}; "
                f"allowed are 0 to {self._model.vocabulary - 1}"
            )
        if request.adapter and not self._adapters.get(request.adapter):
            raise ServeError(f"request {request.name!r}: the adapter {request.adapter!r} is not loaded")
        if params.min_tokens and len(stop_token_ids) >= self._model.vocabulary:
            raise ServeError(
                f"request {request.name!r} has min_tokens, and all tokens end it; give fewer of these"
            )
        if params.prompt_logprobs is not None and request.reads_cache:
            raise ServeError(
                f"request {request.name!r} has prompt_logprobs and reads_cache; give one of them"
            )
        if params.is_constrained and not self._chooser.can_constrain:
            raise ServeError(
                f"request {request.name!r} asks for a form of answer, and this engine constrains nothing; leave it out"
            )

    def cancel(self, number: int) -> None:
        """Serve a request no longer: its blocks are free at once. Nothing happens if it has ended."""
        entry = self._entries.pop(number, None)
        if entry is None:
            return
        self._instance.cancel(entry.state, self._clock())
        for each in entry.checked:
            self._checker.leave(each)
        self._forget_unused(entry.state.request.adapter)

    def end_sample(self, number: int, sample: int) -> None:
        """Generate no more tokens of one sample: its blocks are free at once. Nothing happens if it has ended.

        Parameters
        ----------
        number : of its request, whose prompt is computed.
        """
        entry = self._entries.get(number)
        if entry is None or sample >= len(entry.state.sequences):
            return
        state = entry.state.sequences[sample]
        if not state.is_finished:
            self._instance.end(state, self._clock())
            self._leave(state)

    def report_progress(self, report: Callable[[], None]) -> None:
        """Call a function whenever a part of a step is done, such as a layer."""
        self._model.report_progress(report)
        self._chooser.report = report

    def close(self) -> None:
        """End what its model has started."""
        self._model.close()

    def serves(self, number: int) -> bool:
        """Whether a request waits or runs, or a sample of it."""
        return number in self._entries

    def step(self) -> list[NewToken | Refused]:
        """Compute one batch; return what became of its requests.

        Raises
        ------
        ServeError
            If the policy decides on what cannot be done, or lets requests wait where none runs.
        """
        if not self._entries:
            return []
        start_s = self._clock()
        batch = self._instance.decide(start_s)
        self._check(batch)
        self._batch = batch
        self._num_preemptions += len(batch.preempted)
        self._model.apply(batch.cache_ops)
        found: list[NewToken | Refused] = [Refused(*each) for each in self._forget_refused()]
        if batch.items:
            self._counts.add(batch.num_tokens)
            found += self._compute(batch)
        elif not found and not batch.cache_ops:
            raise ServeError(
                f"{len(self._entries)} requests wait and the policy computes none of them: {batch.wait_reason}; enlarge "
                "the KV cache, or use another policy"
            )
        self._seen(StepRecord(start_s, self._clock(), batch))
        return found

    def _check(self, batch: Batch) -> None:
        refuse_simulated_only(batch)
        running = self._instance.queues.running
        for item in batch.items:
            state = running[item.request]
            checked = self._entries[state.sequences[0].number].checked
            if state.number not in checked:  # a sample that computes the prompt by itself
                self._checker.arrive(state.number, state.num_tokens, state.tokens)
                checked.add(state.number)
        self._checker.check(batch)

    def _forget_refused(self) -> list[tuple[int, str]]:
        found = []
        for state, why in self._instance.refused:
            entry = self._entries.pop(state.sequences[0].number)
            for each in entry.checked:
                self._checker.leave(each)
            self._forget_unused(entry.state.request.adapter)
            found.append((entry.state.number, why))
        return found

    def _compute(self, batch: Batch) -> list[NewToken | Refused]:
        running, items = self._instance.queues.running, batch.items
        ends = [i for i, item in enumerate(items) if item.stop == running[item.request].num_tokens]
        logits = scores_after(self._model, items, running, ends, self._prompts(items))
        chosen = self._chooser.choose([running[items[i].request] for i in ends], self._entries, logits)
        found: list[NewToken | Refused] = []
        without = dict[int, Refused]()
        now_s = self._clock()

        def generated(state: RequestState) -> tuple[int | None, bool]:
            token, logprobs = chosen[state.number]
            first = state.sequences[0].number
            if token == NO_TOKEN:
                why = self._entries[first].problem
                without[first] = Refused(first, why or _NOT_NUMBERS, is_fault_of_model=not why)
                token = 0  # any one: the request is refused when the step is complete
            for other in range(first + 1, first + 1 + state.num_to_fork):
                self._checker.fork(first, other)
                self._entries[first].checked.add(other)
            self._checker.generate(state.number, token)
            reason = self._finish_reason(state, token)
            times = TokenTimes(state.arrival_s, state.sequences[0].scheduled_s, now_s)
            of_prompt = self._entries[first].take_prompt_logprobs()
            sample, num_cached = state.number - first, state.num_cached_tokens
            found.append(NewToken(first, sample, token, logprobs, reason, num_cached, times, of_prompt))
            return token, bool(reason)

        for state in self._instance.complete(batch, now_s, generated):
            self._leave(state)
        for number in without:
            self.cancel(number)
        refused = [without[number] for number in sorted(without)]
        return [each for each in found if each.request not in without] + refused

    def _prompts(self, items: Sequence[WorkItem]) -> Mapping[int, PromptLogprobsCollector]:
        """Return the collectors of prompts' log-probabilities, by the number of the item that computes a part."""
        of_items = {place: self._entries.get(item.request) for place, item in enumerate(items)}
        return {place: entry.prompt for place, entry in of_items.items() if entry and entry.prompt}

    def _finish_reason(self, state: RequestState, token: int) -> FinishReason:
        if token in self._entries[state.sequences[0].number].stop_token_ids:
            return "stop"
        return "length" if state.num_tokens + 1 >= state.max_num_tokens else ""

    def _leave(self, state: RequestState) -> None:
        first = state.sequences[0].number
        entry = self._entries[first]
        self._checker.leave(state.number)
        entry.checked.remove(state.number)
        if not entry.checked and state.has_ended:
            del self._entries[first]
            self._forget_unused(entry.state.request.adapter)
            self._finished(entry.state)

    def _forget_unused(self, adapter: str) -> None:
        """Forget an adapter that was unloaded, if no request has it any more."""
        if self._adapters.get(adapter) is False and not any(
            entry.state.request.adapter == adapter for entry in self._entries.values()
        ):
            self._model.unload_adapter(adapter)
