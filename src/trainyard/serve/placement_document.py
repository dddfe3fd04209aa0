"""The text form of a placement: a JSON document, which `serve plan` and `serve place` write and `serve run` reads.

``{"groups": [{"devices": [0, 1], "replicas": [{"model": "gpt2", "pipeline_stages": 1, "tensor_parallel": 2, "plan":
""}]}]}``, where ``plan`` is the text of a plan of level 1, or "" where there is none. Stages, shards and plan may be left
out: then they are 1, 1 and none.
"""

from __future__ import annotations

import json
from pathlib import Path

from trainyard.job.plan import Plan, PlanError
from trainyard.job.plan.read import parse_plan
from trainyard.reading import ReadingError, Section, parse_json, raised_as, read_text
from trainyard.reading.limits import MOST_DEVICES
from trainyard.serve.errors import ServeError
from trainyard.serve.placement import Group, Placement, Replica

__all__ = ["load_placement", "parse_placement", "placement_text"]


def placement_text(placement: Placement) -> str:
    """JSON; `parse_placement` reads it back."""
    groups = [
        {"devices": list(group.devices), "replicas": [_replica_document(each) for each in group.replicas]}
        for group in placement.groups
    ]
    return json.dumps({"groups": groups}, indent=2) + "\n"


def _replica_document(replica: Replica) -> dict[str, object]:
    return {
        "model": replica.model,
        "pipeline_stages": replica.pipeline_stages,
        "tensor_parallel": replica.tensor_parallel,
        "plan": replica.plan.to_text() if replica.plan is not None else "",
    }


def load_placement(path: Path) -> Placement:
    """Read a file with a placement.

    Raises
    ------
    ServeError
        If there is no such file, or it holds no placement.
    """
    with raised_as(ServeError):
        text = read_text(path)
    return parse_placement(text, path)


def parse_placement(text: str, source: str | Path = "the placement") -> Placement:
    """Read a placement's text form.

    Parameters
    ----------
    source : what errors call it.

    Raises
    ------
    ServeError
        If the text is not JSON, a field is missing, unknown or of the wrong kind, a plan is none or is for another number
        of devices, or groups have devices in common.
    """
    with raised_as(ServeError):
        given = Section.of(parse_json(text, source), source)
        given.refuse_unknown(("groups",))
        groups = tuple(_read_group(each) for each in given.sections("groups"))
        if not groups:
            raise given.error("groups", "one group or more")
    try:
        return Placement(groups)
    except ServeError as error:
        raise ServeError(f"{source}: {error}") from error


def _read_group(given: Section) -> Group:
    given.refuse_unknown(("devices", "replicas"))
    devices = given.items_of("devices")
    if not all(type(each) is int and 0 <= each < MOST_DEVICES for each in devices):
        raise given.error("devices", f"a list of whole numbers from 0 to {MOST_DEVICES - 1:,}")
    replicas = tuple(_read_replica(each) for each in given.sections("replicas"))
    try:
        return Group(tuple(devices), replicas)
    except ServeError as error:
        raise ReadingError(f"{given.source}: {error}") from error


def _read_replica(given: Section) -> Replica:
    given.refuse_unknown(("model", "pipeline_stages", "tensor_parallel", "plan"))
    try:
        return Replica(
            given.text("model"),
            given.whole("pipeline_stages", 1, MOST_DEVICES, 1),
            given.whole("tensor_parallel", 1, MOST_DEVICES, 1),
            _read_plan(given),
        )
    except ServeError as error:
        raise ReadingError(f"{given.source}: {error}") from error


def _read_plan(given: Section) -> Plan | None:
    text = given.get("plan", "")
    if not isinstance(text, str):
        raise given.error("plan", 'the text of a plan, or ""')
    try:
        return parse_plan(text, given.place("plan"), trains=False) if text else None
    except PlanError as error:
        raise ReadingError(str(error)) from error
