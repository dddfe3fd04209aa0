"""What a run costs, where the cluster says what a device of each type costs for an hour."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from trainyard.fleet.errors import FleetError
from trainyard.hardware.cluster import Cluster

__all__ = ["check_prices", "costs_of", "prices_differ"]

_HOUR_S = 3600.0


class DeviceTime(Protocol):
    """Devices that a job had, by their numbers, and from when to when, as of `Span`."""

    @property
    def start_s(self) -> float:
        """When it got them."""
        ...

    @property
    def end_s(self) -> float:
        """When it gave them back."""
        ...

    @property
    def devices(self) -> tuple[int, ...]:
        """Which they were."""
        ...


def check_prices(cluster: Cluster) -> None:
    """Refuse a cluster that has prices, but none of some type of device.

    Raises
    ------
    FleetError
        Names the types.
    """
    unpriced = set(cluster.device_types) - set(dict(cluster.prices))
    if cluster.prices and unpriced:
        raise FleetError(
            f"cluster {cluster.name!r} has prices, and none of {', '.join(sorted(unpriced))}; add it under prices in the "
            "file of the cluster, or leave prices out"
        )


def prices_differ(cluster: Cluster) -> bool:
    """Return whether what jobs cost depends on which devices they had."""
    prices = dict(cluster.prices)
    return len({prices.get(name) for name in cluster.device_types}) > 1


def costs_of(
    cluster: Cluster, makespan_s: float, busy_device_s: float, spans: Sequence[DeviceTime]
) -> dict[str, float | None]:
    """Costs of a run, in the unit of the prices.

    Parameters
    ----------
    makespan_s : from the first arrival to the last end.
    busy_device_s : devices times time in which jobs, alone or together, had them.
    spans : what ran where, if that is known.

    Returns
    -------
    ``used_cost`` of the devices for the time in which jobs had them, and ``cluster_cost`` of all devices of the cluster
    for the makespan, whether their nodes were there or away. None without prices; the first also where devices cost
    unlike and it is not known who had which.
    """
    if not cluster.prices:
        return {"used_cost": None, "cluster_cost": None}
    per_s = {name: price / _HOUR_S for name, price in cluster.prices}
    whole = makespan_s * sum(
        node.num_devices * per_s[node.device_type] for node in cluster.nodes if node.devices
    )
    used: float | None = busy_device_s * per_s[cluster.device_types[0]]
    if prices_differ(cluster):
        used = _by_device(cluster, per_s, spans) if spans or not busy_device_s else None
    return {"used_cost": used, "cluster_cost": whole}


def _by_device(cluster: Cluster, per_s: dict[str, float], spans: Sequence[DeviceTime]) -> float:
    """Price of the time in which each device was in use; what several jobs had at once counts once."""
    sizes = np.array([len(span.devices) for span in spans], np.int64)
    device = np.array([number for span in spans for number in span.devices], np.int64)
    start_s = np.repeat([span.start_s for span in spans], sizes)
    end_s = np.repeat([span.end_s for span in spans], sizes)
    price = np.array([per_s[name] for name in cluster.device_types])[cluster.type_of_node[cluster.node_of]]
    total, order = 0.0, np.lexsort((start_s, device))
    last, until_s = -1, 0.0
    for number, since_s, to_s in zip(
        *(column[order].tolist() for column in (device, start_s, end_s)), strict=True
    ):
        since_s = since_s if number != last else max(since_s, until_s)
        total += max(0.0, to_s - since_s) * float(price[number])
        last, until_s = number, max(since_s, to_s)
    return total
