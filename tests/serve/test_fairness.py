"""How evenly clients are served while they compete."""

from __future__ import annotations

import math

import pytest
from served import request

from trainyard.serve.cache.block_cache import BlockCache
from trainyard.serve.catalog import parse_policies
from trainyard.serve.fairness import fairness
from trainyard.serve.instance import Instance
from trainyard.serve.requests.request import Request, TracedRequest
from trainyard.serve.results import Served
from trainyard.serve.simulate_requests import simulate_requests
from trainyard.serve.step_time import LinearStepTime


def _served(
    client: str, times_s: tuple[float, float, float, float], output: int, weight: float = 1.0
) -> Served:
    """Arrival, first step, first and last token; a prompt of 100 tokens."""
    arrival_s, scheduled_s, first_s, last_s = times_s
    given = request(0, arrival_s, 100, output, client=client, weight=weight).request
    return Served(given, arrival_s, output, scheduled_s, first_s, last_s, 0, 0)


def test_service_counts_while_both_clients_wait():
    """By hand: from 2 to 4 s both wait, a for its second request and b for its first one."""
    served = [
        _served("a", (0.0, 0.0, 2.0, 10.0), 40),  # 80 in 8 s of decoding, so 20 from 2 to 4 s
        _served("a", (1.0, 4.0, 5.0, 6.0), 3),
        _served("b", (2.0, 6.0, 7.0, 8.0), 3),
        _served("b", (0.0, 0.0, 4.0, 4.0), 1),  # half of its prompt from 2 to 4 s
    ]
    a, b = 20 / 2, 50 / 2
    assert fairness(served) == pytest.approx((a + b) ** 2 / (2 * (a**2 + b**2)))


def test_a_client_with_twice_the_weight_has_a_right_to_twice_the_service():
    def both(weight: float) -> float:
        times = (0.0, 4.0, 5.0, 6.0)
        begun = [_served("a", (0.0, 0.0, 4.0, 4.0), 1, weight), _served("b", (0.0, 0.0, 8.0, 8.0), 1)]
        return fairness([*begun, _served("a", times, 1, weight), _served("b", times, 1)])

    assert both(2.0) == pytest.approx(1.0)
    assert both(1.0) == pytest.approx((2 + 1) ** 2 / (2 * (4 + 1)))


def test_who_never_waits_beside_others_does_not_compete():
    assert math.isnan(fairness([]))
    assert math.isnan(fairness([_served("a", (0.0, 5.0, 6.0, 7.0), 3)]))
    one_after_the_other = [_served("a", (0.0, 5.0, 6.0, 7.0), 3), _served("b", (5.0, 9.0, 10.0, 11.0), 3)]
    assert math.isnan(fairness(one_after_the_other))


def test_clients_that_compete_without_service_are_served_alike():
    """From 0 to 1 s both wait for their first step, and afterwards nobody does."""
    served = [_served("a", (0.0, 1.0, 2.0, 2.0), 1), _served("b", (0.0, 1.0, 2.0, 2.0), 1)]
    assert fairness(served) == 1.0


def test_weights_may_be_very_small():
    """Squares of what such a weight gives would be too large for a number."""
    served = [
        _served(client, times, 4, weight)
        for client, weight in (("a", 1.0), ("b", 1e-300))
        for times in ((0.0, 0.0, 1.0, 2.0), (0.0, 1.0, 2.0, 3.0))
    ]
    assert fairness(served) == pytest.approx(1 / 2)


def test_the_policy_that_is_made_for_it_is_the_fairest():
    """A client that asks four times as often gets four times as much under first come, first served."""
    requests = [
        TracedRequest(Request(f"{client}{i}", i / rate, 200, 100, client=client), 100)
        for client, rate, num in (("often", 8, 400), ("seldom", 2, 100))
        for i in range(num)
    ]
    requests.sort(key=lambda each: each.request.arrival_s)
    found = {}
    for name, policy in parse_policies("vllm, vllm + vtc"):
        instance = Instance(policy, BlockCache(800, 16))
        found[name] = fairness(
            simulate_requests(requests, [instance], LinearStepTime(0.02, 1e-4, 1e-3)).served
        )
    assert found["vllm"] == pytest.approx((4 + 1) ** 2 / (2 * (16 + 1)), abs=0.05)
    assert found["vllm + vtc"] > found["vllm"] + 0.1
