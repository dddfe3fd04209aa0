"""VTC: how far the service of two clients may differ."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from served import STEP, request

from trainyard.serve.admission import FIRST_COME, Admission
from trainyard.serve.cache.block_cache import BlockCache
from trainyard.serve.instance import Instance
from trainyard.serve.policies.orca import Orca
from trainyard.serve.policies.sarathi import sarathi
from trainyard.serve.policies.vllm import vllm
from trainyard.serve.policies.vtc import VTC
from trainyard.serve.simulate import simulate_requests

_NUM_BLOCKS = 400


def _service(admission: Admission, requests, policy=vllm) -> list[dict[str, float]]:
    """What each client received up to each step of the longest time in which all have requests that wait.

    w_p is 1 and w_q is 2.
    """
    instance = Instance(policy(max_requests=32, admission=admission), BlockCache(_NUM_BLOCKS, 16))
    clients = {each.request.client for each in requests}
    service: dict[str, float] = defaultdict(float)
    admitted, generated, stretches = set(), defaultdict(int), [[]]

    def seen(_: int, now_s: float, batch) -> None:
        for item in batch.items:
            state = instance.queues.running[item.request]
            client = state.request.client
            if item.request not in admitted:
                admitted.add(item.request)
                service[client] += state.request.prompt_tokens
            service[client] += 2 * (state.num_generated - generated[item.request])
            generated[item.request] = state.num_generated
        if clients <= set(instance.queues.waiting_by_client):
            stretches[-1].append(dict(service))
        elif stretches[-1]:
            stretches.append([])

    simulate_requests(requests, [instance], STEP, seen=seen, one_by_one=True)
    return max(stretches, key=len)


def _largest_gap(service: list[dict[str, float]], one: str, other: str) -> float:
    """Largest difference of what two clients received between any two moments."""
    gaps = [each.get(one, 0.0) - each.get(other, 0.0) for each in service]
    return max(gaps) - min(gaps)


def _bound() -> float:
    """2 max(w_p L_input, w_q M), theorem 4.4; M is what the cache has room for."""
    return 2 * max(1 * 512, 2 * _NUM_BLOCKS * 16)


def _overloaded(rates: dict[str, tuple[float, int, int]], end_s: float = 20.0):
    """Requests of each client at a rate, of so many tokens of prompt and output."""
    rows = [(n / rate, who, p, o) for who, (rate, p, o) in rates.items() for n in range(int(end_s * rate))]
    return [request(n, at_s, p, o, client=who) for n, (at_s, who, p, o) in enumerate(sorted(rows))]


def test_two_clients_receive_the_same_whatever_they_ask_for():
    """Section 5.2, figure 3: both are overloaded, one asks twice as often; with first come it receives twice as much."""
    requests = _overloaded({"a": (10.0, 256, 256), "b": (20.0, 256, 256)})
    fair, first = _service(VTC(), requests), _service(FIRST_COME, requests)
    assert len(fair) > 1000
    assert _largest_gap(fair, "a", "b") < _bound()
    assert fair[-1]["b"] / fair[-1]["a"] == pytest.approx(1.0, abs=0.1)
    assert first[-1]["b"] / first[-1]["a"] == pytest.approx(2.0, abs=0.1)


def test_weights_are_shares_of_the_service():
    """Section 4.3: with weights of 1 and 3, a client receives three times as much."""
    requests = [
        each._replace(request=replace(each.request, weight=3.0 if each.request.client == "b" else 1.0))
        for each in _overloaded({"a": (30.0, 256, 128), "b": (30.0, 256, 128)})
    ]
    service = _service(VTC(), requests)
    assert service[-1]["b"] / service[-1]["a"] == pytest.approx(3.0, abs=0.2)


def test_prediction_brings_the_service_nearer():
    """Section 4.4: to know what a request will generate makes the difference between clients smaller."""
    requests = _overloaded({"a": (12.0, 32, 384), "b": (12.0, 256, 64), "c": (12.0, 16, 256)})
    lengths = {"a": 384.0, "b": 64.0, "c": 256.0}
    knows = VTC(predicted_tokens=lambda each: lengths[each.request.client])

    def largest(admission):
        service = _service(admission, requests)
        return max(_largest_gap(service, *pair) for pair in combinations("abc", 2))

    assert largest(knows) < 0.9 * largest(VTC())


_CLIENT = st.tuples(st.floats(10.0, 60.0), st.integers(1, 512), st.integers(1, 300))


@given(one=_CLIENT, other=_CLIENT, policy=st.sampled_from([vllm, sarathi, Orca]))
@settings(max_examples=20)
def test_the_bound_holds_for_any_two_clients_under_any_policy(one, other, policy):
    service = _service(VTC(), _overloaded({"a": one, "b": other}, end_s=3.0), policy)
    if service:
        assert _largest_gap(service, "a", "b") <= _bound()


def test_a_client_that_comes_back_has_saved_up_nothing():
    """Algorithm 2, lines 7 to 12: its counter is lifted to the smallest of the clients with requests that wait."""
    busy = _overloaded({"a": (40.0, 128, 128)}, end_s=20.0)
    late = [request(10_000 + n, 10.0, 128, 128, client="b") for n in range(400)]
    requests = sorted([*busy, *late], key=lambda each: each.request.arrival_s)
    service = _service(VTC(), requests)
    assert service[0].get("a", 0.0) > 4 * _bound() / 2
    assert _largest_gap(service, "a", "b") < _bound()


@pytest.mark.parametrize(("policy", "num_prompts"), [(vllm, 1), (Orca, 3)])
def test_all_samples_of_a_request_are_charged(policy, num_prompts):
    """ORCA computes the prompt for each sample."""
    kept = []

    class Kept(VTC):
        def start(self):
            kept.append(super().start())
            return kept[0]

    instance = Instance(policy(max_requests=8, admission=Kept()), BlockCache(_NUM_BLOCKS, 16))
    given = [
        request(0, 0.0, 20, (3, 9, 1), client="a", num_samples=3),
        request(1, 0.0, 30, 5, client="b"),
    ]
    simulate_requests(given, [instance], STEP)
    assert kept[0].settled == {"a": 20 * num_prompts + 2 * 13, "b": 30 + 2 * 5}
