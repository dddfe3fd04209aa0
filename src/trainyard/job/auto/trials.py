"""Trials: plans that are lowered and simulated as they would run, the slow and exact part of the search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from trainyard.job.auto.estimate import Estimate
from trainyard.job.plan import Plan
from trainyard.job.setting import Prediction, Setting

_Made = TypeVar("_Made")


@dataclass(frozen=True, eq=False)
class Trial:
    """A plan that was simulated.

    Attributes
    ----------
    name : in a few words.
    estimate : of a point of the space; None for a published system.
    """

    name: str
    estimate: Estimate | None
    plan: Plan
    simulation: Prediction


class Trials:
    """Simulates plans, no plan twice, and keeps what it found.

    Attributes
    ----------
    found : in the order in which they were simulated.
    num_ops : of the programs that were lowered for them.
    failures : why plans could not be made, one sentence each.
    too_large : published systems that were not simulated, because their model state alone does not fit.
    untried : published systems that were left out, because the model is too large to try them all.
    """

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.found: list[Trial] = []
        self.num_ops = 0
        self.failures: list[str] = []
        self.too_large: list[str] = []
        self.untried: list[str] = []

    @property
    def best(self) -> Trial | None:
        """The fastest that fits; the first of several."""
        fitting = [t for t in self.found if t.simulation.fits]
        return min(fitting, key=lambda t: t.simulation.step_s, default=None)

    @property
    def smallest(self) -> Trial | None:
        """The one that is short of least."""
        return min(self.found, key=lambda t: max(t.simulation.shortage_bytes), default=None)

    def knows(self, plan: Plan) -> bool:
        """Return whether the same plan was simulated, whoever made it."""
        return any(_decision(plan) == _decision(t.plan) for t in self.found)

    def make(self, name: str, make: Callable[[], _Made]) -> _Made | None:
        """Make a value for a plan; None if the model cannot run so, which is remembered as a failure."""
        try:
            return make()
        except (
            ValueError,
            RuntimeError,
        ) as error:  # a model of the user's says so by any of PyTorch's errors
            self.failures.append(f"{name}: {' '.join(str(error).split())}")
            return None

    def simulate(self, name: str, plan: Plan, estimate: Estimate | None = None) -> None:
        """Simulate a plan, unless it cannot run."""
        simulation = self.make(name, lambda: self.setting.simulate(plan))
        if simulation is not None:
            self.found.append(Trial(name, estimate, plan, simulation))
            self.num_ops += len(self.setting.task.program(plan.rows_per_microbatch).nodes)

    @property
    def time_ratio(self) -> float:
        """The least that a simulated step took over what was estimated; 1 before there is any."""
        return min(
            (t.simulation.step_s / t.estimate.step_s for t in self.found if t.estimate is not None),
            default=1.0,
        )

    @property
    def memory_ratio(self) -> float:
        """The least that a simulated plan needed of memory over what was estimated; 1 before there is any."""
        pairs = [(t.simulation.peak_memory_bytes, t.estimate) for t in self.found]
        return min(
            (used / e.memory_bytes for used, e in pairs if e is not None and e.memory_bytes), default=1.0
        )


def failed_text(failures: Sequence[str]) -> tuple[str, ...]:
    """Say how many plans could not be made, and why not the first; nothing if all could."""
    if not failures:
        return ()
    first = failures[0].split("; ")[0].rstrip(".")  # without advice
    return (f"Left out: {len(failures)} plans that cannot run; the first, {first}.",)


def _decision(plan: Plan) -> Plan:
    return replace(plan, made_by=(), reasons=())
