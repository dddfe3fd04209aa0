"""The GPUs of this machine: how many there are, and how fast and large, measured by a process of its own.

CUDA that was used in a process cannot be used in those that it forks, so the one that plans leaves it alone.
"""

from __future__ import annotations

import json
import operator
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from trainyard.hardware.cluster import Cluster, Node
from trainyard.hardware.devices import DeviceSpec, Efficiency
from trainyard.hardware.errors import HardwareError
from trainyard.hardware.interconnects import INTERCONNECTS
from trainyard.hardware.nodes import pcie_node
from trainyard.hardware.presets import gpu_overhead
from trainyard.hardware.remembered import damaged, measurements_file, measuring, recall, remember
from trainyard.processes import LimitedProcess, LimitedProcessError, ProcessLimits

__all__ = ["assumed_links", "measured_device", "measured_gpu_cluster", "num_gpu_nodes", "require_gpus"]

T = TypeVar("T")

_SIZE = 4096  # of square matrices
_ROUNDS, _CALLS, _SMALL_CALLS = 5, 4, 100
_LINKS, _NETWORK = INTERCONNECTS["PCIe4"], INTERCONNECTS["Ethernet-25Gb"]
_LIMITS = ProcessLimits(cpu_s=300.0, memory_bytes=16 << 30)  # many times what measuring a GPU takes
_DRIVER = Path("/proc/driver/nvidia/version")


def require_gpus(count: int) -> None:
    """Refuse to compute on GPUs that are not there.

    Raises
    ------
    HardwareError
        If PyTorch finds fewer on this machine.
    """
    import torch

    found = torch.cuda.device_count()
    if found >= count:
        return
    there = f"{found} of the {count} GPUs that it takes" if found else "no GPU"
    built = (
        ""
        if torch.version.cuda or torch.version.hip
        else f": PyTorch {torch.__version__} is built for CPUs only"
    )
    fewer = f"take at most {found} processes, or " if found else ""
    raise HardwareError(
        f"--device cuda: PyTorch finds {there} on this machine{built}; {fewer}train with --device cpu"
    )


def num_gpu_nodes(num_devices: int, per_node: int) -> int:
    """Count the machines of a training with one GPU per process.

    Parameters
    ----------
    num_devices
        GPUs of all machines.
    per_node
        GPUs of this machine; every other machine has as many.

    Raises
    ------
    HardwareError
        If the machines cannot have equally many, or this one has fewer.
    """
    if per_node < 1 or num_devices < 1 or num_devices % per_node:
        raise HardwareError(
            f"--device cuda: {num_devices} processes, {per_node} of them on this machine, cannot be equally many on "
            "every machine; start as many on each"
        )
    require_gpus(per_node)
    return num_devices // per_node


def measured_gpu_cluster(num_devices: int, per_node: int) -> Cluster:
    """Measure the GPUs of this machine, and describe machines with GPUs like these.

    Rates are measured once and remembered. Free memory is read at every call. Links are assumed: see `assumed_links`.

    Parameters
    ----------
    num_devices, per_node
        As in `num_gpu_nodes`.

    Returns
    -------
    Cluster
        Its devices have the memory that is free on these GPUs.

    Raises
    ------
    HardwareError
        If there are not so many GPUs, or measuring them fails.
    """
    num_nodes = num_gpu_nodes(num_devices, per_node)
    process = LimitedProcess(_ready, _LIMITS)
    try:
        devices = tuple(_device(process, index) for index in range(per_node))
    finally:
        process.close()
    node = Node(pcie_node(per_node, _LINKS, 1, _NETWORK), devices)
    return Cluster(f"cuda:{num_devices}", (node,) * num_nodes)


def assumed_links(num_devices: int, per_node: int) -> str:
    """Say which links `measured_gpu_cluster` assumes; empty for one GPU, which needs none."""
    links = [f"{_LINKS.name} between the GPUs of a machine"] if per_node > 1 else []
    links += [f"{_NETWORK.name} between machines"] if num_devices > per_node else []
    return f"links are assumed, not measured: {' and '.join(links)}" if links else ""


def _ready() -> Callable[[Callable[[], Any]], Any]:
    """Prepare the process that measures."""
    import torch  # noqa: F401  (takes seconds)

    return operator.call


