"""Simulating a workload under a policy: time jumps from event to event, and nothing is sampled."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence, Sized
from contextlib import nullcontext
from typing import ParamSpec

from trainyard.compiling import python_first
from trainyard.fleet.errors import FleetError
from trainyard.fleet.mechanism.allocator import Allocator
from trainyard.fleet.mechanism.costs import Costs
from trainyard.fleet.mechanism.crowding import Crowding
from trainyard.fleet.mechanism.hazards import Fate, Hazards
from trainyard.fleet.periods import Rounds
from trainyard.fleet.place.nodes import placement
from trainyard.fleet.policy import Policy
from trainyard.fleet.records import FleetRun, Recorder
from trainyard.fleet.simulation.simulator import Simulator
from trainyard.fleet.traits import traits_of
from trainyard.fleet.workload.job import Job
from trainyard.hardware.cluster import Cluster

_P = ParamSpec("_P")
# With so many jobs, a simulation takes longer in Python than compiling takes.
_MANY_JOBS = 1000


def _run_at_once(prepare: Callable[_P, Callable[[], FleetRun]]) -> Callable[_P, FleetRun]:
    """Return a function of the same parameters that prepares a run and calls it."""

    def simulate_fleet(*args: _P.args, **named: _P.kwargs) -> FleetRun:
        """Run a workload to its end; parameters and errors are those of `prepared_run`."""
        return prepare(*args, **named)()

    simulate_fleet.__signature__ = inspect.signature(prepare).replace(  # type: ignore[attr-defined]
        return_annotation="FleetRun"
    )
    simulate_fleet.__qualname__ = simulate_fleet.__name__
    return simulate_fleet


def prepared_run(
    jobs: Iterable[Job],
    cluster: Cluster,
    policy: Policy,
    *,
    name: str = "",
    place: str = "consolidated",
    rounds: Rounds | None = None,
    costs: Costs | None = None,
    hazards: Hazards | None = None,
    crowding: Crowding | None = None,
    keep_spans: bool = False,
    strict: bool = False,
) -> Callable[[], FleetRun]:
    """Set up a simulation that runs a workload to its end when it is called, once.

    What can be refused without simulating is refused here: a cluster that is not for the policy, and if ``strict`` and
    the jobs are all there, jobs that can never run.

    A job that can never run here, as it asks to and under this policy, is left out and counted.

    Parameters
    ----------
    jobs : in the order of arrival; may be a generator, of which one job is read ahead.
    name : of the policy, for reports.
    place : name of the placement of jobs that the policy does not place itself.
    rounds : when decisions are made; by default whenever a job comes or ends, or in the rounds that the policy names.
    hazards, crowding : what goes wrong, and how jobs of a node slow each other; by default neither.
    keep_spans : note what ran where, for charts.
    strict : a job that can never run here is an error.

    Raises
    ------
    FleetError
        If the policy cannot run so; when called, if jobs are not in order, or the policy leaves jobs waiting or
        restarting for ever.
    """
    traits = traits_of(policy)
    if traits.rounds is not None:
        rounds = traits.rounds(rounds)
    hazards, crowding = hazards or Hazards(), crowding or Crowding()
    kills = isinstance(jobs, Sequence) and any(job.killed_after_s is not None for job in jobs)
    more = hazards.are_there or crowding.is_there or cluster.changes or kills
    if rounds is not None and rounds.only_simulated and more:
        raise FleetError(
            "rounds as published know no failures, no interference, no time limits and no nodes that come and go; "
            "simulate these in rounds of your own"
        )
    notes, fate = Recorder(keep_spans), Fate(hazards)
    how = nullcontext if isinstance(jobs, Sized) and len(jobs) >= _MANY_JOBS else python_first
    with how():
        allocator = Allocator(cluster, policy, placement(place), costs or Costs(), notes, fate, crowding)
        simulator = Simulator(jobs, policy, allocator, rounds, strict)

    def run() -> FleetRun:
        with how():
            simulator.run()
            return allocator.result(name, traits.placement_text(place), traits.queues_text(cluster))

    return run


simulate_fleet = _run_at_once(prepared_run)
