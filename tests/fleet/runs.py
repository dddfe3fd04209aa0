"""What tests look at in a run."""

from __future__ import annotations

from trainyard.fleet.records import FleetRun


def finished(run: FleetRun) -> dict[str, float]:
    """When each job ended, by name."""
    return dict(zip(run.names, run.finish_s.tolist(), strict=True))
