"""TensorRT-LLM's schedulers, by the rules of the program; cases computed by hand, in blocks of one token."""

from __future__ import annotations

import pytest
from served import Checked, request

from trainyard.serve.errors import ServeError
from trainyard.serve.policies.trtllm import TensorRTLLM


def _steps(instance: Checked) -> list[list[tuple[int, int, int]]]:
    """Items of every step, in the order of requests."""
    return [
        sorted((item.request, item.start + step, item.stop + step) for item in batch.items)
        for batch in instance.batches
        for step in range(batch.repeat)
        if batch.items
    ]


def test_decodes_and_whole_prompts_share_the_tokens_of_a_step():
    """10 tokens: 4 + 7 are too many; a decode and 7 are not; with 3 of the third prompt they are."""
    instance = Checked(TensorRTLLM(max_batch_tokens=10), 100, 1)
    instance.run([request(0, 0.0, 4, 4, 4), request(1, 0.0, 7, 2, 2), request(2, 0.0, 3, 1, 1)])
    assert _steps(instance) == [
        [(0, 0, 4)],
        [(0, 4, 5), (1, 0, 7)],
        [(0, 5, 6), (1, 7, 8), (2, 0, 3)],
        [(0, 6, 7)],
    ]


def test_prompts_are_cut_at_a_multiple_of_a_block_where_that_is_enabled():
    """Blocks of 4: of the 7 tokens that are left, 4 are computed; of 9, 8 are."""
    instance = Checked(TensorRTLLM(max_batch_tokens=10, chunked_prefill=True), 100, 4)
    instance.run([request(0, 0.0, 3, 4, 4), request(1, 0.0, 20, 1, 1)])
    assert _steps(instance) == [
        [(0, 0, 3), (1, 0, 4)],
        [(0, 3, 4), (1, 4, 12)],
        [(0, 4, 5), (1, 12, 20)],
        [(0, 5, 6)],
    ]


def test_decodes_come_before_prompts_that_have_begun():
    """Blocks of 4, 7 tokens: after 4, r0 has 7 left, which would be all of a step; r1 decodes first, and 4 go on."""
    instance = Checked(TensorRTLLM(max_batch_tokens=7, chunked_prefill=True), 100, 4)
    instance.run([request(0, 0.0, 11, 1, 1), request(1, 0.0, 3, 3, 3)])
    assert _steps(instance) == [
        [(0, 0, 4), (1, 0, 3)],
        [(0, 4, 8), (1, 3, 4)],
        [(0, 8, 11), (1, 4, 5)],
    ]


def test_a_prompt_that_no_step_has_room_for_is_refused():
    instance = Checked(TensorRTLLM(max_batch_tokens=10), 100, 1)
    results = instance.run(
        [request(0, 0.0, 11, 1), request(1, 0.0, 10, 2), request(2, 0.0, 11, (3, 1), num_samples=2)]
    )
    assert [each.request.name for each in results.refused] == ["r0", "r2"]
    assert results.refused[0].why == (
        "a prompt of 11 tokens; a step has at most 10, and prompts are not cut; set chunked_prefill=True, or a larger "
        "max_batch_tokens"
    )
    assert [each.request.name for each in results.served] == ["r1"]


def test_no_request_is_paused_where_blocks_are_guaranteed_and_one_waits_though_blocks_are_free():
    """Each may need 4 + 6 of 20 blocks. The third waits until the first ends, after 2 of its tokens."""
    requests = [request(0, 0.0, 4, 2, 6), request(1, 0.0, 4, 6, 6), request(2, 0.0, 4, 6, 6)]
    instance = Checked(TensorRTLLM(), 20, 1)
    results = instance.run(requests)
    assert not any(each.num_preemptions for each in results.served)
    assert _steps(instance)[:3] == [
        [(0, 0, 4), (1, 0, 4)],
        [(0, 4, 5), (1, 4, 5)],
        [(1, 5, 6), (2, 0, 4)],
    ]
    with_room = Checked(TensorRTLLM(), 30, 1)
    with_room.run(requests)
    assert _steps(with_room)[0] == [(0, 0, 4), (1, 0, 4), (2, 0, 4)]
    too_small = Checked(TensorRTLLM(), 29, 1)
    too_small.run(requests)
    assert _steps(too_small)[0] == [(0, 0, 4), (1, 0, 4)]


def test_the_last_request_is_paused_where_utilization_is_highest():
    """14 blocks: both prompts and three steps of decodes. Then the second is paused, and begins again after the first.

    It has 4 tokens of its answer then, so it needs 8 blocks, where 14 - 8 = 6 are free.
    """
    instance = Checked(TensorRTLLM(capacity="max_utilization"), 14, 1, prefix_caching=False)
    results = instance.run([request(0, 0.0, 4, 6, 6), request(1, 0.0, 4, 6, 6), request(2, 0.0, 1, 1, 1)])
    assert {each.request.name: each.num_preemptions for each in results.served} == {"r0": 0, "r1": 1, "r2": 0}
    steps = _steps(instance)
    assert steps[0] == [(0, 0, 4), (1, 0, 4), (2, 0, 1)]
    assert steps[3:7] == [
        [(0, 6, 7), (1, 6, 7)],
        [(0, 7, 8)],
        [(0, 8, 9)],
        [(1, 0, 8)],
    ]


def test_a_paused_request_goes_before_those_that_wait():
    """The third needs one block, and more are free; it waits behind the paused one."""
    instance = Checked(TensorRTLLM(capacity="max_utilization", max_requests=2), 14, 1, prefix_caching=False)
    instance.run([request(0, 0.0, 4, 6, 6), request(1, 0.0, 4, 6, 6), request(2, 0.0, 1, 1, 1)])
    assert _steps(instance)[4:7] == [[(0, 7, 8)], [(0, 8, 9)], [(1, 0, 8), (2, 0, 1)]]


def test_an_unknown_capacity_is_refused():
    with pytest.raises(
        ServeError, match="capacity is 'most'; allowed is one of 'guaranteed_no_evict', 'max_utiliz"
    ):
        TensorRTLLM(capacity="most")  # type: ignore[arg-type]
