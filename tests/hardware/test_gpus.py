"""GPUs: refused where they are not there, measured in a process of its own, and remembered but for their memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from trainyard.cli.main import main
from trainyard.cli.training_device import require_device, this_machine
from trainyard.hardware import DeviceSpec, HardwareError, gpus
from trainyard.hardware import local as local_machine
from trainyard.hardware.gpus import measured_device, measured_gpu_cluster, num_gpu_nodes, require_gpus
from trainyard.hardware.remembered import forget_measurements, measurements_file
from trainyard.job.run.config import TrainConfig
from trainyard.job.run.processes.fork_server import warm_up
from trainyard.job.run.processes.worker import set_up_device
from trainyard.processes import ProcessLimits

FOUND = torch.cuda.device_count()
needs_gpu = pytest.mark.skipif(not FOUND, reason="needs a GPU: torch finds none")
GIB = 2**30


@pytest.fixture(scope="module", autouse=True)
def loaded_server() -> None:
    warm_up()


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


def launched(monkeypatch: pytest.MonkeyPatch, num_ranks: int, here: int) -> None:
    for name, value in {"RANK": 0, "WORLD_SIZE": num_ranks, "LOCAL_WORLD_SIZE": here}.items():
        monkeypatch.setenv(name, str(value))


@pytest.mark.skipif(bool(FOUND), reason="needs a machine without GPUs")
@pytest.mark.parametrize(
    "arguments",
    [
        ("train", "gpt-tiny", "--device", "cuda"),
        ("train", "gpt-tiny", "--device", "cuda", "--processes", "2"),
    ],
)
def test_a_device_that_is_not_there_is_refused_before_anything_is_measured(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(*_: object) -> None:
        raise AssertionError("was measured")

    monkeypatch.setattr(local_machine, "measure_machine", measure)
    monkeypatch.setattr(local_machine, "_remembered", measure)
    assert main([*arguments]) == 2
    said = capsys.readouterr().err
    assert "device cuda: PyTorch finds no GPU on this machine" in said
    assert "train with --device cpu" in said


@pytest.mark.usefixtures("two_gpus")
def test_more_processes_than_gpus_are_refused_with_how_many_there_are() -> None:
    require_gpus(2)
    for refused in (
        lambda: require_gpus(3),
        lambda: require_device("cuda", 3),
        lambda: this_machine("cuda", 3, print),
        lambda: measured_gpu_cluster(3, 3),
        lambda: measured_gpu_cluster(6, 3),
        lambda: set_up_device(TrainConfig(1, device="cuda"), 0, 3),
    ):
        with pytest.raises(HardwareError, match=r"finds 2 of the 3 GPUs.*take at most 2 processes"):
            refused()


@pytest.mark.usefixtures("two_gpus")
def test_machines_have_equally_many_processes() -> None:
    assert [num_gpu_nodes(*each) for each in ((1, 1), (2, 2), (2, 1), (6, 2))] == [1, 1, 2, 3]
    for num_devices, per_node in ((3, 2), (1, 2), (0, 2), (0, 0), (-2, 2), (2, 0)):
        with pytest.raises(
            HardwareError, match=f"{num_devices} processes, {per_node} of them.*as many on each"
        ):
            measured_gpu_cluster(num_devices, per_node)


@pytest.mark.usefixtures("two_gpus")
def test_a_launcher_says_how_many_processes_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    launched(monkeypatch, 4, here=2)
    require_device("cuda", 1)
    launched(monkeypatch, 3, here=2)
    with pytest.raises(HardwareError, match="3 processes, 2 of them on this machine"):
        require_device("cuda", 1)
    require_device("cpu", 1)


# GPUs of which only the numbers come from elsewhere: all else is done by the process that measures.


def a_gpu(index: int, free_bytes: int = 10 * GIB) -> tuple[str, int]:
    return f"gpu of {3 - index // 2}", free_bytes - index


def its_rates(calls: Path, device: str, name: str, memory_bytes: int) -> DeviceSpec:
    with calls.open("a") as file:
        print(device, file=file)
    return measured_device("cpu", name, memory_bytes, size=16)


def without_memory(index: int) -> tuple[str, int]:
    raise torch.OutOfMemoryError(f"CUDA out of memory. Tried {index} MiB.\nMore lines.")


def spinning(index: int) -> tuple[str, int]:
    while True:
        pass


@pytest.fixture
def gpus_of_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Three GPUs, of which the last is another; returns which were measured so far."""
    calls = tmp_path / "calls"
    calls.touch()
    monkeypatch.setenv("TRAINYARD_CACHE", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(gpus, "_name_and_free_bytes", a_gpu)
    monkeypatch.setattr(gpus, "measured_device", partial(its_rates, calls))
    return lambda: calls.read_text().split()


def test_rates_are_remembered_by_name_and_memory_is_read_each_time(
    gpus_of_numbers: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = measured_gpu_cluster(6, 3)
    assert (first.name, first.num_nodes, first.num_devices) == ("cuda:6", 2, 6)
    assert [d.name for d in first.nodes[0].devices] == ["gpu of 3", "gpu of 3", "gpu of 2"]
    assert [d.memory_bytes for d in first.nodes[0].devices] == [10 * GIB, 10 * GIB - 1, 10 * GIB - 2]
    assert gpus_of_numbers() == ["cuda:0", "cuda:2"]

    monkeypatch.setattr(gpus, "_name_and_free_bytes", partial(a_gpu, free_bytes=5 * GIB))
    again = measured_gpu_cluster(3, 3)
    assert again.nodes[0].devices == tuple(
        replace(d, memory_bytes=d.memory_bytes - 5 * GIB) for d in first.nodes[0].devices
    )
    assert gpus_of_numbers() == ["cuda:0", "cuda:2"]

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    measured_gpu_cluster(1, 1)
    monkeypatch.setattr(torch, "__version__", "2.99")
    measured_gpu_cluster(1, 1)
    driver = measurements_file("gpus").with_name("driver")
    driver.write_text("NVRM version: 550.54\nGCC version: 12\n")
    monkeypatch.setattr(gpus, "_DRIVER", driver)
    measured_gpu_cluster(1, 1)
    assert gpus_of_numbers() == ["cuda:0", "cuda:2", *["cuda:0"] * 3]
    assert json.loads(measurements_file("gpus").read_text()).keys() >= {
        "4 GPUs, gpu of 3, PyTorch 2.99, driver NVRM version: 550.54"
    }


def test_what_is_damaged_or_forgotten_is_measured_again(gpus_of_numbers: Callable[[], list[str]]) -> None:
    for spoil in (lambda: measurements_file("gpus").write_text('{"a": [1]}'), forget_measurements):
        spoil()
        measured_gpu_cluster(1, 1)
    assert gpus_of_numbers() == ["cuda:0"] * 2


def test_links_are_said_to_be_assumed(
    gpus_of_numbers: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    this_machine("cuda", 1, said.append)
    assert not said
    this_machine("cuda", 2, said.append)
    launched(monkeypatch, 4, here=2)
    this_machine("cuda", 4, said.append)
    launched(monkeypatch, 2, here=1)
    this_machine("cuda", 2, said.append)
    assert said == [
        "device cuda: links are assumed, not measured: PCIe4 between the GPUs of a machine",
        "device cuda: links are assumed, not measured: PCIe4 between the GPUs of a machine and Ethernet-25Gb between "
        "machines",
        "device cuda: links are assumed, not measured: Ethernet-25Gb between machines",
    ]


@pytest.mark.usefixtures("gpus_of_numbers")
@pytest.mark.parametrize(
    ("measure", "why"),
    [
        (without_memory, r"fails with OutOfMemoryError: CUDA out of memory. Tried 0 MiB"),
        (spinning, r"takes more than 1 CPU seconds"),
    ],
)
def test_what_cannot_be_measured_is_one_sentence(
    measure: Callable[[int], Any], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "_name_and_free_bytes", measure)
    monkeypatch.setattr(gpus, "_LIMITS", ProcessLimits(cpu_s=300.0 if measure is without_memory else 1.0))
    with pytest.raises(HardwareError) as refused:
        measured_gpu_cluster(1, 1)
    assert str(refused.value) == (
        f"--device cuda: measuring GPU 0 {why}; end other work on this GPU, or train with --device cpu"
    )


def test_rates_are_work_by_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(10**6))
    monkeypatch.setattr(gpus.time, "perf_counter", lambda: float(next(ticks)))
    device = measured_device("cpu", "a GPU", 3 * GIB, size=8)
    # Each round takes a second; it has 100 calls of a small op, or 4 calls.
    values_bytes = 4 * 8 * 8 * 4
    assert (device.name, device.memory_bytes) == ("a GPU", 3 * GIB)
    assert device.launch_s == 1 / 100
    assert device.memory_bandwidth_bytes_per_s == 4 * 2 * values_bytes
    assert device.host_bandwidth_bytes_per_s == 4 * values_bytes
    assert {device.peak(kind) for kind in ("float32", "float16", "bfloat16")} == {4 * 2 * 8**3}
    assert device.matmul_flops_per_s(1.0, "float32") == device.peak("float32")
    assert (device.overhead.context_bytes, device.overhead.driver_bytes) == (0, 0)
    assert device.overhead.fragmented_fraction == 0.05


def test_a_device_is_waited_for_by_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    waited = []
    monkeypatch.setattr(torch.cpu, "synchronize", waited.append)
    measured_device("cpu:0", "a GPU", GIB, size=8)
    assert set(waited) == {torch.device("cpu:0")}


@needs_gpu
def test_gpus_are_planned_for_with_their_own_rates_and_memory() -> None:
    cluster = measured_gpu_cluster(1, 1)
    device, properties = cluster.device(0), torch.cuda.get_device_properties(0)
    assert (cluster.num_devices, device.name) == (1, torch.cuda.get_device_name(0))
    assert 0 < device.memory_bytes <= properties.total_memory
    assert device.peak("bfloat16") > device.peak("float32") > 0
    assert cluster.profile is None
