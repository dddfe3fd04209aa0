"""Defaults of a command are those of the functions that it calls."""

from pathlib import Path

from trainyard.cli.fleet.simulate import Options
from trainyard.fleet.mechanism.costs import Costs
from trainyard.fleet.mechanism.crowding import Crowding
from trainyard.fleet.mechanism.hazards import Hazards


def test_conditions_of_a_simulation_are_by_default_those_of_python() -> None:
    options = Options(trace=Path("jobs.csv"), cluster="4x4")
    expected = {"costs": Costs(), "hazards": Hazards(seed=3), "crowding": Crowding()}
    assert options.conditions(3) == expected
