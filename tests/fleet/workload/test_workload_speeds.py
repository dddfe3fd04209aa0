"""Tables of speeds: by device type and number of devices."""

from __future__ import annotations

import pytest

from trainyard.fleet.site import FleetError
from trainyard.fleet.workload.job import Grant, Spot, declared_job
from trainyard.fleet.workload.speeds import Speeds, tabulated


def on(speeds: Speeds, size: int, device_type: str = "v100", share: float = 1.0) -> float:
    return speeds.work_per_s(Spot(device_type, size, 1), Grant(tuple(range(size)), share))


def test_speeds_read_as_they_are_written() -> None:
    speeds = Speeds.parse("v100:1=5.5 v100:4=1e1  a:b:2=0.1")
    assert [on(speeds, n) for n in (1, 2, 4, 8)] == [5.5, 5.5, 10, 10]
    assert [on(speeds, 2, "a:b"), on(speeds, 1, "a:b"), on(speeds, 1, "K80"), on(speeds, 1, share=0.5)] == [
        0.1,
        0,
        0,
        2.75,
    ]
    assert Speeds.parse(str(speeds)) == speeds
    for text in ("V100=5", "V100:x=5", "V100:0=5", "V100:1=-1", "V100:1=inf", ":1=5"):
        with pytest.raises(FleetError, match="is not TYPE:DEVICES=WORK_PER_S"):
            Speeds.parse(text)


def test_tabulated() -> None:
    half = declared_job("x", 0.0, 2, 100.0)
    table = tabulated(half, ("v100",), (1, 2))
    assert table.profile == Speeds((("v100", 1, 0.5), ("v100", 2, 1.0)))
    assert (table.name, table.work) == ("x", 100.0)
    with pytest.raises(FleetError, match="runs on none of the device types"):
        tabulated(table, ("k80",), (1,))
