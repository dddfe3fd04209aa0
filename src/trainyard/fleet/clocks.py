"""Which clock a run in rounds has."""

from __future__ import annotations

from trainyard.fleet.holdings import Holdings
from trainyard.fleet.planned import PlannedEnds
from trainyard.fleet.planned_turns import PlannedTurns
from trainyard.fleet.restarts import Restarts, RestartTurns
from trainyard.fleet.rounds import Rounds
from trainyard.fleet.slots import Slots, SlotTurns
from trainyard.fleet.turns import Turns


def clock_of(rounds: Rounds, holdings: Holdings) -> Turns:
    """The clock of a run in rounds of some kind."""
    if isinstance(rounds, PlannedEnds):
        return PlannedTurns(rounds, holdings)
    if isinstance(rounds, Slots):
        return SlotTurns(rounds, holdings)
    if isinstance(rounds, Restarts):
        return RestartTurns(rounds, holdings)
    return Turns(rounds, holdings)
