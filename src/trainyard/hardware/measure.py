"""Measure this machine: matrix products, memory, the overhead of an op, and collectives between processes."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from trainyard.hardware.busy import OtherLoad
from trainyard.hardware.errors import HardwareError
from trainyard.hardware.profile import CollectiveSample, MachineProfile, MatmulSample, MemorySample
from trainyard.processes import ProcessLimits, wait_for_all, watch_together
from trainyard.progress import Progress, no_progress

__all__ = ["free_memory_bytes", "machine_identity", "measure_machine"]

PROCESS_COUNTS = (2, 4)
_MATMUL_SIZES = (64, 128, 256, 512, 1024)
_MATMUL_DTYPES = ("float32", "bfloat16")
_STREAM_FLOATS = 2**24  # 64 MiB: beyond the caches of a share of a server processor
_POINT_LIMIT_S = 0.15  # time for the repetitions of one point
_GLOO_LIMITS = ProcessLimits(cpu_s=120.0)  # of each process; many times what it takes


def _cpu_model() -> str:
    """Model of the processor as the system names it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _num_cores() -> int:
    """Physical cores that this process may run on."""
    physical = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    affinity = getattr(os, "sched_getaffinity", None)
    return min(physical, len(affinity(0))) if affinity else physical


def _memory_bytes() -> int:
    """Main memory, or the limit of the control group where that is smaller."""
    total = int(psutil.virtual_memory().total)
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.exists():
        text = limit.read_text().strip()
        if text.isdigit():
            return min(total, int(text))
    return total


def free_memory_bytes() -> int:
    """Memory that a process could still take, of the machine or of the control group."""
    free = int(psutil.virtual_memory().available)
    used = Path("/sys/fs/cgroup/memory.current")
    if used.exists() and used.read_text().strip().isdigit():
        free = min(free, max(0, _memory_bytes() - int(used.read_text())))
    return free


def machine_identity() -> dict[str, str | int]:
    """What a profile belongs to: another processor, memory or PyTorch needs another measurement.

    Returns
    -------
    dict
        ``cpu``, ``num_cores``, ``memory_bytes``, ``torch_version``.
    """
    from importlib.metadata import version

    return {
        "cpu": _cpu_model(),
        "num_cores": _num_cores(),
        "memory_bytes": _memory_bytes(),
        "torch_version": version("torch"),
    }


def measure_machine(progress: Progress = no_progress) -> MachineProfile:
    """Measure this machine, in less than 20 seconds.

    Parameters
    ----------
    progress
        Called with what is being measured.

    Returns
    -------
    MachineProfile
        The measurements.

    Raises
    ------
    HardwareError
        If the processes of the communication measurement fail.
    """
    watch = OtherLoad()
    identity = machine_identity()
    num_cores = int(identity["num_cores"])
    progress("measuring collectives between processes", "")
    collectives = _measure_collectives()
    progress("measuring matrix products", "")
    matmul = _measure_matmul(_thread_counts(num_cores))
    progress("measuring memory", "")
    memory = _measure_memory(_thread_counts(num_cores))
    progress("measuring the overhead of an operation", "")
    op_s = _measure_op()
    return MachineProfile(
        cpu=str(identity["cpu"]),
        num_cores=num_cores,
        memory_bytes=int(identity["memory_bytes"]),
        torch_version=str(identity["torch_version"]),
        op_s=op_s,
        matmul=matmul,
        memory=memory,
        collectives=collectives,
        when_s=time.time(),
        others=watch.share(),
    )


def _thread_counts(num_cores: int) -> tuple[int, ...]:
    """1, 2, 4, ... and all cores."""
    powers = [2**i for i in range(num_cores.bit_length()) if 2**i < num_cores]
    return (*powers, num_cores)


def _fastest_s(run: Callable[[], object]) -> float:
    """Shortest of a few runs: the one least disturbed by other work on the machine."""
    run()
    best, spent, count = float("inf"), 0.0, 0
    while count < 2 or (spent < _POINT_LIMIT_S and count < 50):
        start = time.perf_counter()
        run()
        seconds = time.perf_counter() - start
        best, spent, count = min(best, seconds), spent + seconds, count + 1
        if seconds > _POINT_LIMIT_S:
            break
    return best


def _measure_matmul(thread_counts: tuple[int, ...]) -> tuple[MatmulSample, ...]:
    import torch

    samples = []
    before = torch.get_num_threads()
    try:
        for num_threads in thread_counts:
            torch.set_num_threads(num_threads)
            for dtype in _MATMUL_DTYPES:
                for size in _MATMUL_SIZES:
                    left = torch.randn(size, size).to(getattr(torch, dtype))
                    right, out = left.clone(), torch.empty_like(left)
                    seconds = _fastest_s(lambda a=left, b=right, c=out: torch.mm(a, b, out=c))  # type: ignore[misc]
                    samples.append(MatmulSample(dtype, num_threads, 2.0 * size**3, seconds))
                    if seconds > _POINT_LIMIT_S:
                        break  # emulated on this processor; larger ones tell nothing new
    finally:
        torch.set_num_threads(before)
    return tuple(samples)


def _measure_memory(thread_counts: tuple[int, ...]) -> tuple[MemorySample, ...]:
    import torch

    samples = []
    before = torch.get_num_threads()
    source, target = torch.ones(_STREAM_FLOATS), torch.ones(_STREAM_FLOATS)
    try:
        for num_threads in thread_counts:
            torch.set_num_threads(num_threads)
            seconds = _fastest_s(lambda: target.copy_(source))
            samples.append(MemorySample(num_threads, 8.0 * _STREAM_FLOATS, seconds))
    finally:
        torch.set_num_threads(before)
    return tuple(samples)


def _measure_op() -> float:
    import torch

    values, out, repeats = torch.ones(8), torch.empty(8), 500

    def many() -> None:
        for _ in range(repeats):
            torch.add(values, values, out=out)

    return _fastest_s(many) / repeats


def _measure_collectives() -> tuple[CollectiveSample, ...]:
    """Run the workers of `measure_gloo` and read what the first one found."""
    num_workers = max(PROCESS_COUNTS)
    with tempfile.TemporaryDirectory(prefix="trainyard-") as folder:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "trainyard.hardware.measure_gloo", folder, str(num_workers)]
        files, workers = [Path(folder) / f"errors{rank}" for rank in range(num_workers)], []
        for rank, file in enumerate(files):
            with file.open("wb") as errors:
                workers.append(
                    subprocess.Popen(
                        [*command, str(rank)], env=environment, stdout=subprocess.DEVNULL, stderr=errors
                    )
                )
        watch = watch_together([worker.pid for worker in workers], _GLOO_LIMITS)
        codes, exceeded = wait_for_all(workers, lambda _: watch.look())
        said = [
            file.read_text(errors="replace")[-400:] for file, code in zip(files, codes, strict=True) if code
        ]
        if exceeded:
            said.append(f"together, they {exceeded}")
        result = Path(folder) / "result.json"
        if said or not result.exists():
            raise HardwareError(
                f"measuring collectives with {num_workers} gloo processes failed: {' | '.join(said)}; "
                "check that PyTorch has gloo and that processes may connect over the loopback interface"
            )
        return tuple(CollectiveSample(**sample) for sample in json.loads(result.read_text()))
