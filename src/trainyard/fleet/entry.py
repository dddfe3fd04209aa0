"""One entry of the catalog: a published system, its factory, and its description."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from trainyard.fleet.policy import Policy
from trainyard.fleet.snapshot import Need
from trainyard.fleet.traits import traits_of

__all__ = ["Entry"]


@dataclass(frozen=True)
class Entry:
    """One published system.

    Attributes
    ----------
    name : by which users call it; also the name of its page.
    factory : makes the policy from keyword hyper-parameters; its defaults are the paper's.
    title : one line.
    paper : authors, title, venue and year.
    fidelity : whether the decision is the paper's, or what is left out is said in ``left_out``.
    needs : what must be known of jobs.
    variants : settings that the paper compares, by name; keyword arguments of ``factory``.
    claim_test : file of the test of the paper's claim, from the repository's root.
    place : placement of the jobs that it does not place itself.
    simulated_only : what of its decisions backends do not bring about for real trainings, in words.
    """

    name: str
    factory: Callable[..., Policy]
    title: str
    paper: str
    fidelity: Literal["exact", "simplified"]
    claim_test: str
    left_out: str = ""
    needs: tuple[Need, ...] = ()
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    place: str = "consolidated"
    simulated_only: str = ""

    @property
    def shares(self) -> bool:
        """Whether several jobs may have one device at once."""
        return traits_of(self.factory()).shares

    @property
    def runs(self) -> str:
        """Say where the system runs."""
        but = f", but for {self.simulated_only}," if self.simulated_only else ""
        return f"in simulation and{but} for real trainings"

    @property
    def round_s(self) -> float | None:
        """Length of the rounds in which it decides if nothing else is said; None for whenever something happens."""
        return traits_of(self.factory()).round_s

    @property
    def module(self) -> str:
        """Dotted name of the file that holds the factory."""
        return self.factory.__module__
