"""The GPUs of this machine: how many there are, and how fast and large, measured by a process of its own.

CUDA that was used in a process cannot be used in those that it forks, so the one that plans leaves it alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache, partial

from trainyard.hardware.cluster import Cluster, Node
from trainyard.hardware.devices import DeviceSpec, Efficiency
from trainyard.hardware.errors import HardwareError
from trainyard.hardware.interconnects import INTERCONNECTS
from trainyard.hardware.nodes import pcie_node

__all__ = ["gpu_cluster", "measured_device", "require_gpus"]

_SIZE = 4096  # of square matrices
_RUNS = 5
_LINKS, _NETWORK = (
    INTERCONNECTS["PCIe4"],
    INTERCONNECTS["Ethernet-25Gb"],
)  # assumed: nothing tells what there is


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
        f"device cuda: PyTorch finds {there} on this machine{built}; {fewer}train with device cpu"
    )


def gpu_cluster(num_devices: int, per_node: int) -> Cluster:
    """GPUs like those of this machine; their rates and memory are measured, the links between them assumed.

    Parameters
    ----------
    num_devices
        Devices, a multiple of `per_node`.
    per_node
        Devices of each machine; this one has as many.

    Returns
    -------
    Cluster
        Its devices have the memory that is free on these GPUs.

    Raises
    ------
    HardwareError
        If there are not so many GPUs, or measuring them fails.
    """
    require_gpus(per_node)
    node = Node(pcie_node(per_node, _LINKS, 1, _NETWORK), tuple(map(_device, range(per_node))))
    return Cluster(f"cuda:{num_devices}", (node,) * (num_devices // per_node))


@cache
def _device(index: int) -> DeviceSpec:
    command = [sys.executable, "-m", "trainyard.hardware.gpus", f"cuda:{index}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise HardwareError(
            f"GPU {index} could not be measured: {done.stderr.strip().rpartition(chr(10))[2]}"
        )
    return DeviceSpec.from_dict(json.loads(done.stdout))


def measured_device(name: str, size: int = _SIZE) -> DeviceSpec:
    """Measure a device of PyTorch.

    Parameters
    ----------
    name
        As PyTorch has it, such as ``cuda:0``.
    size
        Rows and columns of the matrices that are multiplied.
    """
    import torch

    device = torch.device(name)
    is_gpu = device.type == "cuda"
    one, values = torch.ones(1, device=device), torch.ones(4 * size * size, device=device)
    host = values.cpu()
    launch_s = _least_s(lambda: [one.add(1) for _ in range(100)], is_gpu) / 100
    bandwidth = 2 * values.nbytes / _least_s(values.clone, is_gpu)
    host_bandwidth = values.nbytes / _least_s(lambda: host.to(device, copy=True), is_gpu)
    del values
    peaks = {}
    for kind in ("float32", "float16", "bfloat16"):
        matrix = torch.ones(size, size, device=device, dtype=getattr(torch, kind))
        peaks[kind] = 2 * size**3 / _least_s(partial(torch.mm, matrix, matrix), is_gpu)
    del matrix
    if is_gpu:
        torch.cuda.empty_cache()
    return DeviceSpec(
        name=torch.cuda.get_device_name(device) if is_gpu else "CPU",
        memory_bytes=torch.cuda.mem_get_info(device)[0] if is_gpu else host.nbytes,
        peak_flops_per_s=peaks,
        memory_bandwidth_bytes_per_s=bandwidth,
        launch_s=launch_s,
        efficiency=Efficiency(1.0, max(peaks.values()) * launch_s, 1.0, bandwidth * launch_s),
        source=f"measured, PyTorch {torch.__version__}",
        host_bandwidth_bytes_per_s=host_bandwidth,
    )


def _least_s(run: Callable[[], object], is_gpu: bool) -> float:
    """Seconds of a call until its device is done: the least of some."""
    import torch

    wait: Callable[[], object] = torch.cuda.synchronize if is_gpu else lambda: None
    seconds = []
    for _ in range(_RUNS):
        wait()
        start = time.perf_counter()
        run()
        wait()
        seconds.append(time.perf_counter() - start)
    return max(min(seconds), 1e-9)


if __name__ == "__main__":
    print(json.dumps(measured_device(sys.argv[1]).to_dict()))
