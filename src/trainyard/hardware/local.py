"""This machine as a cluster of processes, measured once and remembered."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path

from trainyard.hardware.cluster import Cluster, Node
from trainyard.hardware.devices import DeviceSpec, Efficiency
from trainyard.hardware.errors import HardwareError
from trainyard.hardware.measure import Progress, machine_identity, measure_machine
from trainyard.hardware.nodes import shared_memory_node
from trainyard.hardware.profile import MachineProfile

__all__ = ["cache_folder", "cluster_of_profile", "local_cluster", "local_profile"]


def cache_folder() -> Path:
    """Folder of measurements: ``$TRAINYARD_CACHE``, else ``~/.cache/trainyard``.

    Returns
    -------
    Path
        It may not exist yet.
    """
    given = os.environ.get("TRAINYARD_CACHE")
    return Path(given) if given else Path.home() / ".cache" / "trainyard"


def local_profile(progress: Progress | None = None) -> MachineProfile:
    """Measurements of this machine, from the cache where there are any.

    Parameters
    ----------
    progress
        Called with what is being measured and the fraction done; not called where the cache has it.

    Returns
    -------
    MachineProfile
        The measurements. A cache file that cannot be read, or belongs to another machine, is replaced.
    """
    identity = machine_identity()
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
    path = cache_folder() / f"machine-{digest}.json"
    if path.exists():
        try:
            profile = MachineProfile.from_json(path.read_text())
        except (HardwareError, UnicodeDecodeError):
            profile = None
        if profile is not None and _belongs(profile, identity):
            return profile
    profile = measure_machine(progress)
    _write_atomically(path, profile.to_json())
    return profile


def _belongs(profile: MachineProfile, identity: dict[str, str | int]) -> bool:
    complete = bool(profile.matmul and profile.memory and profile.collectives)
    return complete and all(getattr(profile, name) == value for name, value in identity.items())


def _write_atomically(path: Path, text: str) -> None:
    """Write beside the target and rename, so that a reader never sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def local_cluster(num_processes: int, progress: Progress | None = None) -> Cluster:
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
    if num_processes < 1:
        raise HardwareError(f"{num_processes} local processes; allowed: 1 or more, e.g. local:4")
    return cluster_of_profile(local_profile(progress), num_processes)


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
    """
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
