"""Tables of devices, of machines, of speeds, of a daemon's jobs and of papers show each number in its column and unit."""

from __future__ import annotations

from dataclasses import replace

from distinct_results import Distinct
from shown_cells import Of, Row, check_facts, check_table, memory, number, printed, seconds, share

from trainyard.cli.fleet.profile import _entry, _table
from trainyard.cli.fleet.status import _row
from trainyard.cli.papers import _document, _facts
from trainyard.fleet.workload.job import Spot
from trainyard.fleet.workload.predict import Throughput
from trainyard.hardware.devices import DeviceSpec, Efficiency
from trainyard.hardware.overhead import NO_OVERHEAD
from trainyard.hardware.profile import CollectiveSample, MachineProfile, MatmulSample, MemorySample
from trainyard.report.systems import LEVELS
from trainyard.report.tables import device_table, machine_facts


def test_devices_have_their_memory_peaks_and_stream() -> None:
    device = Distinct().of(
        DeviceSpec,
        name="one",
        memory_bytes=40 * 2**30,
        peak_flops_per_s={"float32": 19.5e12, "float16": 301e12, "bfloat16": 307e12},
        memory_bandwidth_bytes_per_s=2.04e12,
        efficiency=Efficiency(0.5, 1e9, 0.7, 1e6),
        overhead=replace(NO_OVERHEAD, driver_bytes=3 * 2**30),
    )
    row: Row = [
        ("device", "one"),
        ("memory", memory(40 * 2**30)),
        ("for plans", memory(37 * 2**30)),
        ("peak, 16 bit", Of(307e12, "flop/s")),
        ("peak, float32", Of(19.5e12, "flop/s")),
        ("memory stream", Of(2.04e12, "B/s")),
    ]
    check_table(printed(device_table((device,))), [row])


def test_a_machine_has_its_own_rates_and_times() -> None:
    samples = (
        MatmulSample("float32", 4, 6e9, 0.1),
        MatmulSample("bfloat16", 4, 6e9, 0.15),
        MatmulSample("float32", 1, 6e9, 0.5),
    )
    profile = MachineProfile(
        "made up",
        4,
        17 * 2**30,
        "2.9",
        7e-6,
        samples,
        (MemorySample(4, 8e9, 0.25), MemorySample(1, 8e9, 0.5)),
        (
            CollectiveSample("all_reduce", 2, 2.0**10, 83e-6),
            CollectiveSample("all_reduce", 2, 2.0**24, 0.019),
        ),
        when_s=1_000.0,
        others=0.13,
    )
    wanted: Row = [
        ("processor", "made up"),
        ("cores", number(4)),
        ("memory", memory(17 * 2**30)),
        ("PyTorch", "2.9"),
        ("matrix products, bfloat16", Of(4e10, "flop/s")),
        ("matrix products, float32", Of(6e10, "flop/s")),
        ("memory stream", Of(3.2e10, "B/s")),
        ("one small op", seconds(7e-6)),
        ("all-reduce of 1.00 KiB, 2 processes", seconds(83e-6)),
        ("all-reduce of 16.0 MiB, 2 processes", seconds(0.019)),
        ("measured", (seconds(7_200.0), " ago, while other work used ", share(0.13), " of the cores")),
    ]
    check_facts(machine_facts(profile, 8_200.0), wanted)


def test_speeds_of_a_model_are_by_place() -> None:
    runs = Throughput(Spot("V100", 6, 3, (1, 2, 3)), 0.29)
    cannot = Throughput(Spot("K80", 2, 1, (2,)), 0.0, "too little memory")
    row: Row = [
        ("type", "V100"),
        ("devices", number(6)),
        ("nodes", number(3)),
        ("steps/s", number(0.29)),
        ("rows/s", number(0.29 * 32)),
    ]
    check_table(printed(_table("title", (runs,), 32)), [row])
    without: Row = [
        ("type", "K80"),
        ("cannot run", "too little memory"),
        ("devices", number(2)),
        ("nodes", number(1)),
        ("steps/s", "-"),
        ("rows/s", "-"),
    ]
    check_table(
        printed(_table("title", (runs, cannot), 32)), [[row[0], ("cannot run", ""), *row[1:]], without]
    )
    assert _entry(runs) == {
        "device_type": "V100",
        "num_devices": 6,
        "num_nodes": 3,
        "devices_per_node": (1, 2, 3),
        "steps_per_s": 0.29,
        "reason": "",
    }


def test_a_job_of_a_daemon_has_its_own_cells() -> None:
    job = {
        "name": "j", "user": "ann", "state": "ended", "model": "gpt", "reason": "done", "devices": [5, 7],
        "num_devices": 3, "steps_done": 11, "steps": 13, "arrival_s": 400.0, "finish_s": 431.0,
    }  # fmt: skip
    assert _row(job) == ("j", "ann", "ended", "gpt", "done", "5, 7", "11/13", "31.0 s")
    assert _row({**job, "devices": []})[5] == "asked: 3"
    assert _row({**job, "steps": None, "share_done": 0.455})[6] == "45.5 %"


def test_a_paper_is_told_by_its_entry() -> None:
    level = LEVELS[0]
    (system,) = (each for each in level.systems if each.name == "zero")
    found = _document(level, system)
    names = ("name", "title", "paper", "fidelity", "left_out", "needs", "variants", "claim_test")
    own = {name: getattr(system, name) for name in names}
    assert {name: found[name] for name in names} == own
    assert len({str(value) for value in own.values()}) == len(own)
    assert (found["level"], found["kind"], found["runs"]) == (
        1,
        "parallel",
        "on PyTorch processes and in simulation",
    )
    facts = dict(_facts(level, system))
    assert facts.pop("level") == "1, one model on many devices"
    said = {
        name: facts[name.replace("_", " ")]
        for name in ("paper", "fidelity", "left_out", "claim_test", "kind", "runs")
    }
    assert said == {name: found[name] for name in said}
    assert facts["options"].split(", ")[0].partition("=")[0] == "stage"
