"""What a fleet cannot do is refused in words that say what it was, and what would do."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from trainyard.fleet.errors import FleetError
from trainyard.fleet.own_policy import checked_policy
from trainyard.fleet.place.nodes import placement
from trainyard.fleet.policies.hived.policy import hived
from trainyard.fleet.policies.queues import fifo
from trainyard.fleet.policies.tiresias.policy import tiresias
from trainyard.fleet.workload.readers.adaptdl import read_application, read_step_times

STEP_TIMES = "num_nodes,num_replicas,local_bsz,step_time,sync_time,placement\n"


def of_unknown_needs() -> object:
    policy = fifo()
    parts = {name: getattr(policy, name) for name in ("preempts", "start", "decide")}
    return checked_policy("mine", SimpleNamespace(needs=frozenset({"luck"}), **parts))


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda: placement("nearby"), "unknown placement 'nearby'; known: anywhere, "),
        (of_unknown_needs, "needs of mine are frozenset({'luck'}); it may be a frozenset of "),
        (lambda: hived("there.yaml", (("a", 8, 1),)), "give `config` or `quotas`, not both"),
        (lambda: hived(quotas=(("a", 8),)), "quotas of hived are tuples of a virtual cluster, devices of a cell, and"),
        (lambda: tiresias(thresholds=(2.0, 1.0)), "thresholds of tiresias must ascend from above 0, got (2.0, 1.0)"),
        (lambda: tiresias(thresholds=(1.0, 1.0)), "thresholds of tiresias must ascend from above 0, got (1.0, 1.0)"),
        (lambda: tiresias(thresholds=(0.0,)), "thresholds of tiresias must ascend from above 0, got (0.0,)"),
        (lambda: tiresias(promote_knob=0.0), "promote_knob of tiresias must be above 0, or None, got 0.0"),
    ],
)  # fmt: skip
def test_what_a_policy_cannot_have(ask: Callable[[], object], says: str) -> None:
    with pytest.raises(FleetError, match=re.escape(says)):
        ask()


def test_hived_goes_by_a_file_or_by_quotas(tmp_path: Path) -> None:
    assert hived(quotas=(("a", 8, 1),)).quotas == (("a", 8, 1),)
    with pytest.raises(FleetError, match=r"none\.yaml"):
        hived(str(tmp_path / "none.yaml"))


@pytest.mark.parametrize(
    ("validation", "says"),
    [
        ({}, "has no validation-<batch size>.csv; give one per batch size"),
        ({"validation-many.csv": ""}, "is named for no batch size; write validation-<batch size>.csv"),
        ({"validation-0.csv": ""}, "is named for no batch size; write validation-<batch size>.csv"),
        ({"validation-64.csv": "progress,grad_sqr,grad_var,metric\n"}, "has no rows; give one per epoch"),
    ],
)
def test_measurements_of_a_training_that_are_not_whole(
    validation: dict[str, str], says: str, tmp_path: Path
) -> None:
    for name in ("placements", "scalability"):
        (tmp_path / f"{name}.csv").write_text(STEP_TIMES)
    with pytest.raises(FleetError, match="has no rows; give one per measurement"):
        read_step_times(tmp_path / "placements.csv")
    for name in ("placements", "scalability"):
        (tmp_path / f"{name}.csv").write_text(STEP_TIMES + "1,1,8,0.5,0.1,1\n")
    for name, text in validation.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(FleetError, match=re.escape(says)):
        read_application(tmp_path)
