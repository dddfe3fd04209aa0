"""Which clock a run in rounds has."""

from __future__ import annotations

from trainyard.fleet.mechanism.allocator import Allocator
from trainyard.fleet.rounds.planned import PlannedEnds
from trainyard.fleet.rounds.planned_round_scheduler import PlannedScheduler
from trainyard.fleet.rounds.restarts import Restarts, RestartScheduler
from trainyard.fleet.rounds.round_scheduler import RoundScheduler
from trainyard.fleet.rounds.rounds import Rounds
from trainyard.fleet.rounds.slots import Slots, SlotScheduler


def round_scheduler_of(rounds: Rounds, allocator: Allocator) -> RoundScheduler:
    """The clock of a run in rounds of some kind."""
    if isinstance(rounds, PlannedEnds):
        return PlannedScheduler(rounds, allocator)
    if isinstance(rounds, Slots):
        return SlotScheduler(rounds, allocator)
    if isinstance(rounds, Restarts):
        return RestartScheduler(rounds, allocator)
    return RoundScheduler(rounds, allocator)
