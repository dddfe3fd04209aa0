"""Many models on a cluster: seconds of forward passes, requests on packed devices, and policies of placement."""

from __future__ import annotations

import numpy as np
import pytest

from trainyard.hardware.parse import parse_cluster
from trainyard.serve.catalog import CATALOG
from trainyard.serve.errors import ServeError
from trainyard.serve.placing.compare import compare_placements
from trainyard.serve.placing.forward_pass import ForwardPass, forward_pass
from trainyard.serve.placing.policies import PLACERS, Nexus, parse_placers
from trainyard.serve.placing.problem import ModelToPlace, PlacingProblem, arrivals_of, drawn_arrivals
from trainyard.serve.policies.alpaserve.problem import Arrivals, ParallelConfig
from trainyard.serve.policies.nexus.packing import PackedDevice, Session
from trainyard.serve.policies.nexus.profile import BatchingProfile
from trainyard.serve.policies.nexus.simulate import SessionOutcome, simulate
from trainyard.serve.requests.request import Request, TracedRequest


def linear(request_s: float, fixed_s: float, weight_bytes: float = 1e9) -> ForwardPass:
    """A model whose batches take a fixed time and a time for each request, and that splits evenly."""
    batches = tuple(range(1, 33))
    one_s = fixed_s + request_s
    return ForwardPass(
        BatchingProfile(batches, tuple(fixed_s + request_s * size for size in batches)),
        weight_bytes,
        {ParallelConfig(stages): (one_s / stages,) * stages for stages in (1, 2, 4)},
    )


def problem_of(
    arrivals: Arrivals, *forwards: ForwardPass, num_devices: int = 4, device_bytes: float = 4e9
) -> PlacingProblem:
    models = tuple(ModelToPlace(f"m{i}", forward, 0.1) for i, forward in enumerate(forwards))
    return PlacingProblem(models, num_devices, device_bytes, arrivals)


@pytest.mark.parametrize("model", ["resnet-tiny", "bert-tiny", "gpt-tiny", "dlrm-tiny"])
def test_seconds_of_a_forward_pass(model: str) -> None:
    found = forward_pass(model, parse_cluster("1x4xA100-80G"))
    seconds = found.batching.latency_s
    assert found.batching.batches == tuple(range(1, 65))
    assert 0 < seconds[0] < seconds[-1] < 64 * seconds[0]
    assert {(1, 1), (2, 1), (4, 1)} <= set(found.stage_s)
    assert found.stage_s[ParallelConfig(1)] == (pytest.approx(seconds[0]),)
    for shape, times in found.stage_s.items():
        assert len(times) == shape.pipeline_stages
        # What is sent comes on top; no stage has more than its share, an op, and what it waits for.
        whole_s = sum(found.stage_s[ParallelConfig(1, shape.tensor_parallel)])
        assert sum(times) >= whole_s * (1 - 1e-9)
        assert max(times) < whole_s / shape.pipeline_stages + 50e-6
    slow = forward_pass(model, parse_cluster("1x4xT4"))
    assert slow.batching.latency_s[-1] > seconds[-1]


def test_weights_are_those_of_the_model() -> None:
    cluster = parse_cluster("1x1xA100-80G")
    assert forward_pass("resnet50", cluster).weight_bytes == pytest.approx(2 * 25.6e6, rel=0.01)
    assert forward_pass("gpt-tiny", cluster).weight_bytes * 2 == pytest.approx(
        forward_pass("gpt-tiny", cluster, "float32").weight_bytes
    )
    with pytest.raises(ServeError, match="float32, float16, bfloat16"):
        forward_pass("gpt-tiny", cluster, "int8")


def test_a_packed_device_serves_batches_of_what_has_come() -> None:
    """By hand: one request at once, then two that came meanwhile; the last is late and dropped."""
    profile = BatchingProfile((1, 2), (1.0, 1.5))
    node = PackedDevice((Session("a", profile, 2.6, 1.0),), (2,), 2.0)
    busy_s = np.zeros(1)
    found = simulate((node,), {"a": np.array([0.0, 0.1, 0.2]), "b": np.array([0.0])}, busy_s)
    # 0 to 1 s, then the other two from 1 to 2.5 s.
    assert busy_s.tolist() == [2.5]
    assert found["a"] == SessionOutcome(3, 3, pytest.approx(1.0 + 2.4 + 2.3))
    assert found["b"] == SessionOutcome(1, 0, 0.0)
    hurried = PackedDevice((Session("a", profile, 2.35, 1.0),), (2,), 2.0)
    # A batch of both would end at 2.5 s, too late for the first of them: early drop gives it up for the second.
    assert simulate((hurried,), {"a": np.array([0.0, 0.1, 0.2])})["a"].num_good == 2


def test_requests_go_to_devices_as_their_parts_of_the_rate() -> None:
    profile = BatchingProfile((1,), (0.001,))
    one, three = (PackedDevice((Session("a", profile, 1.0, rate),), (1,), 1.0) for rate in (1.0, 3.0))
    slow = PackedDevice((Session("a", BatchingProfile((1,), (5.0,)), 1.0, 1.0),), (1,), 1.0)
    times_s = np.arange(400) * 0.1
    assert simulate((one, three), {"a": times_s})["a"].num_good == 400
    assert simulate((slow, three), {"a": times_s})["a"].num_good == 300


