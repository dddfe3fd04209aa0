"""SGLang's server: prompts first, and an estimate of the tokens that running requests will still need.

References
----------
The program SGLang, sgl-project/sglang, version 0.5: `python/sglang/srt/managers/schedule_policy.py` (`PrefillAdder`,
as of commit 00550cd1), `scheduler.py` (`get_next_batch_to_run`, `update_running_batch`), `schedule_batch.py`
(`retract_decode`), `server_args.py` and `environ.py` (defaults). Its paper: L. Zheng et al., "SGLang: Efficient
Execution of Structured Language Model Programs", NeurIPS 2024.

A step computes prompts, or decodes all running requests; prompts come first. Only with `--enable-mixed-chunk` decodes
join the prompts. Prompts have a budget of tokens (`--chunked-prefill-size`): the last of them is cut there, and goes
on before all others in the next step. A waiting request is admitted if its prompt and all tokens that it may generate
(4,096 at most) fit beside what running requests are estimated to need: a share of the tokens that they may still
generate. The share begins at 0.7, becomes smaller with each step of decodes, is 0.098 after 600 of them, and begins
anew when the server is idle. If a request does not fit, none is admitted until a running one leaves.

If blocks run out, requests are retracted: those with the fewest generated tokens, and of these those with the longest
prompts, until the others can decode. They wait after all others, and the share becomes what the rest has generated of
the tokens that it may generate, with 20 more for each.

Defaults are those of a GPU with 35 to 160 GB: chunks are smaller on smaller ones (2,048 tokens, 4,096 below 60 GB),
and of 16,384 tokens on larger ones (B200). The program runs 2,048 to 4,096 requests at once, by the size of its cache.
Its order of admission is first come, first served; `longest_prefix(most_waiting=128)` is the other one, `lpm`.

Fidelity: simplified. Pages are the blocks of the cache (the program's default is one token). Blocks of a retracted
request can still be found until others take them; the program forgets them. An admitted prompt has
blocks for all of its chunks. The program sees that a request ended one step later, since it schedules beside the step
that runs, and lets the next prompts begin after one more step of decodes where they were held back. It computes a
prompt with several samples once before it splits them; here the first sample does. A request that no estimate lets in
is admitted when nothing else runs. The server counts as idle where all requests end in a step in which the next ones
arrive. Priorities, the delay of prompts on data-parallel ranks, dynamic chunks, and the
other estimate of requests without a stop token where the cache of prefixes is off are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any, ClassVar, Literal

from trainyard.serve.draft import BatchDraft
from trainyard.serve.errors import require_at_least
from trainyard.serve.policies.admitting import MAX_REQUESTS, NO_BLOCKS, TOKEN_BUDGET, AdmittingPolicy
from trainyard.serve.policy import EngineNeeds, Repeats
from trainyard.serve.request_state import RequestState

__all__ = ["SGLang"]

_MOST_NEW_TOKENS = 4096  # SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION
_FIRST_SHARE = 0.7  # SGLANG_INIT_NEW_TOKEN_RATIO
_LEAST_SHARE = 0.14  # SGLANG_MIN_NEW_TOKEN_RATIO_FACTOR, of the first share
_DECAY_STEPS = 600  # SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS
_RETRACT_TOKENS = 20  # SGLANG_RETRACT_DECODE_STEPS
_Outcome = Literal["next", "spent", "full"]
_FULL = "the tokens that the next request may need do not fit beside the estimate of running ones: {} and {}"


@dataclass
class _Server:
    """What the scheduler of one replica remembers.

    Attributes
    ----------
    admission : state of the order of admission.
    share : of the tokens that running requests may still generate, at the last reset; the program's ``new_token_ratio``.
    num_decays : steps of decodes since.
    full_at : number of running requests when a request did not fit; 0 if it is not known that none fits.
    decoded : a request of the last step of decodes, and how many tokens it had generated before.
    num_unreceived : requests that came and are not received yet; the last ones of the queue.
    num_steps : steps of decodes since requests were received.
    """

    admission: Any
    share: float = _FIRST_SHARE
    num_decays: int = 0
    full_at: int = 0
    decoded: tuple[RequestState, int] | None = None
    num_unreceived: int = 0
    num_steps: int = 0

    @property
    def new_token_share(self) -> float:
        """The share now."""
        decay = _FIRST_SHARE * (1 - _LEAST_SHARE) / _DECAY_STEPS
        return max(self.share - self.num_decays * decay, _FIRST_SHARE * _LEAST_SHARE)

    def reset(self, share: float) -> None:
        """Begin with another share."""
        self.share, self.num_decays = share, 0

    def follow(self, draft: BatchDraft, receive_interval: int) -> None:
        """Count the repetitions of the last step, receive requests, and see whether some left, or all did."""
        self.num_unreceived += len(draft.arrived)
        has_decoded = self.decoded is not None
        if self.decoded is not None:
            state, before = self.decoded
            num_repeated = max(0, state.num_generated - before - 1)
            self.num_decays += num_repeated
            self.num_steps = (self.num_steps + 1 + num_repeated) % receive_interval
            self.decoded = None
        if not has_decoded or not draft.num_running or not self.num_steps:
            self.num_unreceived = self.num_steps = 0
        if draft.num_running < self.full_at:
            self.full_at = 0
        if not draft.num_running and draft.num_waiting == len(draft.arrived):
            self.reset(_FIRST_SHARE)


@dataclass
class _Budget:
    """What prompts of one step may still take.

    Attributes
    ----------
    chunk_tokens : computed tokens before the last prompt is cut; infinite if none is cut.
    input_tokens : computed tokens.
    reserved_tokens : tokens of the cache that requests are estimated to need beside their blocks.
    """

    chunk_tokens: float
    input_tokens: float
    reserved_tokens: float

    def room(self, draft: BatchDraft) -> float:
        """Tokens of the cache that are left."""
        return draft.num_free * draft.block_tokens - self.reserved_tokens

    def take(self, num_tokens: int) -> None:
        """Compute so many tokens of a prompt."""
        self.chunk_tokens -= num_tokens
        self.input_tokens -= num_tokens


@dataclass(frozen=True)
class SGLang(AdmittingPolicy):
    """Prompts first, in chunks; if no prompt is computed, all running requests decode.

    Attributes
    ----------
    chunk_tokens : most prompt tokens in a step, where the last prompt is cut (``--chunked-prefill-size``); 0 if prompts
        are computed whole.
    max_prefill_tokens : prompt tokens in a step, after which none is added; a longer prompt is computed alone.
    max_requests : most requests that run at once (``--max-running-requests``).
    mixed_chunk : whether running requests decode in steps of prompts, too; each takes a token of both budgets.
    receive_interval : steps of decodes after which requests that came are received (``--scheduler-recv-interval``); after
        a step of prompts, and where none runs, they always are.
    """

    splits_samples: ClassVar[bool] = True
    chunk_tokens: int = 8192
    max_prefill_tokens: int = 16384
    max_requests: int = 2048
    mixed_chunk: bool = False
    receive_interval: int = 1

    def __post_init__(self) -> None:
        require_at_least(self, 0, "chunk_tokens")
        require_at_least(self, 1, "max_prefill_tokens", "max_requests", "receive_interval")

    @property
    def repeats(self) -> Repeats:
        return super().repeats if self.receive_interval == 1 else "while none waits"

    def engine_needs(self, max_model_len: int) -> EngineNeeds:
        prompts = self.chunk_tokens or max(self.max_prefill_tokens, max_model_len)
        return EngineNeeds("recompute", self.max_requests, max(prompts, self.max_requests))

    def start(self) -> _Server:
        return _Server(self.admission.start())

    def decide(self, draft: BatchDraft, state: _Server) -> None:
        draft.split_samples()
        self.admission.begin(draft, state.admission)
        self.make(draft, state)
        self.admission.end(draft, state.admission)

    def make(self, draft: BatchDraft, state: _Server) -> None:
        state.follow(draft, self.receive_interval)
        running = draft.running
        decoding = [each for each in running if each.decodes]
        begun = [each for each in running if not each.decodes]
        if begun:
            state.full_at = 0
        if not state.full_at:
            self._prefill(draft, state, begun, decoding)
        if not draft.items:
            self._decode(draft, state, decoding)
        elif self.mixed_chunk:
            for each in decoding:
                draft.compute(each, 1)

    def _prefill(
        self, draft: BatchDraft, state: _Server, begun: list[RequestState], decoding: list[RequestState]
    ) -> None:
        """Put prompts in the batch: those that were begun, then new ones."""
        mixed = len(decoding) if self.mixed_chunk else 0
        left = sum(min(_num_to_generate(each), _MOST_NEW_TOKENS) for each in decoding)
        budget = _Budget(
            (self.chunk_tokens or inf) - mixed,
            self.max_prefill_tokens - mixed,
            state.new_token_share * left + mixed,
        )
        for each in begun:
            self._continue(draft, budget, each)
        outcome: _Outcome = "next"
        while outcome == "next":
            first = self.admission.next(draft, state.admission)
            if first is None or draft.num_waiting <= state.num_unreceived:
                return
            outcome = self._admit(draft, budget, first)
            if not draft.waits(first):
                self.admission.admitted(first, state.admission)
        if (
            outcome == "full" and decoding
        ):  # without decodes, the program takes the prompts for a new running batch
            state.full_at = draft.num_running

    def _continue(self, draft: BatchDraft, budget: _Budget, state: RequestState) -> None:
        """Compute the next chunk of a prompt."""
        most = min(budget.chunk_tokens, int(budget.room(draft)))
        if most <= 0:
            most = budget.chunk_tokens
        left = draft.num_left(state)
        num = int(min(left, most))
        if num > 0 and draft.compute(state, num):
            budget.take(_ceil(num, draft.block_tokens))
            budget.reserved_tokens += draft.block_tokens
            if num == left:
                budget.reserved_tokens += min(_num_to_generate(state), _MOST_NEW_TOKENS)

    def _admit(self, draft: BatchDraft, budget: _Budget, state: RequestState) -> _Outcome:
        """Admit a request with all of its prompt or a first chunk, if there is room.

        Returns
        -------
        Whether the next request is looked at; if not, whether that is because no further one fits.
        """
        size, tokens, room = draft.block_tokens, draft.num_left(state), budget.room(draft)
        if draft.num_running >= self.max_requests:
            draft.explain_wait(MAX_REQUESTS, self.max_requests)
            return "full"
        new_blocks = draft.num_new_blocks(state, state.num_tokens)
        to_generate = min(_num_to_generate(state), _MOST_NEW_TOKENS)
        needed = (new_blocks + 1) * size + to_generate
        if needed >= room and draft.num_running:
            draft.explain_wait(_FULL, needed, int(room))
            return "full"
        num = self._first_chunk(draft, budget, tokens)
        if num <= 0:
            draft.explain_wait(TOKEN_BUDGET, self.chunk_tokens or self.max_prefill_tokens)
            return "spent"
        if not draft.compute(state, num, reserve_tokens=state.num_tokens):
            draft.explain_wait(NO_BLOCKS, new_blocks, draft.num_free)
            return "full"
        budget.take(_ceil(num, size))
        budget.reserved_tokens += size + (to_generate if num == tokens else 0)
        if budget.room(draft) <= 0:
            draft.explain_wait(_FULL, 1, 0)
            return "full"
        if min(budget.chunk_tokens, budget.input_tokens) > 0:
            return "next"
        draft.explain_wait(TOKEN_BUDGET, self.chunk_tokens or self.max_prefill_tokens)
        return "spent"

    def _first_chunk(self, draft: BatchDraft, budget: _Budget, tokens: int) -> int:
        """How many of so many tokens of a prompt are computed in this step; 0 or less if it waits for the next one."""
        size = draft.block_tokens
        if not self.chunk_tokens:
            return 0 if draft.items and _ceil(tokens, size) >= budget.input_tokens else tokens
        if _ceil(tokens, size) <= budget.chunk_tokens:
            return tokens
        if self.chunk_tokens < size and not draft.num_running:
            return min(tokens, self.chunk_tokens)
        return int(budget.chunk_tokens) // size * size

    def _decode(self, draft: BatchDraft, state: _Server, decoding: list[RequestState]) -> None:
        """Let all running requests decode; some are retracted before if blocks are too few."""
        if _lacks_blocks(draft, decoding):
            decoding = _retract(draft, state, decoding)
        elif decoding:
            state.num_decays += 1
        computed = [each for each in decoding if draft.compute(each, 1)]
        if computed:
            state.decoded = (computed[0], computed[0].num_generated)


def _num_to_generate(state: RequestState) -> int:
    """Tokens that a request may still generate."""
    return state.max_num_tokens - state.num_tokens


def _ceil(num_tokens: int, block_tokens: int) -> int:
    """Tokens of the blocks of so many tokens."""
    return -(-num_tokens // block_tokens) * block_tokens


def _lacks_blocks(draft: BatchDraft, decoding: list[RequestState]) -> bool:
    """Whether there are too few free blocks for the next token of each."""
    if draft.num_free >= len(decoding):
        return False
    return sum(draft.num_new_blocks(each, each.num_tokens) for each in decoding) > draft.num_free


def _retract(draft: BatchDraft, state: _Server, decoding: list[RequestState]) -> list[RequestState]:
    """Retract requests until the others can decode, but for one; returns these, in their order."""
    order = sorted(decoding, key=lambda each: (-each.num_generated, each.request.prompt_tokens))
    while len(order) > 1 and _lacks_blocks(draft, order):
        draft.preempt(order.pop(), to_back=True)
    generated = sum(each.num_generated for each in order) + _RETRACT_TOKENS * len(order)
    most = sum(each.max_num_tokens - each.request.prompt_tokens for each in order)
    state.reset(min(1.0, generated / (most + 1)))
    kept = {each.number for each in order}
    return [each for each in decoding if each.number in kept]
