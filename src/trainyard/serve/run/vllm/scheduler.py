"""The scheduler of vLLM whose batches a policy makes; see `--scheduler-cls` of vLLM.

It is imported by vLLM, in its environment. It knows vLLM's scheduler from the inside, and so one version of it.
"""

from __future__ import annotations

import logging
import time
from typing import Any

import vllm
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.output import NewRequestData, SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreEventType
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.request import Request as VllmRequest
from vllm.v1.request import RequestStatus

from trainyard.serve.batch import Batch
from trainyard.serve.check import refuse_simulated_only
from trainyard.serve.errors import ServeError
from trainyard.serve.policy import EngineNeeds
from trainyard.serve.queues import Queues
from trainyard.serve.request_state import RequestState
from trainyard.serve.requests.request import Request
from trainyard.serve.run.vllm.draft import VllmCache, VllmDraft
from trainyard.serve.run.vllm.portable_policy import portable_policy

__all__ = ["PolicyScheduler"]

_VERSION = "0.32."
_LOG = logging.getLogger("trainyard.vllm")


class PolicyScheduler(Scheduler):
    """Lets a batch policy decide which requests get how many tokens, and which are preempted; vLLM does the rest.

    The policy is named by ``trainyard_policy`` of vLLM's ``--additional-config``.

    Attributes
    ----------
    batch : what was decided last.

    Raises
    ------
    ServeError
        If the policy cannot drive vLLM, or vLLM is told to do what this does not do.
    """

    def __init__(self, vllm_config: Any, *given: Any, **more: Any) -> None:
        super().__init__(vllm_config, *given, **more)
        text = vllm_config.additional_config.get("trainyard_policy", "vllm")
        self._policy, needs = portable_policy(text, self.max_model_len)
        self._refuse_what_is_not_done()
        self._check_limits(needs)
        self._policy_state = self._policy.start()
        self._cache = VllmCache(self.kv_cache_manager, self.block_size)
        self._queues, self._next_number = Queues(), 0
        self._states: dict[str, RequestState] = {}
        self._requests: dict[int, VllmRequest] = {}
        self.batch = Batch()

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        self.current_step += 1
        self.kv_cache_manager.new_step_starts()
        now_s, is_paused = time.time(), self._pause_state == PauseState.PAUSED_ALL
        for state in self._queues.running.values():
            self._follow(state, now_s)
        draft = VllmDraft(
            now_s,
            [] if is_paused else self._arrivals(),
            self._queues,
            self._requests,
            self._cache,
            self._pause_state == PauseState.UNPAUSED,
            self._preempt,
        )
        if not is_paused:
            self._policy.decide(draft, self._policy_state)
            self._end_refused(draft)
        self.batch = draft.batch()
        self._check_batch()
        output = self._output(draft)
        self._update_after_schedule(output)
        return output

    def _arrivals(self) -> list[RequestState]:
        """Requests that the policy has not seen yet, and whose grammar is compiled if they have one."""
        found = []
        for request in self.waiting:
            if request.request_id in self._states or not self._handle_blocked_waiting_request(request):
                continue
            if request.resumable:
                self._end_with_error(request, "its prompt comes in pieces, which policies do not know")
                continue
            given = request.sampling_params.extra_args or {}
            state = RequestState(
                self._next_number,
                Request(
                    request.request_id,
                    request.arrival_time,
                    request.num_prompt_tokens,
                    request.max_tokens,
                    client=str(given.get("client", "")),
                    priority=request.priority,
                ),
                request.arrival_time,
            )
            state.max_num_tokens = min(state.max_num_tokens, self.max_model_len)
            self._next_number += 1
            self._states[request.request_id], self._requests[state.number] = state, request
            self._queues.arrive(state)
            found.append(state)
        return found

    def _follow(self, state: RequestState, now_s: float) -> None:
        """What became of a request since it was last decided on."""
        request = self._requests[state.number]
        state.num_tokens, state.num_generated = request.num_tokens, request.num_output_tokens
        state.num_computed, state.num_in_step = request.num_computed_tokens, 0
        if state.num_generated and state.first_token_s != state.first_token_s:  # NaN before
            state.first_token_s = now_s

    def _output(self, draft: VllmDraft) -> SchedulerOutput:
        new: list[VllmRequest] = []
        resumed: list[VllmRequest] = []
        running: list[VllmRequest] = []
        of_status = {
            RequestStatus.WAITING: new,
            RequestStatus.PREEMPTED: resumed,
            RequestStatus.RUNNING: running,
        }
        num_tokens, blocks = {}, {}
        for number, start, stop in self.batch.items:
            request = self._requests[number]
            of_status[request.status].append(request)
            num_tokens[request.request_id] = stop - start
            blocks[request.request_id] = draft.new_blocks[number]
            if request.status != RequestStatus.RUNNING:
                self._begin(request, start)
                blocks[request.request_id] = self.kv_cache_manager.get_blocks(request.request_id)
            self.kv_cache_manager.cache_blocks(request, stop)
        cached = self._make_cached_request_data(running, resumed, num_tokens, {}, blocks)
        self.prev_step_scheduled_req_ids = set(num_tokens)
        return SchedulerOutput(
            scheduled_new_reqs=[
                NewRequestData.from_request(each, blocks[each.request_id].get_block_ids()) for each in new
            ],
            scheduled_cached_reqs=cached,
            num_scheduled_tokens=num_tokens,
            total_num_scheduled_tokens=sum(num_tokens.values()),
            scheduled_spec_decode_tokens={},
            scheduled_encoder_inputs={},
            preempted_req_ids=self.reset_preempted_req_ids,
            finished_req_ids=self.finished_req_ids,
            free_encoder_mm_hashes=[],
            new_block_ids_to_zero=self._get_new_block_ids_to_zero(),
        )

    def _begin(self, request: VllmRequest, num_cached: int) -> None:
        """A request that waited runs."""
        self.waiting.remove_request(request)
        self.deferred_waiting.discard(request)
        self.running.append(request)
        if self.log_stats:
            request.record_event(EngineCoreEventType.SCHEDULED, time.monotonic())
        self.kv_cache_manager.record_prefix_cache_stats(request, num_cached)
        if request.prefill_stats and request.num_preemptions == 0:
            request.prefill_stats.set(
                num_prompt_tokens=request.num_prompt_tokens,
                num_local_cached_tokens=num_cached,
                num_external_cached_tokens=0,
            )
        request.status, request.num_computed_tokens = RequestStatus.RUNNING, num_cached

    def _preempt(self, request: VllmRequest) -> None:
        if request.status != RequestStatus.RUNNING:  # admitted by the same decision
            self.kv_cache_manager.free(request)
            return
        self.running.remove(request)
        self._preempt_request(request, time.monotonic())

    def _preempt_request(self, request: VllmRequest, timestamp: float, *given: Any, **more: Any) -> None:
        super()._preempt_request(request, timestamp, *given, **more)
        self.prev_step_scheduled_req_ids.discard(request.request_id)
        state = self._states[request.request_id]
        if state.blocks:  # vLLM takes them to reset its cache, and no policy did
            self._follow(state, time.time())
            state.blocks.clear()
            state.num_preemptions += 1
            self._queues.wait_again(state)

    def _free_request(self, request: VllmRequest, *given: Any, **more: Any) -> Any:
        state = self._states.pop(request.request_id, None)
        if state is not None:
            now_s = time.time()
            self._follow(state, now_s)
            state.finished_s = now_s
            del self._requests[state.number]
            self._queues.leave(state)
        return super()._free_request(request, *given, **more)

    def _end_refused(self, draft: VllmDraft) -> None:
        for state, why in draft.refused:
            del self._states[state.request.name]
            self._end_with_error(self._requests.pop(state.number), why)

    def _end_with_error(self, request: VllmRequest, why: str) -> None:
        _LOG.warning("request %s is refused: %s", request.request_id, why)
        # The only set of requests that vLLM ends with an error, for whatever reason, after the step.
        self.grammar_compile_error_reqs.add(request.request_id)

    def _check_batch(self) -> None:
        refuse_simulated_only(self.batch)
        num_tokens, num_running = self.batch.num_tokens, len(self._queues.running)
        if num_tokens > self.max_num_scheduled_tokens or num_running > self.max_num_running_reqs:
            raise ServeError(
                f"the policy computes {num_tokens} tokens and runs {num_running} requests; it said at most "
                f"{self.max_num_scheduled_tokens} and {self.max_num_running_reqs}; correct its engine_needs"
            )
        is_stuck = self._queues.waiting and not (num_running or self.batch.items or self.batch.cache_ops)
        if is_stuck and self._pause_state == PauseState.UNPAUSED:
            raise ServeError(
                f"{len(self._queues.waiting)} requests wait and the policy computes none of them: "
                f"{self.batch.wait_reason}; enlarge the KV cache, or use another policy"
            )

    def _check_limits(self, needs: EngineNeeds) -> None:
        for option, given, needed in (
            ("max-num-seqs", self.max_num_running_reqs, needs.max_requests),
            ("max-num-batched-tokens", self.max_num_scheduled_tokens, needs.max_batch_tokens),
        ):
            if given < needed:
                raise ServeError(
                    f"--{option} is {given}; the policy needs {needed}; give that or more, or another policy"
                )

    def _refuse_what_is_not_done(self) -> None:
        if not vllm.__version__.startswith(_VERSION):
            raise ServeError(
                f"vLLM {vllm.__version__} is installed; policies drive {_VERSION}x; install that: make vllm"
            )
        groups = self.kv_cache_config.kv_cache_groups
        refused = {
            "asynchronous scheduling (give --no-async-scheduling)": self.scheduler_config.async_scheduling,
            "the second model runner (set VLLM_USE_V2_MODEL_RUNNER=0)": self.use_v2_model_runner,
            "speculative decoding": self.vllm_config.speculative_config is not None,
            "pipeline parallelism": self.use_pp,
            "LoRA": self.lora_config is not None,
            "models that generate no tokens one by one": self.num_sampled_tokens_per_step != 1,
            "pictures and sound": self.max_num_encoder_input_tokens > 0,
            "transfers of the KV cache": self.connector is not None or self.ec_connector is not None,
            "other outputs": self.aux_output_connector is not None,
            "layers without full attention": len(groups) != 1
            or not isinstance(groups[0].kv_cache_spec, FullAttentionSpec),
            "hashes of parts of blocks": self.hash_block_size != self.block_size,
        }
        for what, is_asked in refused.items():
            if is_asked:
                raise ServeError(f"policies do not drive vLLM with {what}; leave it out")
