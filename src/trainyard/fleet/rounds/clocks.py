"""Which clock a run in rounds has."""

from __future__ import annotations

from trainyard.fleet.mechanism.holdings import Holdings
from trainyard.fleet.rounds.planned import PlannedEnds
from trainyard.fleet.rounds.planned_turns import PlannedTurns
from trainyard.fleet.rounds.restarts import Restarts, RestartTurns
from trainyard.fleet.rounds.rounds import Rounds
from trainyard.fleet.rounds.slots import Slots, SlotTurns
from trainyard.fleet.rounds.turns import Turns


def clock_of(rounds: Rounds, holdings: Holdings) -> Turns:
    """The clock of a run in rounds of some kind."""
    if isinstance(rounds, PlannedEnds):
        return PlannedTurns(rounds, holdings)
    if isinstance(rounds, Slots):
        return SlotTurns(rounds, holdings)
    if isinstance(rounds, Restarts):
        return RestartTurns(rounds, holdings)
    return Turns(rounds, holdings)
