"""A plan has the fewest devices that meet the objectives, and says what keeps fewer from it."""

from __future__ import annotations

import re
from dataclasses import asdict
from itertools import pairwise, product

import pytest
from served import request
from splits_of_tests import drawn, split_of

from trainyard.report.serve_plan import plan_facts, verdict
from trainyard.serve.auto import tried
from trainyard.serve.deployment import ServedModel
from trainyard.serve.errors import DoesNotFitError, ServeError
from trainyard.serve.planning.bottlenecks import ScaledStepTime
from trainyard.serve.planning.frontier import frontier, steady_states
from trainyard.serve.planning.objectives import results_if_met
from trainyard.serve.planning.plan import ServingPlan, plan_serving
from trainyard.serve.planning.search import order_of
from trainyard.serve.policies.vllm import vllm
from trainyard.serve.policy_choices import catalog_choices, given_choices
from trainyard.serve.requests.change import with_objectives
from trainyard.serve.requests.request import Request, TracedRequest
from trainyard.serve.results import Results
from trainyard.serve.router import router_of
from trainyard.serve.simulate_requests import simulate_requests
from trainyard.serve.splits import possible_splits
from trainyard.serve.step_time import LinearStepTime
from trainyard.serve.summary import Summary

CHOICES = given_choices("vllm, sarathi(chunk_tokens=256), vllm_v0")
WANTED = {"ttft_s": 0.3, "tpot_s": 0.02}


def goodput_of(requests, place, choice, router="least_requests"):
    results = simulate_requests(
        requests, place.instances(choice.policy), place.model.step_time, router_of(router)
    )
    return Summary.of(results, place.num_replicas).slo_attainment


