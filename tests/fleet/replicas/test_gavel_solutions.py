"""What the program of Gavel's authors takes for the best fractions, beside the policies that it departs from."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from trainyard.fleet.errors import FleetError
from trainyard.fleet.policies.gavel.objectives import LeastMakespan, MaxMinFairness
from trainyard.fleet.policies.gavel.problem import Problem
from trainyard.fleet.replicas.centre import _back, _coupling, _step, _times, centre
from trainyard.fleet.replicas.gavel import MakespanProgram, MaxMinProgram
from trainyard.fleet.replicas.gavel_fifo import FifoProgram
from trainyard.fleet.reproduce.programs.gavel import fractions, problem

Floats = NDArray[np.float64]


def drawn(seed: int) -> Problem:
    """A cluster of three types with some of its jobs on several devices, and two jobs that are alike."""
    rng = np.random.default_rng(seed)
    jobs = int(rng.integers(3, 12))
    speed = rng.uniform(0.5, 20.0, (jobs, 3))
    speed[-1] = speed[-2]
    gang = rng.choice([1.0, 1.0, 2.0, 4.0], jobs)
    gang[-1] = gang[-2]
    return problem(speed, (4, 6, 8), scale_factors=gang, left=rng.uniform(100, 1e5, jobs))


def assert_feasible(given: Problem, fraction: Floats) -> None:
    assert (fraction >= 0).all()
    assert (fraction.sum(axis=1) <= 1 + 1e-6).all()
    assert (given.scale_factors @ fraction <= given.devices_of_type * (1 + 1e-6)).all()


@pytest.mark.parametrize("seed", range(6))
def test_the_inner_solution_is_an_optimum(seed: int) -> None:
    given = drawn(seed)
    inner, corner = (fractions(policy, given) for policy in (MaxMinProgram(), MaxMinFairness()))
    assert_feasible(given, inner)
    levels = [(given.scaled_throughputs * x).sum(axis=1).min() for x in (inner, corner)]
    assert levels[0] == pytest.approx(levels[1], rel=1e-4)


def test_inner_solutions_lie_within_their_set() -> None:
    # One job, two types that are equally good for it: half of each, not a corner.
    found = centre(np.ones((1, 2)), np.ones(1), np.array([1, 1]), share=np.ones(1))
    assert found is not None
    np.testing.assert_allclose(found, [[0.5, 0.5]], atol=1e-3)
    assert centre(np.ones((1, 2)), np.ones(1), np.array([1, 1]), need=np.array([1.5])) is None


@pytest.mark.parametrize("seed", range(6))
def test_a_step_is_solved_where_a_job_needs_all_its_time_on_one_type(seed: int) -> None:
    """Near the end of the method the job's rows of time and of rate are parallel, but for rounding."""
    rng, jobs, kinds = np.random.default_rng(seed), 20, 3
    speed = rng.uniform(0.1, 3.0, (jobs, kinds))
    data = np.stack((-np.ones_like(speed), np.ones_like(speed), np.ones_like(speed), -speed))
    weight = 10.0 ** rng.uniform(-4, 4, jobs * kinds + kinds + 2 * jobs)
    weight[:kinds] = 1e7, 1e-7, 1e-7
    weight[[jobs * kinds + kinds, jobs * kinds + kinds + jobs]] = 1e-7
    columns, rows = rng.normal(size=jobs * kinds + 1), rng.normal(size=len(weight))
    level = np.ones(jobs)
    x, z = _step(data, level, weight, _coupling(data, level, weight, True), columns, rows)
    np.testing.assert_allclose(_back(data, level, z), columns, atol=1e-6)
    np.testing.assert_allclose(_times(data, level, x) - weight * z, rows, atol=1e-6)


@pytest.mark.parametrize("seed", range(6))
def test_bisection_finds_the_makespan_to_a_twentieth(seed: int) -> None:
    given = drawn(seed)
    bisected, exact = (fractions(policy, given) for policy in (MakespanProgram(), LeastMakespan()))
    assert_feasible(given, bisected)
    found_s, least_s = ((given.left / (given.throughputs * x).sum(axis=1)).max() for x in (bisected, exact))
    assert least_s * (1 - 1e-6) <= found_s <= 1.06 * least_s


def test_types_are_dealt_out() -> None:
    speed = np.array([[4.0, 2.0], [4.0, 1.0], [3.0, 3.0]])
    dealt = fractions(FifoProgram(), problem(speed, (1, 1)))
    np.testing.assert_array_equal(dealt, [[1, 0], [0, 1], [0, 0]])


def test_it_knows_no_pairs_and_solves_as_it_does() -> None:
    for asked in ({"space_sharing": True}, {"solver": "highs"}):
        with pytest.raises(FleetError, match="give neither space_sharing nor solver"):
            MaxMinProgram(**asked)  # type: ignore[arg-type]
