"""Placements as JSON: written, read back, and refused where something is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trainyard.hardware.parse import parse_cluster
from trainyard.serve.deploy import deploy
from trainyard.serve.errors import ServeError
from trainyard.serve.placement import Group, Placement, Replica
from trainyard.serve.placement_document import load_placement, parse_placement, placement_text

_TWO = Placement((Group((2, 3), (Replica("a", 2), Replica("b", 1, 2))), Group((0,), (Replica("a"),))))


def test_what_is_written_is_read_back() -> None:
    assert parse_placement(placement_text(_TWO)) == _TWO


def test_plans_are_read_back(tmp_path: Path) -> None:
    found = deploy("llama-tiny", parse_cluster("1x4xA100-80G"), tensor_parallel=2).placement()
    assert [group.devices for group in found.groups] == [(0, 1), (2, 3)]
    path = tmp_path / "placement.json"
    path.write_text(placement_text(found))
    assert load_placement(path) == found


def test_what_is_left_out_is_one_device_without_a_plan() -> None:
    text = '{"groups": [{"devices": [3], "replicas": [{"model": "a"}]}]}'
    assert parse_placement(text) == Placement((Group((3,), (Replica("a"),)),))


def _with(devices: object = (0,), **fields: Any) -> dict[str, Any]:
    return {"groups": [{"devices": devices, "replicas": [{"model": "a", **fields}]}]}


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ([], "expected a mapping"),
        ({}, "field 'groups' is missing; allowed is a list"),
        ({"groups": []}, "allowed is one group or more"),
        ({"groups": [{"devices": [0]}]}, r"the placement, field 'groups'\[0\], field 'replicas' is missing"),
        (_with() | {"model": "a"}, "no such field; there are groups"),
        (_with(tp=2), "no such field; there are model, pipeline_stages, tensor_parallel, plan"),
        (_with(["0"]), "allowed is a list of whole numbers"),
        (_with([-1]), "allowed is a list of whole numbers"),
        (_with([True]), "allowed is a list of whole numbers"),
        (_with([]), "allowed is one device or more"),
        (_with([0, 0], tensor_parallel=2), "device 0 is there twice"),
        (_with([0, 1]), "is split over 1 devices; pipeline_stages x tensor_parallel must be 2"),
        (_with(tensor_parallel=0), "allowed is a whole number from 1"),
        (_with(model=3), "allowed is a text"),
        (_with(plan="model: a"), "field 'plan' is not a plan"),
        (_with(plan=None), "the text of a plan"),
        ({"groups": [*_with()["groups"], *_with()["groups"]]}, "device 0 is in two groups"),
    ],
)
def test_what_is_no_placement_is_refused(document: object, says: str) -> None:
    with pytest.raises(ServeError, match=says):
        parse_placement(json.dumps(document))


def test_what_is_no_json_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "placement.json"
    path.write_text('{"groups":\n oops}')
    with pytest.raises(ServeError, match=r"placement\.json, line 2: not JSON"):
        load_placement(path)
    with pytest.raises(ServeError, match="cannot read"):
        load_placement(tmp_path / "none.json")
