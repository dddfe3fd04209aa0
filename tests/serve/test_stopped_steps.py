"""Policies that stop a step that runs for a request that arrives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from deployments import deployment
from hypothesis import given, settings
from hypothesis import strategies as st
from served import STEP, Checked, request

from trainyard.serve.cache.block_cache import BlockCache
from trainyard.serve.compare import compare_policies, follow_request
from trainyard.serve.errors import ServeError
from trainyard.serve.instance import Instance
from trainyard.serve.policies.token_budget import TokenBudget
from trainyard.serve.policy import StoppingPolicy
from trainyard.serve.request_state import RequestState


@dataclass(frozen=True)
class UrgentFirst(TokenBudget):
    """A more urgent request than all that are computed stops the step; these wait until it has its answer."""

    def stops(self, arrived: RequestState, computed: Sequence[RequestState], state: Any) -> bool:
        urgent = arrived.request.priority < min(each.request.priority for each in computed)
        if urgent:
            _STOPPED.append((arrived.request.name, [each.request.name for each in computed]))
        return urgent


_STOPPED: list[tuple[str, list[str]]] = []
_PROMPT_S = 6e-3 + 2000 * 3e-5 + 1.5e-9 * 2000 * 1000


def test_an_urgent_request_does_not_wait_for_the_step() -> None:
    long, urgent = request(0, 0.0, 2000, 3), request(1, 0.01, 20, 1)
    urgent = urgent._replace(request=replace(urgent.request, priority=-1))
    _STOPPED.clear()
    replica = Checked(UrgentFirst(), 400)
    done = {each.request.name: each for each in replica.run([long, urgent]).served}
    assert _STOPPED == [("r1", ["r0"])]
    assert isinstance(replica.instance.policy, StoppingPolicy)
    stopped, after = replica.batches[:2]
    assert (stopped.launches, [op.kind for op in stopped.cache_ops]) == ((), ["allocate"])
    assert after.stops_step
    assert str(after).startswith("stop the step that runs\ncompute ")
    assert set(after.items) == {(0, 0, 2000), (1, 0, 20)}  # the blocks are there, what stood in them is not
    assert done["r1"].first_token_s == pytest.approx(0.01 + _PROMPT_S + 20 * 3e-5 + 1.5e-9 * 200)


def test_what_a_repeated_step_did_before_counts() -> None:
    long, urgent = request(0, 0.0, 100, 200), request(1, 0.5, 20, 1)
    urgent = urgent._replace(request=replace(urgent.request, priority=-1))
    runs = [Checked(UrgentFirst(), 400).run([long, urgent], one_by_one=each) for each in (True, False)]
    ends_s = [{each.request.name: each.finished_s for each in run.served} for run in runs]
    assert ends_s[0] == pytest.approx(ends_s[1])
    alone = Checked(UrgentFirst(), 400).run([long]).served[0]
    assert ends_s[0]["r0"] > alone.finished_s


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_all_are_served_however_often_steps_are_stopped(data: st.DataObject) -> None:
    requests = []
    for n in range(data.draw(st.integers(1, 15))):
        each = request(
            n, 0.01 * n * data.draw(st.integers(1, 3)), data.draw(st.integers(1, 300)), 1 + n * 7 % 30
        )
        requests.append(
            each._replace(request=replace(each.request, priority=data.draw(st.integers(0, 5)), max_tokens=40))
        )
    requests.sort(key=lambda each: each.request.arrival_s)
    replica = Checked(UrgentFirst(max_batch_tokens=data.draw(st.sampled_from([50, 2048]))), 40)
    results = replica.run(requests, next_token=lambda state: state.num_tokens % 5)
    assert len(results.served) == len(requests)


def test_a_followed_request_was_not_in_a_stopped_step() -> None:
    long, urgent = request(0, 0.0, 2000, 3), request(1, 0.01, 20, 1)
    urgent = urgent._replace(request=replace(urgent.request, priority=-1))
    place = deployment(1)
    place = replace(place, model=replace(place.model, step_time=STEP))
    runs, _ = compare_policies(f"{__file__}:UrgentFirst", [long, urgent], place)
    (followed,) = follow_request("r0", runs, [long, urgent], place).values()
    assert followed.spans[0].start_s == 0.01


def test_pipelines_and_ranks_stop_no_steps() -> None:
    with pytest.raises(ServeError, match="stops steps, which pipeline stages do not"):
        Instance(UrgentFirst(), BlockCache(10, 16), num_stages=2)
    place = deployment(1)
    with pytest.raises(ServeError, match="stops steps, which data-parallel ranks do not"):
        replace(place, model=replace(place.model, data_parallel=2)).instances(UrgentFirst())
