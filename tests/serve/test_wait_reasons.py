"""Why requests wait: what policies say, and what is seen of it."""

from __future__ import annotations

import pytest

from trainyard.serve.batch import Batch, WaitReason
from trainyard.serve.cache.block_cache import BlockCache
from trainyard.serve.catalog import parse_policies
from trainyard.serve.instance import Instance
from trainyard.serve.request_timeline import RequestSteps, RequestTimeline, TimelineRecordingInstance
from trainyard.serve.requests.request import Request, TracedRequest
from trainyard.serve.simulate_requests import simulate_requests
from trainyard.serve.step_time import LinearStepTime

_STEP_TIME = LinearStepTime(1.0, 0.0, 0.0)


def _requests(*sizes: tuple[int, int]) -> list[TracedRequest]:
    return [
        TracedRequest(Request(str(i), 0.0, prompt, 64), output) for i, (prompt, output) in enumerate(sizes)
    ]


def _first_reason(policy: str, requests: list[TracedRequest], num_blocks: int = 100) -> str:
    [(_, made)] = parse_policies(policy)
    seen: list[Batch] = []
    instance = Instance(made, BlockCache(num_blocks, 16))
    simulate_requests(requests, [instance], _STEP_TIME, seen=lambda n, s, batch: seen.append(batch))
    return str(next((each.wait_reason for each in seen if each.wait_reason is not None), "nobody waits"))


_TWO, _THREE = ((20, 4), (20, 4)), ((20, 4), (20, 4), (20, 4))


@pytest.mark.parametrize(
    ("policy", "sizes", "num_blocks", "why"),
    [
        ("vllm", _TWO, 100, "nobody waits"),
        ("vllm(max_requests=2)", _THREE, 100, "the limit of running requests is reached: 2"),
        ("vllm(max_batch_tokens=30)", _THREE, 100, "the step's budget of 30 tokens is spent"),
        ("vllm", _THREE, 5, "the next request needs more blocks of the KV cache than are free: 2 and 1"),
        ("vllm_v0(max_requests=2)", _THREE, 100, "the limit of running requests is reached: 2"),
        ("vllm_v0(max_batch_tokens=30)", _THREE, 100, "the step's budget of 30 tokens is spent"),
        ("vllm_v0", _THREE, 5, "the next request needs more blocks of the KV cache than are free: 2 and 1"),
        ("sarathi(chunk_tokens=20)", _TWO, 100, "the step's budget of 20 tokens is spent"),
        ("orca(max_requests=2)", _THREE, 100, "the limit of running requests is reached: 2"),
        ("orca", _TWO, 9, "the next request needs more blocks of the KV cache than are free: 6 and 3"),
        ("vllm", ((31, 40), (31, 40)), 5, "blocks ran out, and a running request was preempted"),
    ],
)
def test_every_reason_is_said(policy, sizes, num_blocks, why):
    assert _first_reason(policy, _requests(*sizes), num_blocks) == why


def test_a_reason_is_formatted_when_it_is_shown_and_no_part_of_a_decision():
    reason = WaitReason("needs {} of {}", (3, 2))
    assert str(reason) == "needs 3 of 2"
    assert Batch(wait_reason=reason) == Batch()
    assert str(Batch(wait_reason=reason)).endswith("others wait: needs 3 of 2")


@pytest.mark.parametrize("text", ["{} {} {}", "{blocks}", "{0.free}", "{:d}", "{", 7])
def test_a_reason_that_cannot_be_formatted_is_shown_as_it_is(text):
    assert str(WaitReason(text, (0.5,))) == f"{text} (0.5,)"


def test_a_request_that_is_followed_knows_why_it_waited():
    """The first one runs alone for four steps, since one may; the second one comes while a step is running."""
    [(_, policy)] = parse_policies("vllm(max_requests=1)")
    requests = [
        TracedRequest(Request("first", 0.0, 20, 64), 4),
        TracedRequest(Request("second", 0.5, 20, 64), 2),
    ]
    steps = RequestSteps("second")
    results = simulate_requests(
        requests, [TimelineRecordingInstance(steps, policy, BlockCache(100, 16))], _STEP_TIME
    )
    served = next(each for each in results.served if each.request.name == "second")
    found = RequestTimeline(served, tuple(steps.spans), tuple(steps.preempted_s), tuple(steps.wait_reasons))
    assert [tuple(each) for each in found.waits] == [
        (0.5, 1.0, "a step is running"),
        (1.0, 4.0, "the limit of running requests is reached: 1"),
    ]


def test_while_others_are_prefilled_a_request_that_runs_is_not_in_the_step():
    [(_, policy)] = parse_policies("vllm_v0")
    requests = [
        TracedRequest(Request("first", 0.0, 20, 64), 4),
        TracedRequest(Request("second", 1.5, 20, 64), 2),
    ]
    steps = RequestSteps("first")
    results = simulate_requests(
        requests, [TimelineRecordingInstance(steps, policy, BlockCache(100, 16))], _STEP_TIME
    )
    served = next(each for each in results.served if each.request.name == "first")
    found = RequestTimeline(served, tuple(steps.spans), tuple(steps.preempted_s), tuple(steps.wait_reasons))
    assert [tuple(each) for each in found.waits] == [(2.0, 3.0, "the step is of other requests")]


def test_a_second_wait_has_reasons_of_its_own():
    """The second request waits for room, runs, loses its blocks to the first one, and then waits for more of them."""
    [(_, policy)] = parse_policies("vllm_v0")
    requests = _requests((20, 3), (30, 40), (30, 40))
    steps = RequestSteps("2")
    results = simulate_requests(
        requests, [TimelineRecordingInstance(steps, policy, BlockCache(5, 16))], _STEP_TIME
    )
    served = next(each for each in results.served if each.request.name == "2")
    found = RequestTimeline(served, tuple(steps.spans), tuple(steps.preempted_s), tuple(steps.wait_reasons))
    assert len(steps.preempted_s) == 1
    text = "the next request needs more blocks of the KV cache than are free: {} and {}"
    assert [tuple(each) for each in found.waits] == [
        (0.0, 3.0, text.format(2, 1)),
        (6.0, 7.0, "its blocks went to other requests"),
        (7.0, 41.0, text.format(3, 2)),
    ]
