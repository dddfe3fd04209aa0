"""Tables of speeds: by device type and number of devices."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trainyard.fleet.errors import FleetError
from trainyard.fleet.workload.job import Grant, Spot, declared_job
from trainyard.fleet.workload.speeds import Speeds, spots, tabulated
from trainyard.hardware.parse import parse_cluster


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


def test_spread_over_nodes_it_may_be_slower() -> None:
    speeds = Speeds.parse("v100:2=8 v100:4=16 v100:4/2=12 v100:4/4=9.5")
    found = {
        (n, nodes): speeds.work_per_s(Spot("v100", n, nodes), Grant(tuple(range(n))))
        for n, nodes in ((2, 1), (2, 2), (4, 1), (4, 2), (4, 3), (4, 4), (6, 2))
    }
    assert found == {(2, 1): 8, (2, 2): 8, (4, 1): 16, (4, 2): 12, (4, 3): 12, (4, 4): 9.5, (6, 2): 12}
    assert Speeds.parse(str(speeds)) == speeds
    for text in ("V100:4/8=5", "V100:4/0=5", "V100:4/=5", "V100:4/x=5"):
        with pytest.raises(
            FleetError, match="is not TYPE:DEVICES=WORK_PER_S, or TYPE:DEVICES/NODES=WORK_PER_S"
        ):
            Speeds.parse(text)
    with pytest.raises(FleetError, match="no speeds given"):
        Speeds.parse("V100:4/2=5")


def test_places_are_on_the_fewest_nodes_and_then_even() -> None:
    cluster = parse_cluster("3x4xv100+1x2xv100+1x1xk80")
    found = [(spot.device_type, spot.per_node) for spot in spots(cluster, (1, 6, 4, 14, 99))]
    assert found == [
        ("v100", (1,)),
        ("v100", (4,)),
        ("v100", (2, 2)),
        ("v100", (1, 1, 1, 1)),
        ("v100", (4, 2)),
        ("v100", (2, 2, 2)),
        ("v100", (4, 4, 4, 2)),
        ("k80", (1,)),
    ]


class Halved:
    """As many as there are devices, half over several nodes."""

    def work_per_s(self, spot: Spot, grant: Grant) -> float:
        return spot.num_devices / (2 if spot.num_nodes > 1 else 1)


def test_tabulated() -> None:
    half, cluster = declared_job("x", 0.0, 2, 100.0), parse_cluster("1x2xv100")
    table = tabulated(half, cluster, (1, 2))
    assert table.profile == Speeds((("v100", 1, 0.5), ("v100", 2, 1.0)))
    assert (table.name, table.work) == ("x", 100.0)
    with pytest.raises(FleetError, match="runs on none of the device types"):
        tabulated(table, parse_cluster("1x2xk80"), (1,))
    slowed = tabulated(replace(half, profile=Halved()), parse_cluster("2x2xv100"), (2, 4))
    assert str(slowed.profile) == "v100:2=2.0 v100:4=2.0 v100:2/2=1.0"
