"""A policy of the catalog as it drives an engine: with its paper's placement and rounds, unless told otherwise."""

from __future__ import annotations

from dataclasses import dataclass

from trainyard.fleet.catalog import find, parse_policy
from trainyard.fleet.place.nodes import placement
from trainyard.fleet.policy import Policy
from trainyard.fleet.rounds import RoundBased, Rounds
from trainyard.fleet.site import FleetError


@dataclass(frozen=True)
class Setting:
    """How jobs are scheduled.

    Attributes
    ----------
    text : the policy as it was named, with its options.
    place : name of the placement of jobs that the policy does not place itself.
    rounds : when decisions are made; None for whenever something happens.
    """

    text: str
    policy: Policy
    place: str
    rounds: Rounds | None


def setting_of(text: str, place: str | None = None, round_s: float | None = None) -> Setting:
    """Read one policy for real jobs.

    Parameters
    ----------
    place, round_s : in place of those of the policy's paper.

    Raises
    ------
    FleetError
        If there is no such policy or placement, or the policy only decides for the simulator.
    """
    policy, entry = parse_policy(text), find(text.partition("(")[0].strip())
    place = place or entry.place
    placement(place)
    round_s = round_s or entry.round_s
    rounds = Rounds(round_s) if round_s else None
    if isinstance(policy, RoundBased):
        rounds = policy.rounds(rounds)
        if rounds.published is not None:
            raise FleetError(
                f"policy {text!r} follows its authors' simulator, whose jobs do whole steps; run jobs for real without "
                "as_published"
            )
    return Setting(text, policy, place, rounds)
