"""Policies side by side: the same numbers as alone, the load over time, and a request followed through."""

from __future__ import annotations

import gc
import math

import numpy as np
import pytest
from deployments import STEP, deployment
from served import request

from trainyard.serve.catalog import parse_policies
from trainyard.serve.compare import baseline_run, compare_policies, follow_request, request_to_follow
from trainyard.serve.errors import ServeError
from trainyard.serve.load_over_time import LoadOverTime
from trainyard.serve.requests.change import with_objectives
from trainyard.serve.requests.request import PrefixBlocks, Request, TracedRequest
from trainyard.serve.router import least_requests, router_of
from trainyard.serve.simulate_requests import simulate_requests

POLICIES = "vllm, vllm_v0, sarathi(chunk_tokens=128), vllm + vtc"
REQUESTS = [request(n, 0.04 * n, 100 + 37 * n % 500, 20 + 53 * n % 200) for n in range(60)]


def test_runs_are_those_of_each_policy_alone_whether_watched_or_not() -> None:
    place = deployment(2, num_blocks=150)
    runs, cannot = compare_policies(POLICIES, REQUESTS, place, least_requests)
    watched, _ = compare_policies(POLICIES, REQUESTS, place, least_requests, records_load=True)
    assert not cannot
    assert [run.name for run in runs] == [name for name, _ in parse_policies(POLICIES)]
    assert sum(run.summary.num_preemptions for run in runs) > 0
    for run, other, (_, policy) in zip(runs, watched, parse_policies(POLICIES), strict=True):
        alone = simulate_requests(REQUESTS, place.instances(policy), STEP, least_requests)
        assert run.results.served == other.results.served == alone.served
        assert run.load is None
        assert other.load is not None


def test_load_adds_up_to_what_requests_waited_and_ran() -> None:
    (run,), _ = compare_policies("vllm", REQUESTS, deployment(2), least_requests, records_load=True)
    assert run.load is not None
    assert run.summary.num_preemptions == 0  # so that all before the first step is waiting
    lengths_s = np.full(len(run.load.cache), run.load.part_s)
    lengths_s[-1] = run.results.end_s - lengths_s[:-1].sum()
    assert 0 < lengths_s[-1] <= run.load.part_s
    waited_s = run.results.of_served(lambda each: each.scheduled_s - each.arrival_s)
    ran_s = run.results.of_served(lambda each: each.finished_s - each.scheduled_s)
    assert run.load.num_waiting @ lengths_s == pytest.approx(waited_s.sum())
    assert run.load.num_running @ lengths_s == pytest.approx(ran_s.sum())
    assert 0 < run.load.cache.max() < 1


def test_load_is_exact_and_its_memory_does_not_grow() -> None:
    watched = LoadOverTime(num_blocks=10)
    first, second = watched.add_instance(), watched.add_instance()
    watched.set(first, 1.0, 3, 0, 0)
    watched.set(second, 2.0, 1, 1, 5)
    watched.set(first, 1000.0, 0, 2, 10)
    watched.set(first, 4000.0, 0, 0, 0)
    load = watched.load()
    assert len(load.cache) <= 2_000
    assert load.part_s == 4.0  # the first power of two of which 2,000 are more than 4,000 s
    assert load.num_waiting[0] == pytest.approx((3 * 1 + 4 * 2) / 4)
    assert load.num_waiting[100] == 4
    assert load.num_waiting[-1] == 1
    assert load.num_running[500] == 3
    assert load.cache[10] == 5 / 20
    assert load.cache[-1] == 15 / 20


@pytest.mark.parametrize("stages", [1, 2])
def test_a_request_is_followed_through(stages: int) -> None:
    place = deployment(num_blocks=90, stages=stages)
    runs, _ = compare_policies(POLICIES, REQUESTS, place)
    name = request_to_follow(runs)
    preempted = [each for run in runs for each in run.results.served if each.num_preemptions]
    assert max(each.e2e_s for each in preempted) == max(
        each.e2e_s for each in preempted if each.request.name == name
    )
    followed = follow_request(name, runs, REQUESTS, place)
    assert list(followed) == [run.name for run in runs]
    for run in runs:
        found = followed[run.name]
        served = next(each for each in run.results.served if each.request.name == name)
        assert found.served == served
        assert found.spans[0].start_s == served.scheduled_s
        assert found.spans[-1].end_s == served.finished_s
        assert len(found.preempted_s) == served.num_preemptions
        assert {span.kind for span in found.spans} >= {"decode"}
        assert ("recompute" in {span.kind for span in found.spans}) == (served.num_preemptions > 0)
        prompt = sum(span.num_tokens for span in found.spans if span.kind == "prefill")
        assert prompt >= served.request.prompt_tokens - served.cached_tokens
        starts = [span.start_s for span in found.spans]
        assert starts == sorted(starts)
        in_steps_s = sum(span.end_s - span.start_s for span in found.spans)
        waits_s = sum(end_s - start_s for start_s, end_s, _ in found.waits)
        assert in_steps_s + waits_s == pytest.approx(served.e2e_s)


