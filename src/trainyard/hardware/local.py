"""This machine as a cluster of processes, measured once and remembered."""

from __future__ import annotations

from pathlib import Path

from trainyard.hardware.cluster import Cluster, Node
from trainyard.hardware.devices import DeviceSpec, Efficiency
from trainyard.hardware.errors import HardwareError
from trainyard.hardware.measure import machine_identity, measure_machine
from trainyard.hardware.nodes import shared_memory_node
from trainyard.hardware.profile import MachineProfile
from trainyard.hardware.remembered import damaged, measurements_file, measuring, recall, remember
from trainyard.hardware.topology import MAX_NODE_DEVICES
from trainyard.progress import Progress, no_progress

__all__ = ["cluster_of_profile", "local_cluster", "local_profile", "remembered_cluster"]


def local_profile(progress: Progress = no_progress) -> MachineProfile:
    """Measurements of this machine, from the cache where there are any.

    Parameters
    ----------
    progress
        Called with what is being measured, or while another process measures; not called if the cache has it.

    Returns
    -------
    MachineProfile
        The measurements. A cache file that cannot be read, or belongs to another machine, is replaced.
    """
    path = measurements_file("machine")
    profile = _remembered(path)
    if profile is None:
        with measuring(lambda: progress("waiting for another process that measures this machine", "")):
            profile = _remembered(path)
            if profile is None:
                text = measure_machine(progress).to_json()
                remember(path, text)
                profile = MachineProfile.from_json(text)  # equal to what later processes read
    return profile


def _remembered(path: Path) -> MachineProfile | None:
    text = recall(path)
    if text is None:
        return None
    try:
        profile = MachineProfile.from_json(text)
    except (HardwareError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        damaged(path, error)
        return None
    return profile if _belongs(profile) else None


def _belongs(profile: MachineProfile) -> bool:
    complete = bool(profile.matmul and profile.memory and profile.collectives)
    return complete and all(getattr(profile, name) == value for name, value in machine_identity().items())


def local_cluster(num_processes: int, progress: Progress = no_progress) -> Cluster:
    """This machine as `num_processes` devices.

    Parameters
    ----------
    num_processes
        Processes, each a device with an even share of the memory and of the cores.
    progress
        Called while measuring.

    Returns
    -------
    Cluster
        One node; its `Cluster.profile` holds the measurements.

    Raises
    ------
    HardwareError
        If the number is less than one, or measuring fails.
    """
    _check_count(num_processes)
    return cluster_of_profile(local_profile(progress), num_processes)


def remembered_cluster(num_processes: int) -> Cluster | None:
    """What `local_cluster` gives without measuring; None where it would have to measure."""
    profile = _remembered(measurements_file("machine"))
    return None if profile is None else cluster_of_profile(profile, num_processes)


def cluster_of_profile(profile: MachineProfile, num_processes: int) -> Cluster:
    """A measured machine as a cluster.

    A device's rates are those of one process alone on its share of the cores, at least one. Where there are
    more processes than cores they take turns; the cost model accounts for that with `Cluster.num_cores`.

    Parameters
    ----------
    profile
        Measurements.
    num_processes
        Processes.

    Returns
    -------
    Cluster
        One node of that many devices.

    Raises
    ------
    HardwareError
        If the number is less than one, or more than a node has.
    """
    _check_count(num_processes)
    num_threads = max(1, profile.num_cores // num_processes)
    dtypes = sorted({sample.dtype for sample in profile.matmul})
    peaks = {dtype: profile.matmul_flops_per_s(dtype, num_threads) for dtype in dtypes}
    # `Efficiency` states the ramp at the faster 16-bit format, float16 falling back to float32.
    reference = max((name for name in ("float32", "bfloat16") if name in peaks), key=lambda name: peaks[name])
    bandwidth = profile.memory_bandwidth_bytes_per_s(num_threads)
    half_flops = profile.half_matmul_flops(reference, num_threads)
    device = DeviceSpec(
        name="local process",
        memory_bytes=profile.memory_bytes // num_processes,
        peak_flops_per_s=peaks,
        memory_bandwidth_bytes_per_s=bandwidth,
        launch_s=profile.op_s,
        efficiency=Efficiency(1.0, half_flops, 1.0, 0.0),
        source=f"measured: {profile.cpu}, {num_threads} threads, PyTorch {profile.torch_version}",
        collective_launch_s=0.0,
        host_bandwidth_bytes_per_s=bandwidth,
    )
    large_bytes, small_bytes = 2.0**23, 2.0**10
    latency_s = profile.collective_s("send", 2, small_bytes)
    large_s = profile.collective_s("send", 2, large_bytes)
    rate = large_bytes / max(large_s - latency_s, 1e-9)
    topology = shared_memory_node(num_processes, rate, latency_s)
    return Cluster(f"local:{num_processes}", (Node(topology, (device,) * num_processes),), profile=profile)


def _check_count(num_processes: int) -> None:
    if not 1 <= num_processes <= MAX_NODE_DEVICES:
        raise HardwareError(
            f"{num_processes} local processes; allowed: 1 or more, e.g. local:4, and at most {MAX_NODE_DEVICES}"
        )