def test_nexus_uses_the_fewest_devices_that_its_headroom_needs() -> None:
    history, served = (drawn_arrivals((300.0, 200.0), 3000, seed=seed) for seed in (0, 1))
    problem = problem_of(history, linear(0.001, 0.004), linear(0.002, 0.004))
    few, many = (Nexus(headroom).decide(problem).serve(served) for headroom in (1.0, 4.0))
    assert few.num_devices < many.num_devices == 4
    assert 0.9 < few.slo_attainment <= many.slo_attainment
    with pytest.raises(ServeError, match="allowed is above 0"):
        Nexus(0.0)


def test_too_few_devices_serve_a_part_of_the_rates() -> None:
    history, served = (drawn_arrivals((3000.0,), 3000, seed=seed) for seed in (0, 1))
    problem = problem_of(history, linear(0.001, 0.004), num_devices=2)
    placed = Nexus().decide(problem).serve(served)
    assert placed.num_devices == 2
    assert 0.3 < placed.slo_attainment < 0.8
    with pytest.raises(ServeError, match="use larger devices"):
        Nexus().decide(problem_of(history, linear(0.001, 0.004, 5e9)))


@pytest.mark.parametrize("gap_s", [1e-9, 1e-300])
def test_rates_far_beyond_the_devices_are_refused_at_once(gap_s: float) -> None:
    """As of a trace whose requests come nearly at one moment: all the devices that they need fit in no memory."""
    problem = problem_of(Arrivals(np.array([0.0, gap_s]), np.zeros(2, np.int64)), linear(0.01, 0.01))
    with pytest.raises(ServeError, match=r"need more than 4 devices even at 0\.05 of their rates"):
        Nexus().decide(problem)
    with pytest.raises(ServeError, match=r"headroom is 1e\+300; allowed is above 0, up to 1,000"):
        Nexus(1e300)


def test_policies_are_ranked_and_who_cannot_place_says_why() -> None:
    """AlpaServe's claim: where a device has no room for all models, splitting them serves bursts that replicas cannot."""
    history, served = (drawn_arrivals((12.0,) * 4, 2000, 4.0, seed) for seed in (0, 1))
    problem = problem_of(history, *(linear(0.02, 0.001, 2e9),) * 4, device_bytes=2e9)
    runs, cannot = compare_placements("replicate, alpaserve(num_moves=50), nexus", problem, served)
    assert not cannot
    assert [run.placed.slo_attainment for run in runs] == sorted(
        (r.placed.slo_attainment for r in runs), reverse=True
    )
    by_name = {run.name: run.placed for run in runs}
    split = by_name["alpaserve(num_moves=50)"]
    assert split.slo_attainment > by_name["replicate"].slo_attainment + 0.05
    assert max(each.replica.pipeline_stages for each in split.replicas) > 1
    assert all(len(each.devices) == each.replica.num_devices for each in split.replicas)
    # 0.1 s are too short for two batches of 60 ms, one of which is waited for; AlpaServe's requests need not wait.
    late = problem_of(history, *(linear(0.06, 0.001),) * 4)
    runs, (refused,) = compare_placements("nexus, replicate", late, served)
    assert refused.name == "nexus"
    assert "allow more time" in refused.why
    assert [run.name for run in runs] == ["replicate"]


def test_every_policy_of_placement_has_a_name() -> None:
    catalogued = {entry.name for entry in CATALOG if entry.decides == "placement"}
    assert catalogued < {entry.name for entry in PLACERS}
    with pytest.raises(ServeError, match="unknown policy 'nexsu'; known: nexus"):
        parse_placers("nexsu")


def test_arrivals() -> None:
    drawn = drawn_arrivals((30.0, 10.0), 4000)
    assert len(drawn.model) == pytest.approx(4000, rel=0.1)
    assert (drawn.model == 0).mean() == pytest.approx(0.75, abs=0.05)
    alone = drawn_arrivals((30.0, 20.0), 5000)
    common = min(len(a.arrival_s[a.model == 0]) for a in (drawn, alone))
    # Another rate of one model leaves the requests of the other as they are.
    assert (drawn.arrival_s[drawn.model == 0][:common] == alone.arrival_s[alone.model == 0][:common]).all()
    requests = [TracedRequest(Request(str(i), 2.0 - i, 1, 1, model="ba"[i]), 1) for i in range(2)]
    found = arrivals_of(requests, ("a", "b"))
    assert (found.arrival_s.tolist(), found.model.tolist()) == ([1.0, 2.0], [0, 1])
    with pytest.raises(ServeError, match="asks for model 'b'; there are a"):
        arrivals_of(requests, ("a",))
    child = TracedRequest(Request("c", 0.0, 1, 1, model="a", parent="1"), 1)
    with pytest.raises(ServeError, match="'c' continues '1'"):
        arrivals_of([child], ("a",))
    still = problem_of(Arrivals(np.zeros(2), np.zeros(2, np.int64)), linear(0.1, 0.1))
    with pytest.raises(ServeError, match="no rate"):
        still.rates_per_s  # noqa: B018
