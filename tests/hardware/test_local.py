"""Measuring this machine, and the cache of it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from trainyard.hardware import (
    CollectiveSample,
    HardwareError,
    MachineProfile,
    MatmulSample,
    MemorySample,
    cluster_of_profile,
    forget_measurements,
    local,
    local_cluster,
    local_profile,
    parse_cluster,
)
from trainyard.hardware.local import remembered_cluster
from trainyard.hardware.measure import machine_identity, measure_machine
from trainyard.hardware.parse import cluster_from_yaml, is_described_by_name


def _profile(**changes: object) -> MachineProfile:
    identity = machine_identity()
    values: dict[str, object] = {
        **identity,
        "op_s": 1e-6,
        "matmul": (
            MatmulSample("float32", 1, 1e6, 2e-5),
            MatmulSample("float32", 1, 1e9, 1.001e-2),
            MatmulSample("bfloat16", 1, 1e9, 0.5e-2),
        ),
        "memory": (MemorySample(1, 1e9, 0.1),),
        "collectives": (
            CollectiveSample("all_reduce", 2, 1e3, 1e-4),
            CollectiveSample("all_reduce", 2, 1e5, 5e-4),
            CollectiveSample("all_reduce", 2, 1e6, 4e-4),
            CollectiveSample("all_reduce", 4, 1e3, 3e-4),
            CollectiveSample("all_reduce", 4, 1e6, 1.2e-3),
            CollectiveSample("send", 2, 1e3, 1e-5),
            CollectiveSample("send", 2, 1e7, 1e-2),
        ),
    }
    return MachineProfile(**{**values, **changes})  # type: ignore[arg-type]


def test_profile_round_trips_and_refuses_what_it_cannot_read() -> None:
    profile = _profile()
    assert MachineProfile.from_json(profile.to_json()) == profile
    for text in ("{", "[]", "{}", '{"version": 0}', profile.to_json().replace('"op_s"', '"ops"')):
        with pytest.raises(HardwareError, match="measure again"):
            MachineProfile.from_json(text)


def test_curves() -> None:
    profile = _profile()
    assert profile.collective_s("all_reduce", 2, 1.0) == 1e-4
    assert profile.collective_s("all_reduce", 2, 1e5) == pytest.approx(
        4e-4
    )  # not slower than ten times the bytes
    # Between 1e3 and 1e5 bytes, on logarithmic axes: a quarter of the way, and half of it.
    assert profile.collective_s("all_reduce", 2, 10**3.5) == pytest.approx(1e-4 * 4**0.25)
    assert profile.collective_s("all_reduce", 2, 1e4) == pytest.approx(2e-4)
    assert profile.collective_s("all_reduce", 2, 1e7) == pytest.approx(4e-3)
    # Between 2 and 7 processes, on a line: a fifth of the way.
    of_seven = (CollectiveSample("all_reduce", 7, 1e3, 6e-4), CollectiveSample("all_reduce", 7, 1e6, 9e-4))
    unlike = _profile(collectives=(*profile.collectives[:3], *of_seven))
    assert unlike.collective_s("all_reduce", 3, 1e6) == pytest.approx(4e-4 + 5e-4 / 5)
    assert unlike.collective_s("all_reduce", 3, 1.0) == pytest.approx(1e-4 + 5e-4 / 5)
    assert profile.collective_s("all_reduce", 3, 1e6) == pytest.approx(8e-4)
    assert profile.collective_s("all_reduce", 7, 1e6) == pytest.approx(2.4e-3)
    assert profile.collective_s("all_reduce", 1, 1e6) == 0.0
    assert profile.collective_s("send", 8, 1e7) == pytest.approx(1e-2)
    with pytest.raises(HardwareError, match="all_reduce, send"):
        profile.collective_s("gather", 2, 1.0)
    with pytest.raises(HardwareError, match="bfloat16, float32"):
        profile.matmul_flops_per_s("float8", 1)


def test_cluster_of_a_profile() -> None:
    profile = _profile(num_cores=4)
    cluster = cluster_of_profile(profile, 4)
    device = cluster.device(3)
    assert cluster.num_cores == 4
    assert len(set(cluster.nodes)) == 1
    assert device.memory_bytes == profile.memory_bytes // 4
    assert device.peak("float32") == pytest.approx(1e9 / 1.001e-2)
    assert device.peak("bfloat16") == pytest.approx(2e11)
    assert device.memory_bandwidth_bytes_per_s == pytest.approx(1e10)
    assert cluster.route(0, 3) == cluster.route(2, 1)
    assert cluster_from_yaml(cluster.to_yaml()) == cluster


def test_cache_is_used_replaced_when_corrupt_and_kept_per_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINYARD_CACHE", str(tmp_path / "cache"))
    calls = []

    def measure(progress: object) -> MachineProfile:
        calls.append(progress)
        return _profile(op_s=float(len(calls)))

    monkeypatch.setattr(local, "measure_machine", measure)
    assert local_profile().op_s == 1.0
    assert local_profile().op_s == 1.0
    (path,) = (tmp_path / "cache").glob("*.json")
    path.write_text(path.read_text()[:100])
    assert local_profile().op_s == 2.0
    path.write_bytes(b"\xff\xfe")
    assert local_profile().op_s == 3.0
    other = json.loads(path.read_text())
    path.write_text(json.dumps({**other, "cpu": "another"}))
    assert remembered_cluster(2) is None
    assert local_cluster(2).profile == _profile(op_s=4.0)
    assert is_described_by_name(local_cluster(2))
    assert not is_described_by_name(cluster_of_profile(_profile(op_s=9.0), 2))
    assert parse_cluster("local:3").num_devices == 3
    assert parse_cluster("local").num_devices == machine_identity()["num_cores"]
    assert len(calls) == 4
    forget_measurements()
    assert not path.exists()
    assert local_profile().op_s == 5.0
    assert list((tmp_path / "cache").glob("*.json")) == [path]
    with pytest.raises(HardwareError, match="local:4"):
        local_cluster(0)


def test_what_was_just_measured_is_what_is_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINYARD_CACHE", str(tmp_path))
    whole = tuple(CollectiveSample(kind, 2, 1024, 1e-4) for kind in ("all_reduce", "send"))
    monkeypatch.setattr(local, "measure_machine", lambda progress: _profile(collectives=whole))
    assert is_described_by_name(local_cluster(2))


def test_two_that_need_measurements_measure_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_CACHE", str(tmp_path))
    said: list[str] = []
    waits = threading.Event()

    def measure(progress: object) -> MachineProfile:
        other.start()
        assert waits.wait(60)
        return _profile(op_s=1.0)

    def hear(what: str, done: float) -> None:
        said.append(what)
        waits.set()

    found: list[MachineProfile] = []
    other = threading.Thread(target=lambda: found.append(local_profile(hear)))
    monkeypatch.setattr(local, "measure_machine", measure)
    assert local_profile() == _profile(op_s=1.0)
    other.join()
    assert found == [_profile(op_s=1.0)]
    assert said == ["waiting for another process that measures this machine"]


def test_importing_hardware_does_not_import_torch() -> None:
    code = "import sys, trainyard.hardware, trainyard.cost.collectives; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.slow
def test_this_machine_can_be_measured() -> None:
    stages: list[str] = []
    profile = measure_machine(lambda stage, part: stages.append(stage))
    assert [stage.removeprefix("measuring ") for stage in stages] == [
        "collectives between processes",
        "matrix products",
        "memory",
        "the overhead of an operation",
    ]
    assert {s.kind for s in profile.collectives} == {
        "all_reduce",
        "all_gather",
        "reduce_scatter",
        "all_to_all",
        "broadcast",
        "send",
    }
    assert {s.num_processes for s in profile.collectives} == {2, 4}
    assert {s.dtype for s in profile.matmul} == {"float32", "bfloat16"}
    assert max(s.num_threads for s in profile.matmul) == profile.num_cores
    assert MachineProfile.from_json(profile.to_json()) == profile
    assert cluster_of_profile(profile, 3).num_devices == 3