def test_tokens_of_a_followed_request_are_all_there() -> None:
    place = deployment()
    runs, _ = compare_policies("sarathi(chunk_tokens=128)", REQUESTS, place)
    (found,) = follow_request("r30", runs, REQUESTS, place).values()
    prefill = [span.num_tokens for span in found.spans if span.kind == "prefill"]
    assert sum(prefill) == found.served.request.prompt_tokens
    assert len(prefill) > 1
    decoded = sum(span.num_tokens for span in found.spans if span.kind == "decode")
    assert decoded == found.served.output_tokens - 1


def test_the_slowest_is_followed_where_none_was_preempted() -> None:
    runs, _ = compare_policies("vllm", REQUESTS, deployment())
    slowest = max(runs[0].results.served, key=lambda each: each.e2e_s)
    assert request_to_follow(runs) == slowest.request.name
    with pytest.raises(ServeError, match="no request 'nobody' to follow"):
        follow_request("nobody", runs, REQUESTS, deployment())


def test_what_is_told_and_what_is_refused() -> None:
    told: list[tuple[str, int]] = []
    given = [request(0, 0.0, 100, 5), request(1, 0.1, 5000, 5)]
    (run,), _ = compare_policies("vllm", given, deployment(), tell=lambda name, num: told.append((name, num)))
    assert told == [("vllm", 0), ("vllm", 1)]
    assert [each.request.name for each in run.results.refused] == ["r1"]
    with pytest.raises(ServeError, match="no request was served"):
        request_to_follow(compare_policies("vllm", given[1:], deployment())[0])


def test_a_policy_that_cannot_serve_is_told_apart() -> None:
    late_first = [request(0, 1.0, 100, 5), request(1, 0.5, 100, 5)]
    runs, cannot = compare_policies("vllm, orca", late_first, deployment())
    assert not runs
    assert [each.name for each in cannot] == ["vllm", "orca"]
    assert "in the order of their arrival" in cannot[0].why


def test_baselines() -> None:
    runs, _ = compare_policies("vllm, orca", REQUESTS[:5], deployment())
    assert baseline_run("vllm, orca", runs, None) is None
    assert baseline_run("vllm, orca", runs, "orca") is runs[1]
    with pytest.raises(ServeError, match="'sarathi' is not among the policies: vllm, orca"):
        baseline_run("vllm, orca", runs, "sarathi")


def test_objectives_are_for_those_without() -> None:
    own = request(0, 0.0, 100, 5, ttft_s=2.0)
    assert with_objectives(own) is own
    found = with_objectives(own, ttft_s=1.0, e2e_s=3.0).request
    assert (found.ttft_s, found.tpot_s, found.e2e_s) == (2.0, math.inf, 3.0)
    assert found.has_objectives
    assert not request(1, 0.0, 100, 5).request.has_objectives


def test_results_by_client() -> None:
    given = [request(n, 0.1 * n, 100 if n < 3 else 5000, 5, client="ab"[n % 2]) for n in range(4)]
    (run,), _ = compare_policies("vllm", given, deployment())
    found = run.results.by_client()
    assert {client: (len(each.served), len(each.refused)) for client, each in found.items()} == {
        "a": (2, 0),
        "b": (1, 1),
    }


def test_routers_have_names() -> None:
    assert router_of("least_requests") is least_requests


def test_requests_are_read_anew_for_each_policy_and_their_prompts_are_not_held():
    num_held = []

    class Anew:
        def __iter__(self):
            for number in range(50):
                blocks = PrefixBlocks((number,), 100)
                yield TracedRequest(Request(f"r{number}", 10.0 * number, 100, 9, prefix=blocks), 5)
            num_held.append(sum(type(each) is Request and bool(each.prefix) for each in gc.get_objects()))

    runs, _ = compare_policies("vllm, orca", Anew(), deployment())
    assert len(num_held) == 2
    assert max(num_held) < 5
    for run in runs:
        assert [each.request.name for each in run.results.served] == [f"r{number}" for number in range(50)]
        assert {each.request.prefix for each in run.results.served} == {None}
    with pytest.raises(ServeError, match="requests are an iterator, which only the first policy would see"):
        compare_policies("vllm, orca", iter(Anew()), deployment())
