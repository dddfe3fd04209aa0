"""What jobs get beside devices, and devices that several get."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from trainyard.fleet.allocation import Placed
from trainyard.fleet.errors import FleetError
from trainyard.fleet.jobs.job_table import Floats, Ints, JobTable
from trainyard.fleet.workload.job import Grant

_EXTRAS = ("share", "batch_size", "cpus", "memory_bytes")


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
