"""Mean response times of one device that have a closed form, and jobs to simulate them with.

Jobs arrive as a Poisson process and have a mean length of 1 s, so that the rate of arrival is the load. Lengths are
uniform from 0 to 2 s, but for priorities, where they are exponential.

References
----------
First come, first served: F. Pollaczek 1930, A. Khinchine 1932. Shortest job first: T. E. Phipps, "Machine Repair as a
Priority Waiting-Line Problem", Operations Research 4, 1956. Shortest remaining time: L. E. Schrage, L. W. Miller, "The
Queue M/G/1 with the Shortest Remaining Processing Time Discipline", Operations Research 14, 1966. Least attained
service: L. E. Schrage, "The Queue M/G/1 with Feedback to Lower Priority Queues", Management Science 13, 1967. Processor
sharing and preemptive priorities: L. Kleinrock, "Queueing Systems, Volume 2", Wiley 1976.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from scipy.integrate import quad

from trainyard.fleet.periods import Rounds
from trainyard.fleet.policy import Policy
from trainyard.fleet.simulate_fleet import simulate_fleet
from trainyard.fleet.workload.job import Job, declared_job
from trainyard.hardware.cluster import Cluster
from trainyard.published import PaperTable, Row

LOADS = (0.3, 0.5, 0.7)
ONE_DEVICE = Cluster.uniform(1, 1)
_LONGEST_S = 2.0
_MEAN_SQUARE = _LONGEST_S**2 / 3


def _mean(of_length: Callable[[float], float]) -> float:
    """Return the mean of a function of the length, over lengths."""
    return float(quad(of_length, 0.0, _LONGEST_S)[0]) / _LONGEST_S


def _load_up_to(load: float, length_s: float) -> float:
    """Load of the jobs that are no longer."""
    return load * length_s**2 / (2 * _LONGEST_S)


def first_come_s(load: float) -> float:
    return 1.0 + load * _MEAN_SQUARE / 2 / (1 - load)


def shortest_first_s(load: float) -> float:
    return 1.0 + _mean(lambda x: load * _MEAN_SQUARE / 2 / (1 - _load_up_to(load, x)) ** 2)


def shortest_remaining_s(load: float) -> float:
    def response_s(x: float) -> float:
        square = x**3 / (3 * _LONGEST_S) + x**2 * (1 - x / _LONGEST_S)
        served_s = quad(lambda t: 1 / (1 - _load_up_to(load, t)), 0.0, x)[0]
        return float(load * square / 2 / (1 - _load_up_to(load, x)) ** 2 + served_s)

    return _mean(response_s)


def least_attained_s(load: float) -> float:
    def response_s(x: float) -> float:
        # All jobs are as if cut off at x.
        mean, square = x - x**2 / (2 * _LONGEST_S), x**2 - 2 * x**3 / (3 * _LONGEST_S)
        return load * square / 2 / (1 - load * mean) ** 2 + x / (1 - load * mean)

    return _mean(response_s)


def shared_s(load: float) -> float:
    """Processor sharing; the distribution of lengths does not matter."""
    return 1.0 / (1 - load)


def below_s(urgent: float, load: float) -> float:
    """Return the time in the system of jobs that give way to others of load ``urgent``; all lengths are exponential."""
    return 1.0 / ((1 - urgent) * (1 - urgent - load))


def poisson_jobs(
    num_jobs: int, load: float, seed: int = 0, *, exponential: bool = False, prefix: str = "", **rest: Any
) -> Iterator[Job]:
    """Jobs of one device each, in the order of arrival; ``prefix`` begins their names."""
    rng = np.random.default_rng(seed)
    arrival_s = np.cumsum(rng.exponential(1 / load, num_jobs))
    length_s = rng.exponential(1.0, num_jobs) if exponential else rng.uniform(0.0, _LONGEST_S, num_jobs)
    for number, (at_s, needed_s) in enumerate(zip(arrival_s.tolist(), length_s.tolist(), strict=True)):
        yield declared_job(f"{prefix}{number}", at_s, 1, needed_s, **rest)


def response_table(
    source: str,
    policy: Policy,
    closed_form: Callable[[float], float],
    *,
    num_jobs: int = 15000,
    loads: Sequence[float] = LOADS,
    rounds: Rounds | None = None,
) -> PaperTable:
    """Mean response times by load, simulated beside a closed form."""

    def rows() -> Iterator[Row]:
        for load in loads:
            run = simulate_fleet(poisson_jobs(num_jobs, load), ONE_DEVICE, policy, rounds=rounds)
            yield Row(f"load {load:g}", closed_form(load), run.mean_completion_s)

    return PaperTable(
        source,
        "mean response time, s, of jobs of 1 s",
        f"simulated: {num_jobs} jobs on one device, Poisson arrivals, lengths uniform from 0 to 2 s",
        rows,
        tolerance=0.06,
        caveat="the mean of so many jobs still varies by some percent from seed to seed, the more the higher the load",
        is_slow=True,
    )


def together_table(policy: Policy, rounds: Rounds | None = None) -> PaperTable:
    """When jobs that come at once end if the device is shared evenly among those that are left."""
    hours = (1, 2, 3, 4, 5, 6)

    def rows() -> Iterator[Row]:
        jobs = [declared_job(str(n), 0.0, 1, 3600.0 * n) for n in hours]
        run = simulate_fleet(jobs, ONE_DEVICE, policy, rounds=rounds)
        ended_h = dict(zip(run.names, (run.finish_s / 3600).tolist(), strict=True))
        for n in hours:
            # While it is there, every other job has had as much as it, or all that it needed.
            yield Row(f"{n} h long", float(sum(min(n, other) for other in hours)), ended_h[str(n)])

    return PaperTable(
        "Kleinrock, Queueing Systems, Volume 2, 1976, processor sharing of jobs that come at once",
        "end, h",
        "simulated: six jobs of 1 to 6 h on one device, slices of a minute",
        rows,
        tolerance=0.02,
        caveat="turns of a minute are not an even share at every moment",
    )