def _device(process: LimitedProcess[Any, Any], index: int) -> DeviceSpec:
    """Describe a GPU by its free memory and by the rates of GPUs of its name."""
    name, free_bytes = _asked(process, index, partial(_name_and_free_bytes, index))
    path, key = measurements_file("gpus"), _key(name)
    known = _recalled(path).get(key)
    if known is None:
        with measuring():
            devices = _recalled(path)  # another process may have measured meanwhile
            if key not in devices:
                devices[key] = _asked(
                    process, index, partial(measured_device, f"cuda:{index}", name, free_bytes)
                )
                remember(path, json.dumps({k: device.to_dict() for k, device in devices.items()}))
            known = devices[key]
    return replace(known, memory_bytes=free_bytes)


def _asked(process: LimitedProcess[Any, Any], index: int, work: Callable[[], T]) -> T:
    """Return what the process finds out about a GPU."""
    try:
        found: T = process(work)
    except LimitedProcessError as error:
        why = str(error).partition("\n")[0].rstrip(". ")
        raise HardwareError(
            f"--device cuda: measuring GPU {index} {why}; end other work on this GPU, or train with --device cpu"
        ) from error
    return found


def _key(name: str) -> str:
    """Name what rates belong to: GPUs, PyTorch and driver."""
    import torch

    driver = _DRIVER.read_text().partition("\n")[0] if _DRIVER.exists() else "unknown"
    return f"{torch.cuda.device_count()} GPUs, {name}, PyTorch {torch.__version__}, driver {driver}"


def _recalled(path: Path) -> dict[str, DeviceSpec]:
    """Devices that were measured before, by `_key`."""
    try:
        plain = json.loads(recall(path) or "{}")
        return {key: DeviceSpec.from_dict(fields) for key, fields in plain.items()}
    except (HardwareError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        damaged(path, error)
        return {}


def _name_and_free_bytes(index: int) -> tuple[str, int]:
    """Name of a GPU, and the memory that it has for tensors beside a context that computes."""
    import torch

    device = torch.device("cuda", index)
    matrix = torch.ones(256, 256, device=device)
    torch.mm(matrix, matrix)  # cuBLAS takes memory of its own
    del matrix
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    return torch.cuda.get_device_name(device), torch.cuda.mem_get_info(device)[0]


def measured_device(device: str, name: str, memory_bytes: int, size: int = _SIZE) -> DeviceSpec:
    """Measure the rates of a device of PyTorch.

    Parameters
    ----------
    device
        As PyTorch has it, such as ``cuda:0``.
    name, memory_bytes
        Of the device; they are not measured here.
    size
        Rows and columns of the matrices that are multiplied.
    """
    import torch

    place = torch.device(device)
    wait = partial(torch.get_device_module(place).synchronize, place)
    one, values = torch.ones(1, device=place), torch.ones(4 * size * size, device=place)
    host = values.cpu()
    launch_s = _seconds(lambda: one.add(1), wait, _SMALL_CALLS)
    bandwidth = 2 * values.nbytes / _seconds(values.clone, wait)
    host_bandwidth = values.nbytes / _seconds(lambda: host.to(place, copy=True), wait)
    del values
    peaks = {}
    for kind in ("float32", "float16", "bfloat16"):
        matrix = torch.ones(size, size, device=place, dtype=getattr(torch, kind))
        peaks[kind] = 2 * size**3 / _seconds(partial(torch.mm, matrix, matrix), wait)
    return DeviceSpec(
        name=name,
        memory_bytes=memory_bytes,
        peak_flops_per_s=peaks,
        memory_bandwidth_bytes_per_s=bandwidth,
        launch_s=launch_s,
        efficiency=Efficiency(1.0, 0.0, 1.0, 0.0),  # the seconds of a launch have those of a ramp in them
        source=f"measured, PyTorch {torch.__version__}",
        host_bandwidth_bytes_per_s=host_bandwidth,
        overhead=gpu_overhead(),
    )


def _seconds(run: Callable[[], object], wait: Callable[[], object], num_calls: int = _CALLS) -> float:
    """Seconds of a call on a device: the least of some rounds of so many calls."""
    rounds = []
    for _ in range(_ROUNDS):
        wait()
        start = time.perf_counter()
        for _ in range(num_calls):
            run()
        wait()
        rounds.append(time.perf_counter() - start)
    return max(min(rounds), 1e-9) / num_calls
