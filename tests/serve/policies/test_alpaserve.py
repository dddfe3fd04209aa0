"""AlpaServe's claims, and the outputs of its authors' program."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared_data import DATA, needs_data

from trainyard.serve.errors import ServeError
from trainyard.serve.placement import Group, Placement, Replica
from trainyard.serve.policies.alpaserve.enumeration import replication, uniform_search
from trainyard.serve.policies.alpaserve.local import mixed_search
from trainyard.serve.policies.alpaserve.problem import (
    Arrivals,
    Layout,
    ModelProfile,
    ParallelConfig,
    PlacementProblem,
)
from trainyard.serve.policies.alpaserve.simulate import simulate
from trainyard.serve.reproduce.programs.alpaserve import CASES, POLICIES, Case

OUTPUTS = DATA / "reference" / "serve" / "alpaserve.json"


def merged(streams: list[np.ndarray]) -> Arrivals:
    times = np.concatenate(streams)
    model = np.repeat(np.arange(len(streams)), [len(each) for each in streams])
    order = np.argsort(times, kind="stable")
    return Arrivals(times[order], model[order])


@needs_data(OUTPUTS)
@pytest.mark.parametrize(("case", "name"), list(zip(CASES, ("A1", "A3"), strict=True)), ids=["A1", "A3"])
def test_authors_program(case: Case, name: str) -> None:
    (recorded,) = (each for each in json.loads(OUTPUTS.read_text())["cases"] if each["case"] == name)
    problem, evaluation = case.problem, case.evaluated_on
    assert len(problem.arrivals.model) == recorded["train_requests"]
    assert len(evaluation.model) == recorded["eval_requests"]
    md5 = hashlib.md5(evaluation.arrival_s.tobytes()).hexdigest()
    assert md5[:8] == recorded["eval_arrivals_md5_first8"]
    for row in recorded["results"]:
        layout = POLICIES[row["policy"]](problem)
        assert [list(models) for models in layout.models] == [g["models"] for g in row["groups"]]
        assert [shape.pipeline_stages for shape in layout.shapes] == [g["pp"] for g in row["groups"]]
        seen = simulate(problem, layout, evaluation)
        assert simulate(problem, layout).goodput == pytest.approx(row["train_goodput"], abs=1e-6)
        assert seen.goodput == pytest.approx(row["eval_goodput"], abs=1e-6)
        assert seen.mean_latency_s == pytest.approx(row["eval_mean_latency_s"], abs=1e-6)
    ours = mixed_search(problem, num_shapes=3, num_moves=20)
    assert simulate(problem, ours).goodput >= simulate(problem, uniform_search(problem)).goodput


def two_models(streams: list[np.ndarray], device_bytes: float = 1.0) -> PlacementProblem:
    stage_s = {ParallelConfig(1): (0.4,), ParallelConfig(2): (0.2, 0.2)}
    models = tuple(ModelProfile(f"m{i}", 1.0, stage_s, 1.25) for i in range(len(streams)))
    return PlacementProblem(models, 2, device_bytes, merged(streams))


def test_a_burst_of_one_model_uses_both_devices() -> None:
    """Section 3.1: two models on two devices, one each or both on both; bursts of four, 0.4 s each."""
    problem = two_models([np.zeros(4), np.full(4, 10.0)])
    alone = simulate(problem, Layout((ParallelConfig(1), ParallelConfig(1)), ((0,), (1,))))
    together = simulate(problem, Layout((ParallelConfig(2),), ((0, 1),)))
    assert alone.good.tolist() == [3, 3]  # 0.4, 0.8, 1.2 s; the fourth would end after 1.6 s
    assert together.good.tolist() == [4, 4]  # 0.4, 0.6, 0.8, 1.0 s
    assert uniform_search(problem).shapes == (ParallelConfig(2),)


def test_weights_that_are_more_than_the_memory_are_refused() -> None:
    both = Layout((ParallelConfig(2),), ((0, 1),))
    placement = two_models([np.zeros(1), np.zeros(1)]).placement(both)
    assert placement == Placement((Group((0, 1), (Replica("m0", 2), Replica("m1", 2))),))
    assert str(placement) == "devices 0, 1: m0 (2 stages), m1 (2 stages)"
    with pytest.raises(ServeError, match=r"devices of 0\.9 bytes for weights has no room for models m0, m1"):
        two_models([np.zeros(1), np.zeros(1)], 0.9).placement(both)


def test_groups_that_cannot_be_are_refused() -> None:
    with pytest.raises(ServeError, match="device 0 is in two groups"):
        Placement((Group((0,)), Group((0, 1))))
    with pytest.raises(ServeError, match="must be 1"):
        Group((0,), (Replica("a", 2),))


@settings(max_examples=25)
@given(
    st.lists(st.lists(st.floats(0, 5), min_size=1, max_size=15), min_size=2, max_size=4),
    st.floats(0.4, 3.0),
)
def test_search_keeps_memory_and_is_not_worse_than_replication(
    streams: list[list[float]], device_bytes: float
) -> None:
    problem = two_models([np.sort(each) for each in streams], device_bytes)
    found = mixed_search(problem, num_moves=20)
    assert simulate(problem, found).score >= simulate(problem, replication(problem)).score
    problem.placement(found)
    for shape, models in zip(found.shapes, found.models, strict=True):
        assert len(models) / shape.num_devices <= device_bytes * (1 + 1e-9)
