"""What a plan refuses has the true reason: the context, the KV cache, or an objective, and by how much."""

from __future__ import annotations

import pytest
from served import request
from splits_of_tests import drawn, split_of

from trainyard.report.serve_plan import verdict
from trainyard.serve.errors import ServeError
from trainyard.serve.planning.objectives import Shortfall, results_if_met
from trainyard.serve.planning.plan import plan_serving
from trainyard.serve.planning.reasons import missed_objectives
from trainyard.serve.policies.vllm import vllm
from trainyard.serve.policy_choices import given_choices
from trainyard.serve.requests.change import with_objectives
from trainyard.serve.requests.request import Request, TracedRequest
from trainyard.serve.results import Results
from trainyard.serve.router import router_of
from trainyard.serve.splits import possible_splits

VLLM = given_choices("vllm")


def of_lengths(*lengths: tuple[int, int]) -> list[TracedRequest]:
    """Requests a second apart, of so many prompt and output tokens."""
    return [
        TracedRequest(Request(f"r{n}", 1.0 * n, prompt, 2000, ttft_s=10.0), output)
        for n, (prompt, output) in enumerate(lengths)
    ]


def test_answers_longer_than_the_context_are_refused_as_such() -> None:
    long = of_lengths(*[(3000, 1500)] * 10)
    with pytest.raises(
        ServeError,
        match=r"10 of 10 requests have up to 4,500 tokens with their answers, .* at most 4,096 tokens",
    ):
        plan_serving(long, split_of(), 1, VLLM)
    few = of_lengths((3000, 1500), *[(100, 20)] * 150)
    assert plan_serving(few, split_of(), 1, VLLM).is_met  # 0.7 % are cut


def test_a_cache_that_is_too_small_for_the_answers_is_told() -> None:
    """A replica of two devices has room for them."""
    requests = of_lengths(*[(1500, 400)] * 20)
    room = 17e9 + 1600 * 2**20  # weights, activations, and a KV cache of 1,600 tokens
    plan = plan_serving(requests, split_of(usable_bytes=room), 4, VLLM, node_size=4)
    assert plan.is_met
    assert plan.deployment.model.num_devices == 2
    assert plan.summary.num_cut == 0
    alone = plan_serving(requests, split_of(num_heads=1, usable_bytes=room), 1, VLLM)
    assert not alone.is_met
    (why,) = [each.why for each in alone.excluded_splits]
    assert why == "the KV cache has room for 1,600 tokens, and 20 of 20 requests need more with their answers"
    assert "its KV cache cuts answers of 20 requests at 1,600 tokens" in verdict(alone)


def test_a_limit_of_the_user_cuts_answers_and_is_no_reason() -> None:
    plan = plan_serving(of_lengths(*[(1500, 400)] * 20), split_of(), 1, VLLM, max_model_len=1600)
    assert plan.is_met
    assert plan.summary.num_cut == 20


def test_the_objective_that_is_missed_is_named_with_the_factor_that_would_do() -> None:
    requests = drawn(60, 5.0, ttft_s=1.0, tpot_s=0.001)
    plan = plan_serving(requests, split_of(), 8, VLLM, node_size=4)
    results = plan.runs[0].results
    (missed,) = missed_objectives(results, 0.99)
    assert missed.name == "TPOT"
    assert f"TPOT is met by {100 * missed.share_met:.1f} % of the requests, and would have to be" in verdict(
        plan
    )
    longer = [
        with_objectives(each, ttft_s=1.0, tpot_s=0.001 * missed.factor * 1.0001) for each in drawn(60, 5.0)
    ]
    shorter = [
        with_objectives(each, ttft_s=1.0, tpot_s=0.001 * missed.factor * 0.98) for each in drawn(60, 5.0)
    ]
    place, policy = plan.deployment, plan.best.choice.policy
    router = router_of(plan.best.router)
    assert isinstance(results_if_met(longer, place, policy, 0.99, router), Results)
    assert not isinstance(results_if_met(shorter, place, policy, 0.99, router), Results)


def test_requests_that_are_refused_meet_no_objective() -> None:
    requests = of_lengths(*[(100, 20)] * 8, *[(5000, 20)] * 2)
    place = possible_splits(split_of(), 1, 1)[0][0].deployment(1)
    results = results_if_met(requests, place, vllm(), 0.5)
    assert isinstance(results, Results)
    (missed,) = missed_objectives(results, 0.9)
    assert (missed.name, missed.share_met, missed.factor) == ("TTFT", 0.8, float("inf"))
    assert str(missed) == "TTFT is met by 80.0 % of the requests"
    assert results_if_met(requests, place, vllm(), 0.9) is Shortfall.REQUESTS


def test_a_simulation_ends_at_the_deadline_of_what_still_decodes() -> None:
    """Of one request whose tokens come too slowly, no more than its deadline is simulated."""
    steps = []

    def place_of(step_s: float):  # type: ignore[no-untyped-def]
        return possible_splits(split_of(step_s=step_s), 1, 1)[0][0].deployment(1)

    slow = [with_objectives(request(n, 0.5 * n, 50, 400), tpot_s=0.02) for n in range(40)]
    place = place_of(0.04)
    seen = place.model.step_time.seconds

    def counted(items, requests):  # type: ignore[no-untyped-def]
        steps.append(len(items))
        return seen(items, requests)

    object.__setattr__(place.model.step_time, "seconds", counted)
    assert results_if_met(slow, place, vllm(), 1.0) is Shortfall.FURTHER_TOKENS
    assert max(steps) < 40  # it ended before all had come
