"""A run in a few numbers, beside what can be counted by hand."""

from __future__ import annotations

import math

import pytest
from served import Checked, request

from trainyard.serve.policies.vllm import vllm
from trainyard.serve.results import Refused, Results, Served
from trainyard.serve.summary import Summary


def _served(number: int, times_s: tuple[float, float, float], output: int, cached: int = 0, **more) -> Served:
    """Arrival, first and last token."""
    arrival_s, first_s, last_s = times_s
    given = request(number, arrival_s, 100, output, **more).request
    return Served(given, arrival_s, output, arrival_s, first_s, last_s, number, cached)


def test_numbers_of_a_run():
    results = Results(
        [
            _served(0, (1.0, 2.0, 5.0), 4, client="a", ttft_s=1.0, tpot_s=1.0),
            _served(1, (1.0, 3.0, 3.0), 1, cached=50, client="b", ttft_s=1.5),
            _served(2, (2.0, 3.0, 11.0), 9, client="b", weight=2.0, e2e_s=8.9),
        ],
        [Refused(request(3, 3.0, 100, 1).request, "too long")],
        num_steps=9,
        busy_s=5.0,
    )
    found = Summary.of(results, num_instances=2)
    assert (found.num_served, found.num_refused, found.num_preemptions) == (3, 1, 3)
    assert (found.ttft.mean_s, found.ttft.p50_s) == (pytest.approx(4 / 3), 1.0)
    assert found.tpot.mean_s == 1.0  # (5 - 2) / 3 and (11 - 3) / 8; the second has no further token
    assert (found.e2e.mean_s, found.e2e.p99_s) == (5.0, pytest.approx(8.9))
    assert found.slo_attainment == 1 / 4
    assert found.goodput_per_s == pytest.approx(found.requests_per_s / found.num_served)
    assert (found.requests_per_s, found.tokens_per_s) == (0.3, 1.4)
    assert found.prefix_hit_rate == 50 / 300
    assert found.utilisation == 5 / (10 * 2)
    assert math.isnan(found.fairness)  # nobody waits for a first step here


def test_a_run_begins_with_the_first_arrival_even_if_it_is_refused():
    results = Results(
        [_served(0, (4.0, 5.0, 10.0), 4)], [Refused(request(1, 0.0, 100, 1).request, "too long")]
    )
    assert Summary.of(results, num_instances=1).requests_per_s == 1 / 10


def test_where_nothing_was_served_there_are_no_times():
    found = Summary.of(Results(), num_instances=1)
    assert found.num_served == 0
    assert all(map(math.isnan, (found.ttft.mean_s, found.tokens_per_s, found.fairness)))


@pytest.mark.parametrize(
    ("of_served", "of_refused", "met"), [({}, {}, None), ({}, {"e2e_s": 9.0}, 0.5), ({"e2e_s": 9.0}, {}, 0.5)]
)
def test_without_objectives_there_is_nothing_to_meet(of_served, of_refused, met):
    """Objectives of refused requests count."""
    refused = Refused(request(1, 0.0, 100, 1, **of_refused).request, "too long")
    found = Summary.of(Results([_served(0, (0.0, 1.0, 2.0), 4, **of_served)], [refused]), num_instances=1)
    assert (found.slo_attainment, found.goodput_per_s) == (met, met)
    assert found.share_met == (1.0 if met is None else met)


def test_an_instance_that_never_waits_is_always_used():
    instance = Checked(vllm(), 100)
    results = instance.run([request(0, 3.0, 100, 50), request(1, 3.0, 10, 20)])
    found = Summary.of(results, num_instances=1)
    assert found.utilisation == pytest.approx(1.0)
    ended_s = max(each.finished_s for each in results.served)
    assert found.tokens_per_s == pytest.approx(70 / (ended_s - 3.0))
