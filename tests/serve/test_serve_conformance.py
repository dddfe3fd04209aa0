"""What holds for every batch policy, on requests that are drawn."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import zip_longest

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from served import Checked, request

from trainyard.serve.admission import FIRST_COME, Admission
from trainyard.serve.batch import Batch
from trainyard.serve.cache.eviction import LeastRecentlyUsed, UnkeyedFirst
from trainyard.serve.policies.longest_prefix import LongestPrefix
from trainyard.serve.policies.orca import Orca
from trainyard.serve.policies.sarathi import sarathi
from trainyard.serve.policies.sglang import SGLang
from trainyard.serve.policies.shortest_prompt import ShortestPrompt
from trainyard.serve.policies.token_budget import TokenBudget
from trainyard.serve.policies.trtllm import TensorRTLLM
from trainyard.serve.policies.vllm import PrefillFirst, vllm
from trainyard.serve.policies.vtc import VTC
from trainyard.serve.policy import BatchPolicy

_POLICIES: dict[str, Callable[..., BatchPolicy]] = {
    "orca": partial(Orca, 8),
    "vllm": partial(vllm, 64, 8),
    "vllm V0": partial(PrefillFirst, 64, 8),
    "sarathi": partial(sarathi, 32, 8),
    "whole prompts": partial(TokenBudget, 64, 8, False),
    "vllm, swapping": partial(vllm, 64, 8, preempt="swap"),
    "vllm V0, swapping": partial(PrefillFirst, 64, 8, preempt="swap"),
    "vllm V0, recomputing samples": partial(PrefillFirst, 64, 8, preempt="recompute"),
    "sglang": partial(SGLang, 32, 64, 8),
    "sglang, mixed, received later": partial(SGLang, 16, 64, 8, mixed_chunk=True, receive_interval=3),
    "sglang, whole prompts": partial(SGLang, 0, 64, 8),
    "trtllm": partial(TensorRTLLM, 96, 8),
    "trtllm, max utilization": partial(TensorRTLLM, 96, 8, "max_utilization"),
    "trtllm, chunks": partial(TensorRTLLM, 32, 8, chunked_prefill=True),
    "trtllm, max utilization, chunks": partial(TensorRTLLM, 32, 8, "max_utilization", True),
}
_ADMISSIONS: dict[str, Admission] = {
    "first come": FIRST_COME,
    "VTC": VTC(),
    "VTC, of weights that are no sums of halves": VTC(0.3, 0.1),
    "shortest prompt": ShortestPrompt(0.05),
    "longest prefix": LongestPrefix(),
    "VTC, moving average": VTC(predict="moving average", predict_requests=2),
    "VTC, oracle": VTC(predict="oracle"),
}

_SERVERS = [name for name in _POLICIES if name.startswith(("sglang", "trtllm"))]
_IN_SHORT = {"first come", "VTC", "longest prefix"}
"""Orders with which the schedulers of servers are tested by default; their variants only with the first of them."""


def _pairs() -> list[object]:
    """Every policy with every order of admission."""
    pairs = []
    for name in sorted(_POLICIES):
        for admission in sorted(_ADMISSIONS):
            few = {"first come"} if "," in name else _IN_SHORT
            is_slow = name in _SERVERS and admission not in few
            pairs.append(pytest.param(name, admission, marks=pytest.mark.slow if is_slow else ()))
    return pairs


_NUM_BLOCKS, _BLOCK_TOKENS, _MOST, _NUM_HOST_BLOCKS = 24, 4, 96, 30
_WORDS = st.lists(st.integers(0, 1), min_size=1, max_size=60)
_DRAWN = st.lists(
    st.tuples(
        st.floats(0, 0.2),
        _WORDS,
        st.lists(st.integers(1, 30), min_size=1, max_size=4).map(tuple)
        | st.integers(1, 30).map(lambda each: (each,)),
        st.sampled_from("abc"),
        st.booleans(),
    ),
    min_size=1,
    max_size=14,
)


def _requests(drawn, is_known):
    now_s = 0.0
    for number, (gap_s, prompt, outputs, client, is_limit_known) in enumerate(drawn):
        now_s += gap_s
        ids = tuple(prompt) if is_known else ()
        more = {"client": client, "prompt_ids": ids, "num_samples": len(outputs)}
        if is_limit_known:
            more["max_tokens"] = max(outputs)
        yield request(number, now_s, len(prompt), outputs if len(outputs) > 1 else outputs[0], **more)


def _instance(name: str, admission: str = "first come", num_host_blocks: int = _NUM_HOST_BLOCKS) -> Checked:
    policy = _POLICIES[name](admission=_ADMISSIONS[admission])
    return Checked(policy, _NUM_BLOCKS, _BLOCK_TOKENS, num_host_blocks)


@pytest.mark.parametrize(("name", "admission"), _pairs())
@given(drawn=_DRAWN, is_known=st.booleans(), num_host_blocks=st.sampled_from([0, 5, _NUM_HOST_BLOCKS]))
@settings(max_examples=25)
def test_every_request_gets_its_tokens_and_every_batch_is_right(
    name, admission, drawn, is_known, num_host_blocks
):
    """`Checked` checks every batch; a request that is refused, or is cut, is one that is longer than the cache."""
    instance = _instance(name, admission, num_host_blocks)
    results = instance.run(
        _requests(drawn, is_known), next_token=(lambda each: each.number % 2) if is_known else None
    )
    wanted = {
        f"r{number}": tuple(min(output, _MOST - len(prompt)) for output in outputs)
        for number, (_, prompt, outputs, *_) in enumerate(drawn)
    }
    assert {each.request.name: each.by_sample or (each.output_tokens,) for each in results.served} == wanted
    assert all(each.output_tokens == sum(wanted[each.request.name]) for each in results.served)
    for each in results.served:
        assert each.request.arrival_s <= each.scheduled_s < each.first_token_s <= each.finished_s


@pytest.mark.parametrize("name", sorted(_POLICIES))
def test_the_same_requests_give_the_same_batches(name):
    drawn = [
        (0.01, [number % 2] * (5 * number + 1), (20 + number,) * (number % 3 + 1), "ab"[number % 2], True)
        for number in range(10)
    ]
    first, second = (_instance(name) for _ in range(2))
    first.run(_requests(drawn, True), next_token=lambda each: each.number)
    second.run(_requests(drawn, True), next_token=lambda each: each.number)
    assert first.batches == second.batches
    assert len(first.batches) > 20


@pytest.mark.parametrize(("name", "admission"), _pairs())
@given(drawn=_DRAWN)
@settings(max_examples=25)
def test_a_batch_is_repeated_only_where_it_would_be_decided_again(name, admission, drawn):
    """Times, blocks and all else are those of a run in which every step is decided by itself."""
    runs = [_instance(name, admission) for _ in range(2)]
    repeated, single = (
        each.run(_requests(drawn, False), one_by_one=one_by_one)
        for each, one_by_one in zip(runs, [False, True], strict=True)
    )
    assert repeated == single
    items, ops = ([_flat(each.batches, what) for each in runs] for what in ("items", "ops"))
    assert items[0] == items[1]
    assert ops[0] == ops[1]


@pytest.mark.parametrize("eviction", [LeastRecentlyUsed, UnkeyedFirst])
@pytest.mark.parametrize("name", sorted(_POLICIES))
@given(drawn=_DRAWN, num_stages=st.integers(1, 3), prefix_caching=st.booleans())
@settings(max_examples=15)
def test_pipelines_and_other_caches_serve_all(name, eviction, drawn, num_stages, prefix_caching):
    more = {"num_stages": num_stages, "prefix_caching": prefix_caching, "eviction": eviction}
    instance = Checked(_POLICIES[name](), _NUM_BLOCKS, _BLOCK_TOKENS, _NUM_HOST_BLOCKS, **more)
    results = instance.run(_requests(drawn, True), next_token=lambda each: 1)
    assert sorted(each.request.name for each in results.served) == sorted(
        f"r{number}" for number in range(len(drawn))
    )


def _flat(batches: list[Batch], what: str) -> list[tuple[object, ...]]:
    """All items, or all operations block by block, in order."""
    if what == "ops":
        return [
            (op.kind, op.request, *pair)
            for each in batches
            for op in each.cache_ops
            for pair in zip_longest(op.blocks, op.to)
        ]
    return [
        (item.request, item.start + step, item.stop + step)
        for each in batches
        for step in range(each.repeat)
        for item in each.items
    ]


def test_batches_of_decodes_are_repeated():
    instance = Checked(vllm(64, 8), _NUM_BLOCKS, _BLOCK_TOKENS)
    instance.run([request(0, 0.0, 9, 30), request(1, 0.0, 5, 20), request(2, 0.05, 5, 1)])
    done = [(each.repeat, len(each.items)) for each in instance.batches if each.items]
    assert done == [(1, 2), (8, 2), (1, 3), (10, 2), (10, 1)]


def test_a_batch_is_repeated_as_often_as_there_are_blocks_for_it():
    instance = Checked(vllm(64, 8), 4, _BLOCK_TOKENS)
    instance.run([request(0, 0.0, 9, 7)])
    assert [each.repeat for each in instance.batches if each.items] == [1, 6]


@pytest.mark.parametrize("name", sorted(_POLICIES))
def test_a_prompt_that_is_longer_than_the_cache_is_refused(name):
    instance = Checked(_POLICIES[name](), _NUM_BLOCKS, _BLOCK_TOKENS)
    results = instance.run([request(0, 0.0, _MOST, 5), request(1, 0.0, _MOST - 1, 5)])
    (refused,) = results.refused
    assert refused.request.name == "r0"
    assert refused.why == f"a prompt of {_MOST} tokens; prompt and answer have at most {_MOST}"
    assert [each.output_tokens for each in results.served] == [1]
