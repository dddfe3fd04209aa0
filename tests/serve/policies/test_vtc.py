"""VTC: how far the service of two clients may differ."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from served import STEP, request

from trainyard.serve.admission import FIRST_COME, Admission
from trainyard.serve.cache.block_cache import BlockCache
from trainyard.serve.catalog import parse_policies
from trainyard.serve.errors import ServeError
from trainyard.serve.instance import Instance
from trainyard.serve.policies.orca import Orca
from trainyard.serve.policies.sarathi import sarathi
from trainyard.serve.policies.vllm import vllm
from trainyard.serve.policies.vtc import VTC
from trainyard.serve.policy import check_no_oracle, reads_output_tokens
from trainyard.serve.simulate_requests import simulate_requests

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

    def largest(admission):
        service = _service(admission, requests)
        return max(_largest_gap(service, *pair) for pair in combinations("abc", 2))

    without = largest(VTC())
    assert largest(VTC(predict="oracle")) < 0.9 * without
    assert largest(VTC(predict="moving average")) < 0.9 * without


def _counters(admission_type, requests, policy=vllm, **options):
    """Counters after each decision of an admission, and in the end."""
    after, kept = [], []

    class Kept(admission_type):
        def start(self):
            kept.append(super().start())
            return kept[0]

        def end(self, draft, state):
            after.append(dict(state.counter))

    instance = Instance(policy(max_requests=8, admission=Kept(**options)), BlockCache(_NUM_BLOCKS, 16))
    simulate_requests(requests, [instance], STEP, one_by_one=True)
    return after, kept[0]


def test_predicted_tokens_are_charged_at_once_further_ones_as_they_come_and_the_rest_is_given_back():
    """Algorithm 3, with a moving average of two requests: it predicts 0, 6, (6 + 2) / 2 and (2 + 9) / 2 tokens."""
    lengths = (6, 2, 9, 3)
    requests = [request(n, 100.0 * n, 10, output, client="a") for n, output in enumerate(lengths)]
    after, end = _counters(VTC, requests, predict="moving average", predict_requests=2)
    charged = [each["a"] for each in after if each]
    expected, before = [], 0.0
    for predicted, output in zip((0, 6, 4, 5.5), lengths, strict=True):
        expected += [before + 10 + 2 * max(predicted, generated) for generated in range(output)]
        before += 10 + 2 * output
        expected.append(before)
    assert [each for n, each in enumerate(charged) if n == 0 or each != charged[n - 1]] == [
        each for n, each in enumerate(expected) if n == 0 or each != expected[n - 1]
    ]
    assert end.settled == {"a": before}
    assert end.last_tokens["a"] == deque([9, 3])


def test_the_oracle_charges_what_will_be_generated_for_all_samples_as_far_as_the_longest_sequence():
    given = [
        request(0, 0.0, 20, (3, 9, 1), client="a", num_samples=3),
        request(1, 100.0, 30, 2000, client="b"),
    ]
    after, end = _counters(VTC, given, predict="oracle")
    assert after[0] == {"a": 20 + 2 * 13}
    charged = {"a": 20 + 2 * 13, "b": (20 + 2 * 13) + 30 + 2 * 1000}  # b begins with what a has
    assert next(each for each in after if "b" in each) == end.settled == charged


def test_only_the_oracle_is_told_how_long_outputs_will_be():
    told = []

    class Spy(VTC):
        def admitted(self, request, state):
            told.append(request.output_tokens)
            super().admitted(request, state)

    for predict, expected in ((None, 0), ("moving average", 0), ("oracle", 7)):
        instance = Instance(vllm(admission=Spy(predict=predict)), BlockCache(_NUM_BLOCKS, 16))
        simulate_requests([request(0, 0.0, 20, 7)], [instance], STEP)
        assert told.pop() == expected


def test_predictors_are_options_of_the_text():
    ((name, policy),) = parse_policies("vllm + vtc(predict='moving average', predict_requests=3)")
    assert policy.admission == VTC(predict="moving average", predict_requests=3)
    assert name == "vllm + vtc(predict='moving average', predict_requests=3)"
    ((_, oracle),) = parse_policies("sarathi + vtc(predict='oracle')")
    assert reads_output_tokens(oracle)
    assert not reads_output_tokens(policy)
    check_no_oracle(policy)
    with pytest.raises(ServeError, match=r"has to know how long outputs will be.*use another one"):
        check_no_oracle(oracle)
    with pytest.raises(ServeError, match="predict of vtc must be None or 'moving average' or 'oracle'"):
        parse_policies("vtc(predict='best')")
    with pytest.raises(
        ServeError, match="predict is 'best'; allowed are 'moving average', 'oracle', or None"
    ):
        VTC(predict="best")
    with pytest.raises(ServeError, match="predict_requests is 0; allowed is 1 or more"):
        parse_policies("vtc(predict='moving average', predict_requests=0)")


_CLIENT = st.tuples(st.floats(10.0, 60.0), st.integers(1, 512), st.integers(1, 300))


@given(one=_CLIENT, other=_CLIENT, policy=st.sampled_from([vllm, sarathi, Orca]))
@settings(max_examples=20)
def test_the_bound_holds_for_any_two_clients_under_any_policy(one, other, policy):
    service = _service(VTC(), _overloaded({"a": one, "b": other}, end_s=3.0), policy)
    assume(service)
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
    given = [
        request(0, 0.0, 20, (3, 9, 1), client="a", num_samples=3),
        request(1, 0.0, 30, 5, client="b"),
    ]
    for predict in (None, "oracle"):
        _, end = _counters(VTC, given, policy, predict=predict)
        assert end.settled == {"a": 20 * num_prompts + 2 * 13, "b": 30 + 2 * 5}