def all_met(requests, split, choices, most, share=0.95):
    """Every deployment on at most so many devices that meets the objectives, best first: all simulated to their ends."""
    met = []
    for each in possible_splits(split, 8, 4)[0]:
        for num in range(1, most // each.model.num_devices + 1):
            routers = ["least_requests", *(f"prefill_decode(prefill_replicas={k})" for k in range(1, num))]
            for choice, router in product(choices, routers):
                met.append(tried(requests, each.deployment(num), choice, router))
    met = [each for each in met if each.summary is not None and each.summary.share_met >= share - 1e-9]
    return sorted(met, key=order_of)


@pytest.mark.parametrize(
    ("rate", "seed", "wanted", "prompt", "found", "router"),
    [
        (10.0, 0, WANTED, 400.0, "1 replica of made", "least_requests"),
        (40.0, 2, {"ttft_s": 0.2, "tpot_s": 0.006}, 400.0, "1 replica of made with tp 4", "least_requests"),
        (120.0, 3, WANTED, 400.0, "4 replicas of made", "prefill_decode(prefill_replicas=3)"),
    ],
)
def test_a_plan_is_the_best_of_all_deployments(rate, seed, wanted, prompt, found, router):
    """Of all splits, numbers of replicas, ratios of prefill to decode, and policies; no simulation ends early there."""
    requests = drawn(120, rate, seed, prompt, **wanted)
    plan = plan_serving(requests, split_of(), 8, CHOICES, node_size=4, share=0.95)
    first = all_met(requests, split_of(), CHOICES, plan.deployment.num_devices)[0]
    assert plan.is_met
    assert (str(plan.deployment), plan.best.router) == (found, router)
    assert str(first) == str(plan.best)
    assert order_of(first) == order_of(plan.best)
    assert plan.summary.e2e == plan.best.summary.e2e
    for each in plan.runners_up:
        assert each.summary is not None
        assert each.deployment.num_devices >= plan.deployment.num_devices
        again = goodput_of(requests, each.deployment, each.choice, each.router)
        assert each.summary.slo_attainment == again >= 0.95


def test_more_requests_never_need_fewer_devices():
    found = [
        plan_serving(
            drawn(150, rate, **WANTED), split_of(), 8, CHOICES, node_size=4, share=0.95
        ).deployment.num_devices
        for rate in (5.0, 20.0, 40.0, 60.0)
    ]
    assert found == sorted(found)
    assert found[0] < found[-1]


def test_options_are_changed_where_that_saves_devices():
    """Steps of few tokens keep decodes from waiting for prompts."""
    wanted = {"ttft_s": 1.0, "tpot_s": 0.025}
    requests = drawn(150, 25.0, prompt=800.0, **wanted)
    coarse = given_choices("vllm_v0, orca")
    as_they_are = plan_serving(requests, split_of(), 8, coarse, node_size=4)
    changed = plan_serving(requests, split_of(), 8, catalog_choices(()), node_size=4)
    assert changed.deployment.num_devices < as_they_are.deployment.num_devices
    assert re.search(r"\w+\(\w+=\d+", changed.policy)
    (found,) = given_choices(changed.policy)
    assert found.policy == changed.best.choice.policy


def test_what_no_number_of_devices_meets_is_told():
    requests = drawn(60, 5.0, ttft_s=1.0, tpot_s=0.001)
    plan = plan_serving(requests, split_of(), 8, CHOICES, node_size=4)
    assert not plan.is_met
    assert plan.closest is plan.best
    assert not plan.runners_up
    splits, _ = possible_splits(split_of(), 8, 4)
    told = {str(each): each.why for each in plan.excluded_splits}
    for each in splits:
        assert "even if each request is served alone, only" in told[str(each)]
        assert "TPOT" in told[str(each)]
    assert {each.name for each in plan.bottlenecks} == {
        "prefill compute",
        "decode speed",
        "KV cache size",
        "queueing",
    }


def test_requests_that_are_all_refused_are_told():
    plan = plan_serving(drawn(60, 5.0, ttft_s=1.0), split_of(), 4, given_choices("vllm"), max_model_len=10)
    assert not plan.is_met
    why = "all 60 requests are refused; the first: a prompt of "
    assert why in verdict(plan)
    assert {each.why.partition(why)[:2] for each in plan.excluded_splits} == {
        ("even if each request is served alone, ", why)
    }


def test_a_time_that_no_request_has_is_not_told():
    requests = [TracedRequest(Request(f"{i}", float(i), 100, 1, ttft_s=1e-6), 1) for i in range(5)]
    plan = plan_serving(requests, split_of(), 1, given_choices("vllm"))
    (excluded,) = plan.excluded_splits
    assert "alone, only 0.0 % of the requests meet their objectives; TTFT p50 " in excluded.why
    assert "TPOT" not in excluded.why


def test_too_few_devices_are_told():
    requests = drawn(150, 20.0, **WANTED)
    plan = plan_serving(requests, split_of(), 1, CHOICES)
    assert not plan.is_met
    assert plan.deployment.num_devices == 1
    assert 0 < plan.summary.slo_attainment < 0.99
    assert [each.why for each in plan.excluded_splits] == [
        "fewer than 99.0 % meet their objectives on 1 device"
    ]


def bound(plan: ServingPlan) -> str:
    return plan.bottlenecks[0].name


def test_what_bounds_is_what_helps():
    def planned(requests: list[TracedRequest], **more: float) -> ServingPlan:
        return plan_serving(requests, split_of(**more), 1, given_choices("vllm"))

    prompts = [with_objectives(request(n, 0.09 * n, 1500, 2), ttft_s=0.2) for n in range(60)]
    assert bound(planned(prompts)) == "prefill compute"
    decodes = [with_objectives(request(n, 0.05 * n, 10, 300), tpot_s=7.5e-3) for n in range(60)]
    assert bound(planned(decodes)) == "decode speed"
    at_once = [with_objectives(request(n, 4.0 * (n // 4), 1500, 2), ttft_s=0.2) for n in range(40)]
    assert bound(planned(at_once)) == "queueing"
    # Room for two sequences of at most 1000 tokens and what they may generate.
    crowded = [with_objectives(request(n, 1.0 * n, 900, 300), ttft_s=1.0) for n in range(30)]
    assert bound(planned(crowded, usable_bytes=17e9 + 2600 * 2**20)) == "KV cache size"


def test_prompts_longer_than_the_context_are_refused_as_such():
    long = [with_objectives(request(n, 1.0 * n, 130_000, 20), ttft_s=10.0) for n in range(10)]
    with pytest.raises(
        ServeError, match=r"10 of 10 requests .* up to 130,000 tokens; made supports .* 4,096 tokens"
    ):
        plan_serving(long, split_of(), 1, given_choices("vllm"))
    short = [with_objectives(request(n, 1.0 * n, 100, 20), ttft_s=10.0) for n in range(10, 200)]
    plan = plan_serving([*long[:1], *short], split_of(), 1, given_choices("vllm"))  # 99.5 % can be served
    assert plan.is_met


def test_where_no_change_gains_anything_no_bottleneck_is_named():
    hopeless = [TracedRequest(Request(f"{i}", float(i), 100, 2, ttft_s=1e-6), 2) for i in range(5)]
    plan = plan_serving(hopeless, split_of(), 1, given_choices("vllm"))
    assert {each.slo_attainment for each in plan.bottlenecks} == {0.0}
    assert plan.bottleneck is None
    assert (
        dict(plan_facts(plan))["bottleneck"] == "none of those examined: no improvement helps more requests"
    )


def test_splits_that_cannot_be_are_refused_with_why():
    splits, refused = possible_splits(split_of(num_heads=2, usable_bytes=10e9), 8, 4)
    assert [str(each) for each in splits] == ["tp 2", "tp 1, pp 2", "tp 2, pp 2", "tp 1, pp 4", "tp 2, pp 4"]
    assert [each.max_replicas for each in splits] == [4, 4, 2, 2, 1]
    why = {str(each): each.why for each in refused}
    assert why.keys() == {"tp 1", "tp 4", "tp 4, pp 2"}
    assert "does not fit: a device has 10 GB for weights of 16 GB" in why["tp 1"]
    assert why["tp 4"].startswith("2 heads do not divide by 4 shards")
    assert {str(each): each.is_memory_short for each in refused} == {
        "tp 1": True, "tp 4": False, "tp 4, pp 2": False,
    }  # fmt: skip


def test_only_what_lacks_memory_does_not_fit():
    """Bad input is another error than a cluster that is too small."""

    def no_split(*shape):
        raise ServeError("made is no language model")

    requests = drawn(5, 1.0, **WANTED)
    with pytest.raises(DoesNotFitError, match="does not fit"):
        plan_serving(requests, split_of(usable_bytes=1e9), 1, CHOICES)
    with pytest.raises(DoesNotFitError, match="tokens of the KV cache"):
        plan_serving(requests, split_of(usable_bytes=17.1e9), 1, CHOICES, max_model_len=3000)
    for given, said in (
        ({"max_model_len": 1}, "max_model_len 1; allowed is 2 or more"),
        ({"max_model_len": 5000}, "max_model_len 5"),
        ({"split": no_split}, "made is no language model"),
    ):
        with pytest.raises(ServeError, match=said) as error:
            plan_serving(
                **{"requests": requests, "split": split_of(), "num_devices": 1, "choices": CHOICES, **given}
            )
        assert not isinstance(error.value, DoesNotFitError)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"share": 0.0}, "share 0.0; allowed is a number above 0, up to 1"),
        ({"node_size": 3}, "8 devices in nodes of 3"),
        ({"choices": ()}, "there is no policy to choose"),
        ({"requests": drawn(5, 1.0)}, "give an objective, such as --ttft 500ms"),
        ({"requests": []}, "give an objective"),
        ({"split": split_of(usable_bytes=1e9)}, "the model fits nowhere: tp 1: made with tp 1 does not fit"),
    ],
)
def test_what_cannot_be_planned_is_refused(more, said):
    given = {
        "requests": drawn(5, 1.0, **WANTED), "split": split_of(), "num_devices": 8, "choices": CHOICES, **more,
    }  # fmt: skip
    with pytest.raises(ServeError, match=re.escape(said)):
        plan_serving(**given)


@pytest.mark.parametrize("share", [0.5, 0.9, 1.0])
@pytest.mark.parametrize("rate", [5.0, 12.0, 15.0, 60.0])
def test_a_run_is_broken_off_only_where_too_many_miss_their_objectives(rate, share):
    requests = drawn(80, rate, seed=4, **WANTED)
    requests.append(with_objectives(request(80, 100.0, 5000, 5), **WANTED))  # too long: it is refused
    splits, _ = possible_splits(split_of(), 1, 1)
    place = splits[0].deployment(1)
    whole = simulate_requests(requests, place.instances(vllm()), place.model.step_time)
    is_met = Summary.of(whole, 1).slo_attainment >= share
    found = results_if_met(requests, place, vllm(), share)
    assert isinstance(found, Results) == is_met
    if isinstance(found, Results):
        assert found.served == whole.served


def test_the_frontier_is_what_no_other_point_is_better_than():
    requests = drawn(50, 5.0)
    splits, _ = possible_splits(split_of(), 4, 4)
    points = [point for each in splits for point in steady_states(each, requests)]
    best = frontier(points)
    assert len(best) > 5
    for each in points:
        others = [
            other
            for other in best
            if other.user_tokens_per_s >= each.user_tokens_per_s
            and other.device_tokens_per_s >= each.device_tokens_per_s
        ]
        assert others
        assert others == [each] or each not in best
    for split in splits:
        mine = steady_states(split, requests)
        room = split.num_blocks * split.block_tokens
        assert all(a.user_tokens_per_s > b.user_tokens_per_s for a, b in pairwise(mine))
        assert mine[-1].num_requests * 440 <= room * 1.2


def test_a_steady_state_is_what_the_simulator_comes_to():
    """Eight requests at once, and one more for each that ends."""
    splits, _ = possible_splits(split_of(), 1, 1)
    requests = [request(n, 0.0, 400, 50) for n in range(400)]
    place = splits[0].deployment(1)
    results = simulate_requests(requests, place.instances(vllm(8192, 8)), place.model.step_time)
    (point,) = [each for each in steady_states(splits[0], requests) if each.num_requests == 8]
    assert Summary.of(results, 1).tokens_per_s == pytest.approx(point.device_tokens_per_s, rel=0.03)


def test_steps_are_scaled_by_what_is_in_them():
    model: ServedModel = split_of()(1, 1)
    requests = [request(n, 0.01 * n, 300, 50) for n in range(40)]
    splits, _ = possible_splits(split_of(), 1, 1)

    def end_s(step_time):
        place = splits[0].deployment(1)
        return simulate_requests(requests, place.instances(vllm(256)), step_time).end_s

    base = model.step_time
    assert isinstance(base, LinearStepTime)
    assert end_s(ScaledStepTime(base, 1.0, 1.0)) == pytest.approx(end_s(base))
    assert end_s(ScaledStepTime(base, 0.5, 1.0)) < end_s(base)
    halved = LinearStepTime(**{name: value / 2 for name, value in asdict(base).items()})
    alone = [request(0, 0.0, 300, 50)]
    place = splits[0].deployment(1)
    both = [
        simulate_requests(alone, place.instances(vllm()), each).end_s
        for each in (ScaledStepTime(base, 0.5, 0.5), halved)
    ]
    assert both[0] == pytest.approx(both[1])
