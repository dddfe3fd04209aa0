"""Asking a policy, and finding out on which jobs it fails."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from trainyard.fleet.policy import Policy, Targets
from trainyard.fleet.run.fault import is_everybodys, one_line
from trainyard.fleet.snapshot import Snapshot

__all__ = ["UndecidedError", "decide"]


class UndecidedError(Exception):
    """No decision could be made because of some jobs: why, by row."""

    def __init__(self, jobs: Mapping[int, str]) -> None:
        super().__init__("; ".join(jobs.values()))
        self.jobs = {row: f"the policy cannot decide on it: {why}" for row, why in jobs.items()}


def decide(policy: Policy, snapshot: Snapshot, state: Any) -> tuple[Targets, Any]:
    """What a policy decides, and its next state.

    Raises
    ------
    UndecidedError
        If it fails, and does so on some jobs when it is asked about each alone, but not on all: these are to blame.
    Exception
        The policy's own, if no job can be blamed.
    """
    try:
        return policy.decide(snapshot, state)
    except Exception as error:
        if jobs := _culprits(policy, snapshot):
            raise UndecidedError(jobs) from error
        raise


def _culprits(policy: Policy, snapshot: Snapshot) -> dict[int, str]:
    found: dict[int, str] = {}
    for row in snapshot.rows.tolist():
        alone = replace(snapshot, rows=np.array([row]))
        try:
            policy.decide(alone, policy.start(snapshot.site))
        except Exception as error:
            if not is_everybodys(error):
                found[row] = one_line(error)
    return found if len(found) < snapshot.num_jobs else {}
