"""Jobs that a policy places for itself: their devices, and what comes with these, verified and beside what they have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from trainyard.fleet.allocation import Placed
from trainyard.fleet.errors import FleetError
from trainyard.fleet.jobs.job_table import Bools, Floats, Ints, JobTable
from trainyard.fleet.workload.job import Grant, Job
from trainyard.hardware.cluster import Cluster

_EXTRAS = ("share", "batch_size", "cpus", "memory_bytes")


def changes(table: JobTable, cluster: Cluster, rows: Ints, placed: Placed, taken: Bools) -> tuple[Ints, Ints]:
    """Which jobs get devices, or other ones, and which lose theirs.

    Parameters
    ----------
    rows : of the snapshot that they are for.
    taken : whether each device is one that the policy cannot give, since others have it.

    Returns
    -------
    Places in the order of the jobs that get devices, most urgent first; rows of the jobs that run and are to have none.

    Raises
    ------
    FleetError
        If a job is to get devices that it cannot have. Those that it has are not looked at again.
    """
    runs = np.zeros(len(table.held), np.bool_)
    starting = []
    for place, (row, devices) in enumerate(zip(rows[placed.order].tolist(), placed.devices, strict=True)):
        if devices:
            runs[row] = True
            grant = table.grants[row]
            if grant is None or grant.devices != devices:
                starting.append(place)
                job = table.jobs[row]
                if job is None:
                    number = placed.order[place]
                    raise FleetError(
                        f"the policy refuses job {number} and gives it devices {_listed(devices)}"
                    )
                wrong = _wrong(job, int(table.allowed[row]), devices, cluster, taken)
                if wrong:
                    raise FleetError(f"the policy gives job {job.name!r} {wrong}")
    return np.array(starting, np.int64), rows[~runs[rows] & (table.held[rows] > 0)]


def _wrong(job: Job, allowed: int, devices: Sequence[int], cluster: Cluster, taken: Bools) -> str:
    """What is wrong with devices of a job; empty if nothing is."""
    kinds, own = cluster.kind_of_device, set(devices)
    if not 0 <= min(own) <= max(own) < len(kinds):
        return f"devices {_listed(devices)}; cluster {cluster.name!r} has devices 0 to {len(kinds) - 1}"
    if len(own) < len(devices):
        return f"devices {_listed(devices)}, some of them twice; give each device once"
    if not isinstance(devices, tuple) or list(devices) != sorted(devices):
        return f"devices {_listed(devices)}; give them as a tuple, in ascending order"
    if not job.least_devices <= len(own) <= job.most_devices:
        asked = " to ".join(map(str, sorted({job.least_devices, job.most_devices})))
        return f"{len(own)} devices; it runs on {asked}"
    found = {kinds[device] for device in own}
    if -1 in found:
        lost = [device for device in devices if kinds[device] < 0]
        return f"devices {_listed(lost)}, whose nodes cannot be used now"
    if taken[list(devices)].any():
        held = [device for device in devices if taken[device]]
        return (
            f"devices {_listed(held)}, which others have; a policy that does not preempt gives free ones only"
        )
    (first, *others) = found
    if others or not (allowed >> first) & 1:
        names = [name for kind, name in enumerate(cluster.device_types) if (allowed >> kind) & 1]
        types = " and ".join(cluster.device_types[kind] for kind in sorted(found))
        return (
            f"devices {_listed(devices)} of {types}; it runs on devices of one type, of {' or '.join(names)}"
        )
    return ""


def _listed(devices: Sequence[int]) -> str:
    return ", ".join(map(str, devices))


def extras_of(placed: Placed) -> dict[str, Floats | Ints]:
    """What jobs get beside devices, by its name in a grant."""
    return {name: values for name in _EXTRAS if (values := getattr(placed, name)) is not None}


def granted(devices: tuple[int, ...], place: int, extras: Mapping[str, Floats | Ints]) -> Grant:
    """Devices, and what the job at a place in the order gets beside them."""
    if not extras:
        return Grant(devices)
    return Grant(devices, **{name: values[place].item() for name, values in extras.items()})


def are_whole(placed: Placed) -> bool:
    """Whether jobs get devices for themselves alone, and nothing else."""
    given = [device for devices in placed.devices for device in devices]
    return not extras_of(placed) and len(set(given)) == len(given)


def tenants_of(rows: Iterable[int], devices: Iterable[Sequence[int]]) -> dict[int, list[int]]:
    """Rows of the jobs by the devices that they are to have."""
    tenants: dict[int, list[int]] = {}
    for row, own in zip(rows, devices, strict=True):
        for device in own:
            tenants.setdefault(device, []).append(row)
    return tenants


def check_shares(tenants: Mapping[int, Sequence[int]], table: JobTable) -> None:
    """Whether nobody gets a part of a device that others have.

    Raises
    ------
    FleetError
        If the shares of one device are more than it.
    """
    for device, rows in tenants.items():
        total = sum(grant.share for row in rows if (grant := table.grants[row]) is not None)
        if total > 1.0 + 1e-9:
            names = ", ".join(table.job(row).name for row in rows)
            raise FleetError(
                f"the policy gives device {device} out {total:g} times, to jobs {names}; the shares of one device "
                "add up to at most 1"
            )
