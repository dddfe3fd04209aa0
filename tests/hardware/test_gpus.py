"""GPUs: a device that is not there is refused before anything is measured, and one that is there is measured."""

from __future__ import annotations

import pytest
import torch

from trainyard.cli.machine import this_machine
from trainyard.cli.main import main
from trainyard.hardware import HardwareError
from trainyard.hardware import local as local_machine
from trainyard.hardware.gpus import gpu_cluster, measured_device, require_gpus
from trainyard.job.run.config import TrainConfig
from trainyard.job.run.processes.worker import set_up_device

FOUND = torch.cuda.device_count()
needs_gpu = pytest.mark.skipif(not FOUND, reason="needs a GPU: PyTorch finds none on this machine")


@pytest.mark.skipif(bool(FOUND), reason="this machine has a GPU")
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
    assert "train with device cpu" in said


def test_more_processes_than_gpus_are_refused_with_how_many_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    require_gpus(2)
    with pytest.raises(HardwareError, match=r"finds 2 of the 3 GPUs.*take at most 2 processes"):
        require_gpus(3)
    with pytest.raises(HardwareError, match="2 of the 4 GPUs"):
        this_machine("cuda", 4)
    with pytest.raises(HardwareError, match="2 of the 4 GPUs"):
        set_up_device(TrainConfig(1, device="cuda"), 0, 4)


def test_a_device_is_measured() -> None:
    device = measured_device("cpu", size=64)
    assert device.memory_bytes == 16 * 64 * 64
    assert min(device.peak("float32"), device.peak("bfloat16"), device.memory_bandwidth_bytes_per_s) > 0


@needs_gpu
def test_gpus_are_planned_for_with_their_own_rates_and_memory() -> None:
    cluster = gpu_cluster(1, 1)
    device, properties = cluster.device(0), torch.cuda.get_device_properties(0)
    assert (cluster.num_devices, device.name) == (1, torch.cuda.get_device_name(0))
    assert 0 < device.memory_bytes <= properties.total_memory
    assert device.peak("bfloat16") > device.peak("float32") > 0
    assert cluster.profile is None
