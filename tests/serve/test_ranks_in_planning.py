"""Splits over data-parallel ranks are searched where a model has experts that ranks may share."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from served import request
from splits_of_tests import drawn, split_of

from trainyard.hardware.parse import parse_cluster
from trainyard.serve.auto import auto
from trainyard.serve.costs.model_step_time import ModelStepTime
from trainyard.serve.deploy import served_model
from trainyard.serve.deployment import ServedModel
from trainyard.serve.errors import ServeError
from trainyard.serve.planning.frontier import steady_states
from trainyard.serve.planning.plan import plan_serving
from trainyard.serve.policies.vllm import vllm
from trainyard.serve.policy_choices import given_choices
from trainyard.serve.simulate_requests import simulate_requests
from trainyard.serve.splits import possible_splits
from trainyard.serve.summary import Summary

EXPERTS = 4


class _Costs:
    """Of a rank whose devices are slow to join their parts, and of the experts of all."""

    def __init__(self, shards: int, ranks: int) -> None:
        self.shards, self.ranks = shards, ranks

    def tokens_s(self, num):
        return 1e-3 + 2e-5 * num * self.shards**-0.1

    def sequences_s(self, num):
        return 0.0

    def experts_s(self, num):
        return (4e-3 + 2e-5 * num) / (self.shards * self.ranks)

    def attention_s(self, chunks, num, mean_tokens):
        return np.zeros(len(mean_tokens))


def mixture(shards: int, stages: int, ranks: int) -> ServedModel:
    """A model of 16 GB, most of it experts."""
    if EXPERTS % (shards * ranks):
        raise ServeError(f"{EXPERTS} experts cannot be dealt out to {shards * ranks} devices")
    model = split_of()(shards, stages)
    return replace(
        model,
        step_time=ModelStepTime(_Costs(shards, ranks)),
        weight_bytes=int(2e9 + 14e9 / ranks) // shards // stages,
        data_parallel=ranks,
        has_experts=True,
    )


def test_experts_are_shared_by_powers_of_two_of_ranks_without_stages():
    splits, refused = possible_splits(mixture, 8, 4)
    found = [str(each) for each in splits]
    assert found == [
        "tp 1", "tp 2", "tp 1, pp 2", "tp 1, dp 2",
        "tp 4", "tp 2, pp 2", "tp 1, pp 4", "tp 2, dp 2", "tp 1, dp 4",
        "tp 4, pp 2", "tp 2, pp 4",
    ]  # fmt: skip
    assert [each.max_replicas * each.model.num_devices for each in splits] == [8] * len(splits)
    why = {str(each): each.why for each in refused}
    assert why.keys() == {"tp 4, dp 2", "tp 2, dp 4", "tp 1, dp 8"}
    assert set(why.values()) == {"4 experts cannot be dealt out to 8 devices"}


def test_a_dense_model_is_not_split_over_ranks():
    asked = []

    def split(shards: int, stages: int, ranks: int) -> ServedModel:
        asked.append(ranks)
        return split_of()(shards, stages)

    splits, refused = possible_splits(split, 8, 4)
    assert set(asked) == {1}
    assert not refused
    assert len({str(each) for each in splits}) == len(splits)


@pytest.mark.parametrize(("name", "has"), [("gpt-oss-20b", True), ("gpt-tiny", False)])
def test_models_say_whether_they_have_experts(name, has):
    model = served_model(name, parse_cluster("1x8xH100"))
    assert model.has_experts == has


def test_ranks_are_among_the_trials_of_auto():
    requests = drawn(60, 60.0, 1)
    found = auto(requests, mixture, 4, given_choices("vllm, sarathi"))
    tried = {each.deployment.model.split: each for each in found.trials}
    assert {"tp 1", "tp 4", "tp 1, pp 4", "tp 1, dp 2", "tp 1, dp 4", "tp 2, dp 2"} <= tried.keys()
    assert found.best.deployment.model.data_parallel > 1
    names = [str(each) for each in found.trials]
    assert len(set(names)) == len(names)


def test_runners_up_and_what_is_ruled_out_name_ranks():
    plan = plan_serving(drawn(80, 60.0, 1, ttft_s=0.1, tpot_s=0.02), mixture, 8, given_choices("vllm"))
    ranks = {each.deployment.model.split for each in plan.runners_up} | {plan.deployment.model.split}
    assert "tp 1, dp 2" in ranks | {str(each) for each in plan.excluded_splits}
    assert {(each.tensor_parallel, each.data_parallel) for each in plan.points} >= {
        (1, 1),
        (1, 2),
        (2, 2),
        (1, 4),
    }


def test_requests_that_are_served_alone_are_as_fast_on_ranks_as_in_the_simulation():
    """They are simulated on one rank, with the steps of all."""
    requests = [request(n, 50.0 * n, 300, 20) for n in range(4)]
    split = next(each for each in possible_splits(mixture, 4, 4)[0] if str(each) == "tp 1, dp 4")
    place = split.deployment(1)
    one = replace(place, model=replace(place.model, data_parallel=1))
    times = [
        [
            each.finished_s
            for each in simulate_requests(requests, at.instances(vllm()), at.model.step_time).served
        ]
        for at in (place, one)
    ]
    assert times[0] == pytest.approx(times[1])


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_steady_state_of_ranks_is_what_the_simulator_comes_to(ranks):
    split = next(each for each in possible_splits(mixture, 4, 4)[0] if str(each) == f"tp 1, dp {ranks}")
    num = 8 * ranks
    requests = [request(n, 0.0, 400, 50) for n in range(40 * num)]
    place = split.deployment(1)
    results = simulate_requests(requests, place.instances(vllm(8192, 8)), place.model.step_time)
    (point,) = [each for each in steady_states(split, requests) if each.num_requests == num]
    assert point.split == str(split)
    assert Summary.of(results, 1).tokens_per_s == pytest.approx(point.device_tokens_per_s * ranks, rel=0.03)
    most = max(each.num_requests for each in steady_states(split, requests))
    assert most * 450 <= place.cached_tokens < 2 * most * 450
