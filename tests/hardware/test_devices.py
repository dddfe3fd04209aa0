"""Devices, presets and interconnects."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from trainyard.hardware import (
    DEVICES,
    DTYPES,
    INTERCONNECTS,
    NODE_PRESETS,
    DeviceSpec,
    HardwareError,
    device_named,
    interconnect_named,
    node_topology,
)
from trainyard.hardware.interconnects import network_of_gbit
from trainyard.hardware.nodes import CUBE_MESH_LINKS


@pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES.keys())
def test_presets_are_complete_and_plausible(device: DeviceSpec) -> None:
    assert tuple(device.peak_flops_per_s) == DTYPES
    assert device.peak("float8") >= device.peak("bfloat16") * 0.99 or device.peak("float8") >= device.peak(
        "float16"
    )
    assert device.peak("tf32") >= device.peak("float32")
    assert device.source
    assert device.name in NODE_PRESETS
    assert device == DeviceSpec.from_dict(device.to_dict())
    again = pickle.loads(pickle.dumps(device))
    assert (again, hash(again)) == (device, hash(device))


def test_datasheet_numbers() -> None:
    assert device_named("a100-80g").peak("bfloat16") == 312e12
    assert device_named("H100").memory_bandwidth_bytes_per_s == 3.35e12
    assert device_named("V100-16G").peak("bfloat16") == device_named("V100-16G").peak("float32") == 15.7e12
    assert device_named("T4").memory_bytes == 16 * 2**30


@pytest.mark.parametrize("name", ["A100-80G", "V100-16G", "K80", "TPUv3"])
def test_rates_rise_to_their_ceiling(name: str) -> None:
    device = device_named(name)
    for dtype in DTYPES:
        ceiling = device.peak(dtype) * device.efficiency.max_matmul_fraction
        rates = [device.matmul_flops_per_s(10.0**power, dtype) for power in range(4, 16)]
        assert rates == sorted(rates)
        assert 0.99 * ceiling < rates[-1] < ceiling
    # The ramp is a time: the same for each dtype.
    ramps = [
        1e9 / device.matmul_flops_per_s(1e9, dtype)
        - 1e9 / device.peak(dtype) / device.efficiency.max_matmul_fraction
        for dtype in DTYPES
    ]
    assert ramps == pytest.approx([4e-6] * len(DTYPES))
    half = device.efficiency.half_memory_bytes
    full = device.memory_bandwidth_bytes_per_s * device.efficiency.max_memory_fraction
    assert device.memory_rate_bytes_per_s(half) == pytest.approx(full / 2)
    assert device.matmul_flops_per_s(0, "float32") == device.memory_rate_bytes_per_s(0) == 0.0


def test_half_of_the_ceiling_is_where_the_spec_says() -> None:
    device = device_named("A100-80G")
    half = device.efficiency.half_matmul_flops
    ceiling = device.peak("bfloat16") * device.efficiency.max_matmul_fraction
    assert device.matmul_flops_per_s(half, "bfloat16") == pytest.approx(ceiling / 2)


def test_the_lasting_rate_is_written_where_it_is_known() -> None:
    known, other = device_named("B200"), device_named("H100")
    assert known.efficiency.sustained_matmul_fraction == 0.49
    assert known.to_dict()["efficiency"]["sustained_matmul_fraction"] == 0.49
    assert "sustained_matmul_fraction" not in other.to_dict()["efficiency"]
    for device in (known, other):
        assert DeviceSpec.from_dict(device.to_dict()) == device
    assert other.matmul_flops_per_s(1e12, "bfloat16", sustained=True) == other.matmul_flops_per_s(
        1e12, "bfloat16"
    )
    with pytest.raises(HardwareError, match="sustained_matmul_fraction is 0; allowed: a fraction"):
        replace(other.efficiency, sustained_matmul_fraction=0)


def test_bad_devices_are_refused() -> None:
    device = device_named("T4")
    with pytest.raises(HardwareError, match="A100-40G, A100-80G"):
        device_named("A100")
    with pytest.raises(HardwareError, match="bfloat16"):
        device.peak("float64")
    with pytest.raises(HardwareError, match="float32"):
        replace(device, peak_flops_per_s={"float16": 1.0})
    with pytest.raises(HardwareError, match="int4"):
        replace(device, peak_flops_per_s={"float32": 1.0, "int4": 1.0})
    with pytest.raises(HardwareError, match="memory_bytes"):
        replace(device, memory_bytes=0)
    with pytest.raises(HardwareError, match="max_matmul_fraction"):
        replace(device.efficiency, max_matmul_fraction=1.5)
    with pytest.raises(HardwareError, match=r"driver_bytes of 'T4' is .*allowed: less than its memory_bytes"):
        replace(device, memory_bytes=2**30)
    with pytest.raises(HardwareError, match="channels is -1"):
        replace(device.overhead, channels=-1)
    with pytest.raises(HardwareError, match="fragmented_fraction is 1"):
        replace(device.overhead, fragmented_fraction=1)
    with pytest.raises(HardwareError, match="overhead of device 'T4', field 'rate': no such field"):
        DeviceSpec.from_dict({**device.to_dict(), "overhead": {"rate": 1}})
    with pytest.raises(HardwareError, match="device 'half', field 'efficiency' is missing"):
        DeviceSpec.from_dict({"name": "half"})


def test_a_v100_has_six_nvlinks() -> None:
    for gpu in range(8):
        assert sum(width for pair, width in CUBE_MESH_LINKS.items() if gpu in pair) == 6


def test_interconnects() -> None:
    for interconnect in INTERCONNECTS.values():
        assert 0 < interconnect.efficiency <= 1
        assert interconnect.source
    assert network_of_gbit(100) is INTERCONNECTS["InfiniBand-100Gb"]
    assert network_of_gbit(40).nominal_bytes_per_s == 5e9
    with pytest.raises(HardwareError, match="NVLink3"):
        interconnect_named("NVLink9")
    with pytest.raises(HardwareError, match="more than zero"):
        network_of_gbit(0)


@pytest.mark.parametrize("name", NODE_PRESETS)
@pytest.mark.parametrize("num_devices", [1, 2, 3, 4, 8, 16])
def test_every_device_of_a_node_reaches_every_other_and_the_network(name: str, num_devices: int) -> None:
    topology = node_topology(name, num_devices)
    assert topology.has_network
    nics = {link for i in range(num_devices) for link in topology.egress(i)}
    for i in range(num_devices):
        assert topology.egress(i)
        assert topology.ingress(i)
        for j in range(num_devices):
            route = topology.local_route(i, j)
            assert bool(route) == (i != j)
            assert not any("network" in topology.links[link].name for link in route)
    assert nics


def test_a_description_without_overhead_offers_all_memory() -> None:
    plain = device_named("A100-80G").to_dict()
    assert DeviceSpec.from_dict(plain) == device_named("A100-80G")
    assert 0 < DeviceSpec.from_dict(plain).usable_bytes < plain["memory_bytes"]
    del plain["overhead"]
    assert DeviceSpec.from_dict(plain).usable_bytes == plain["memory_bytes"]
