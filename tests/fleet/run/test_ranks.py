"""The ranks of a job on one node find each other, and the devices that are theirs, by variables of their environment."""

from __future__ import annotations

from trainyard.fleet.run.ranks import Ranks


def test_a_process_has_the_variables_of_launchers() -> None:
    ranks = Ranks(4, 2, 8, "meeting", "2x2xA100-80G")
    expected = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    assert ranks.environment(5) == expected


def test_devices_are_named_where_some_are_another_jobs() -> None:
    ranks = Ranks(0, 2, 2, "meeting", "1x4xA100-80G", devices="1,3")
    assert ranks.environment(0)["CUDA_VISIBLE_DEVICES"] == "1,3"
