"""Costs of a run on a cluster with prices: of one device of each type for an hour."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trainyard.fleet.span import Span
from trainyard.hardware.cluster import Cluster

__all__ = ["prices_differ", "run_costs"]

_HOUR_S = 3600.0


def prices_differ(cluster: Cluster) -> bool:
    """Return whether the cost of a job depends on the types of its devices."""
    prices = dict(cluster.prices)
    return len({prices.get(name) for name in cluster.device_types}) > 1


def run_costs(
    cluster: Cluster, makespan_s: float, busy_device_s: float, spans: Sequence[Span]
) -> dict[str, float | None]:
    """Costs of a run, in the unit of the prices.

    Parameters
    ----------
    makespan_s : from the first arrival to the last end.
    busy_device_s : devices in use times time; a device that several jobs share counts once.
    spans : devices of each job over time; empty if they were not recorded.

    Returns
    -------
    ``used_cost`` of the devices while jobs had them, and ``cluster_cost`` of all devices of the cluster for the makespan,
    also while their nodes were away. Both are None without prices; ``used_cost`` also if prices differ and the devices
    of jobs were not recorded.
    """
    if not cluster.prices:
        return {"used_cost": None, "cluster_cost": None}
    per_s = {name: price / _HOUR_S for name, price in cluster.prices}
    cluster_cost = makespan_s * sum(
        node.num_devices * per_s[node.device_type] for node in cluster.nodes if node.devices
    )
    used_cost: float | None = busy_device_s * per_s[cluster.device_types[0]]
    if prices_differ(cluster):
        used_cost = _used_cost(cluster, per_s, spans) if spans or not busy_device_s else None
    return {"used_cost": used_cost, "cluster_cost": cluster_cost}


def _used_cost(cluster: Cluster, per_s: dict[str, float], spans: Sequence[Span]) -> float:
    """Return the cost of the time in which each device was in use; a device that several jobs share counts once."""
    sizes = np.array([len(span.devices) for span in spans], np.int64)
    device = np.array([number for span in spans for number in span.devices], np.int64)
    start_s = np.repeat([span.start_s for span in spans], sizes)
    end_s = np.repeat([span.end_s for span in spans], sizes)
    price_per_s = np.array([per_s[name] for name in cluster.device_types])[
        cluster.type_of_node[cluster.node_of]
    ]
    total, order = 0.0, np.lexsort((start_s, device))
    last, until_s = -1, 0.0
    for number, since_s, to_s in zip(
        *(column[order].tolist() for column in (device, start_s, end_s)), strict=True
    ):
        since_s = since_s if number != last else max(since_s, until_s)
        total += max(0.0, to_s - since_s) * float(price_per_s[number])
        last, until_s = number, max(since_s, to_s)
    return total
