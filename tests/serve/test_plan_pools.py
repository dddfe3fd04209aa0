"""Replicas for prompts and others for decodes: both numbers are found as if every ratio were simulated."""

from __future__ import annotations

from itertools import product

import pytest
from splits_of_tests import drawn, split_of

from trainyard.serve.auto import tried
from trainyard.serve.errors import ServeError
from trainyard.serve.planning.fewest_replicas import smallest_pools
from trainyard.serve.planning.objectives import Shortfall, results_if_met
from trainyard.serve.planning.plan import plan_serving
from trainyard.serve.planning.trials import order_of, pools_of
from trainyard.serve.policies.vllm import vllm
from trainyard.serve.policy_choices import given_choices
from trainyard.serve.results import Results
from trainyard.serve.router import PrefillDecode, router_of
from trainyard.serve.splits import possible_splits

CHOICES = given_choices("vllm, sarathi(chunk_tokens=256)")


@pytest.mark.parametrize(("need_prefill", "need_decode"), [(1, 1), (1, 4), (3, 1), (3, 2), (5, 4)])
def test_pools_are_the_fewest_that_are_enough(need_prefill: int, need_decode: int) -> None:
    """Where each kind needs so many replicas; one that lacks both is told of either."""
    asked = []

    def judged(prefill: int, decode: int) -> tuple[int, int] | Shortfall:
        asked.append((prefill, decode))
        if prefill < need_prefill:
            return Shortfall.FIRST_TOKENS
        return Shortfall.FURTHER_TOKENS if decode < need_decode else (prefill, decode)

    assert smallest_pools(judged, 9) == [(need_prefill, need_decode)]
    assert len(asked) <= need_prefill + need_decode
    assert len(asked) == len(set(asked))
    assert smallest_pools(judged, need_prefill + need_decode - 1) == []


def test_ratios_whose_shortfall_has_no_single_cause_are_all_tried() -> None:
    def judged(prefill: int, decode: int) -> tuple[int, int] | Shortfall:
        return (prefill, decode) if prefill * decode >= 6 else Shortfall.REQUESTS

    assert smallest_pools(judged, 6) == [(2, 3), (3, 2)]


@pytest.mark.parametrize(
    ("prompt", "objectives", "found", "router"),
    [
        (600.0, {"ttft_s": 0.3, "tpot_s": 0.01}, "4 replicas of made", "prefill_decode(prefill_replicas=3)"),
        (50.0, {"ttft_s": 0.5, "tpot_s": 0.03}, "1 replica of made", "least_requests"),
    ],
    ids=["long prompts, short TPOT", "short prompts, long TPOT"],
)
def test_separate_pools_win_where_prompts_keep_decodes_waiting(
    prompt: float, objectives: dict[str, float], found: str, router: str
) -> None:
    """Every deployment on as few devices is simulated to its end."""
    requests = drawn(120, 40.0, 0, prompt, **objectives)
    split = split_of(num_heads=1)
    plan = plan_serving(requests, split, 6, CHOICES, share=0.95)
    assert (str(plan.deployment), plan.best.router) == (found, router)
    met = []
    for each in possible_splits(split, 6, 6)[0]:
        for num in range(1, plan.deployment.num_devices // each.model.num_devices + 1):
            routers = ["least_requests", *(str(PrefillDecode(k)) for k in range(1, num))]
            for choice, name in product(CHOICES, routers):
                trial = tried(requests, each.deployment(num), choice, name)
                if trial.summary is not None and trial.summary.share_met >= 0.95 - 1e-9:
                    met.append(trial)
    assert str(min(met, key=order_of)) == str(plan.best)
    assert pools_of(plan.best) == (None if router == "least_requests" else (3, 1))


def test_a_given_router_is_the_only_one() -> None:
    requests = drawn(120, 40.0, 0, 600.0, ttft_s=0.3, tpot_s=0.01)
    for router in ("least_requests", "prefill_decode(prefill_replicas=2)"):
        plan = plan_serving(requests, split_of(num_heads=1), 6, CHOICES[:1], share=0.95, router=router)
        assert {each.router for each in (plan.best, *plan.runners_up)} == {router}


@pytest.mark.parametrize(
    ("prefill", "decode", "cause"),
    [(1, 3, Shortfall.FIRST_TOKENS), (4, 1, Shortfall.FURTHER_TOKENS), (2, 2, None)],
)
def test_the_cause_of_a_shortfall_is_the_pool_that_is_too_small(
    prefill: int, decode: int, cause: Shortfall | None
) -> None:
    requests = drawn(150, 55.0, 1, 400.0, 200.0, ttft_s=0.4, tpot_s=0.0085)
    place = possible_splits(split_of(num_heads=1), 8, 8)[0][0].deployment(prefill + decode)
    router = router_of(str(PrefillDecode(prefill)))
    found = results_if_met(requests, place, vllm(), 0.9, router, names_cause=True)
    assert (None if isinstance(found, Results) else found) is cause


@pytest.mark.parametrize("num", [0, -1])
def test_there_is_a_replica_for_prompts(num: int) -> None:
    with pytest.raises(ServeError, match=rf"prefill_replicas.*{num}"):
        PrefillDecode(num)
