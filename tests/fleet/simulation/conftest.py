"""Compiled code comes early, and comes back to Python often."""

from __future__ import annotations

import pytest

from trainyard.fleet.mechanism import pending_notes
from trainyard.fleet.simulation import compiled_events, simulator
from trainyard.fleet.simulation.run_progress import ProgressCheck


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulator, "_COMPILED_AFTER", 20)
    monkeypatch.setattr(simulator, "_COMPILED_EVENTS_AFTER", 20)
    monkeypatch.setattr(ProgressCheck, "look_every", 50)
    monkeypatch.setattr(compiled_events, "_NUM_COMING", 7)
    monkeypatch.setattr(pending_notes, "_NUM_NOTES", 9)
