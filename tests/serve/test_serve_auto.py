"""What `auto` chooses is never worse than the best of the catalog on the same requests."""

from __future__ import annotations

import pytest
from served import request
from splits_of_tests import drawn, split_of

from trainyard.serve.auto import auto, better
from trainyard.serve.catalog import CATALOG, parse_policies
from trainyard.serve.errors import DoesNotFitError
from trainyard.serve.policy_choices import catalog_choices, given_choices
from trainyard.serve.requests.request import TracedRequest
from trainyard.serve.router import round_robin
from trainyard.serve.simulate_requests import simulate_requests
from trainyard.serve.splits import possible_splits
from trainyard.serve.summary import Summary

WORKLOADS = {
    "chats": drawn(60, 30.0, 1, ttft_s=0.3, tpot_s=0.02),
    "long prompts": drawn(40, 20.0, 2, prompt=1500.0, output=20.0, ttft_s=0.5, tpot_s=0.02),
    "long answers": drawn(40, 20.0, 3, prompt=100.0, output=150.0, ttft_s=0.3, tpot_s=0.015),
}
BATCHES = [entry.name for entry in CATALOG if entry.decides == "batches"]
ADMISSIONS = [entry.name for entry in CATALOG if entry.decides == "admission"]


def catalog_summaries(requests: list[TracedRequest], num_devices: int) -> list[Summary]:
    """Of every batch policy with every order of admission on every split, as a user would name them."""
    found = []
    for split in possible_splits(split_of(), num_devices, num_devices)[0]:
        place = split.deployment(split.max_replicas)
        for text in (*BATCHES, *(f"{batches} + {order}" for batches in BATCHES for order in ADMISSIONS)):
            ((_, policy),) = parse_policies(text)
            results = simulate_requests(requests, place.instances(policy), place.model.step_time, round_robin)
            found.append(Summary.of(results, place.num_replicas))
    return found


@pytest.mark.parametrize("name", WORKLOADS)
def test_it_is_never_worse_than_the_best_entry(name: str) -> None:
    requests = WORKLOADS[name]
    every = catalog_summaries(requests, 2)
    assert len(every) == 3 * len(BATCHES) * (1 + len(ADMISSIONS))
    fastest = auto(requests, split_of(), 2, catalog_choices())
    assert fastest.best.summary is not None
    assert fastest.best.summary.e2e.mean_s <= min(each.e2e.mean_s for each in every)
    meets = auto(requests, split_of(), 2, catalog_choices(), "slo attainment")
    assert meets.best.summary is not None
    assert meets.best.summary.slo_attainment >= max(each.slo_attainment for each in every)
    assert max(each.e2e.mean_s for each in every) > min(each.e2e.mean_s for each in every)


def test_it_is_better_where_options_matter_and_what_it_says_is_true() -> None:
    requests = drawn(60, 40.0, 2, prompt=1000.0, output=60.0)
    told: list[str] = []
    found = auto(requests, split_of(), 2, catalog_choices(("shortest_prompt",)), tell=told.append)
    assert better("mean e2e")(found.best) < better("mean e2e")(found.start)
    assert found.best in found.trials
    assert len(told) == len(found.trials) == len({str(each) for each in found.trials})
    ((_, policy),) = parse_policies(found.best.policy)
    assert policy == found.best.choice.policy
    assert min(found.trials, key=better("mean e2e")) == found.best


def test_who_serves_fewer_is_never_the_best() -> None:
    requests = [request(n, 0.1 * n, 200, 10) for n in range(20)]
    found = auto(requests, split_of(usable_bytes=17.3e9), 2, given_choices("vllm"))
    assert {each.summary.num_refused for each in found.trials if each.summary is not None} == {0}
    long = [request(n, 0.1 * n, 200 if n % 2 else 500, 10) for n in range(20)]
    found = auto(long, split_of(usable_bytes=17.3e9), 2, given_choices("vllm"))
    refused = {str(each.deployment): each.summary.num_refused for each in found.trials if each.summary}
    assert max(refused.values()) > 0
    assert refused[str(found.best.deployment)] == 0


def test_a_model_that_fits_nowhere_is_refused() -> None:
    with pytest.raises(
        DoesNotFitError, match="made with tp 1 does not fit: a device has 1 GB for weights of 16 GB"
    ):
        auto(WORKLOADS["chats"], split_of(usable_bytes=1e9), 1, catalog_choices())


def test_choices_are_the_catalog() -> None:
    texts = [str(each).replace(" ", "") for each in catalog_choices()]
    assert len(set(texts)) == len(texts) == len(BATCHES) * (1 + len(ADMISSIONS))
    for each in catalog_choices():
        names = [part.partition("(")[0] for part in str(each).split(" + ")]
        ((_, as_named),) = parse_policies(" + ".join(names))
        assert each.policy == as_named
        near = list(each.near())
        assert str(each) not in map(str, near)
        assert len(set(map(str, near))) == len(near)
