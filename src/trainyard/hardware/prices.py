"""Prices of the devices of a cluster: of one device of each type for an hour."""

from __future__ import annotations

from collections.abc import Iterable

from trainyard.hardware.errors import HardwareError
from trainyard.hardware.node import Node

__all__ = ["Prices", "check_prices"]

Prices = tuple[tuple[str, float], ...]
"""Device types, each with its price; a type that the cluster lacks may have one, too."""


def check_prices(prices: Prices, nodes: Iterable[Node], cluster: str) -> None:
    """Check that all types of device have a price, or that there are no prices.

    Raises
    ------
    HardwareError
        If a type has none; the message names the types and the cluster.
    """
    device_types = {device.name for node in nodes for device in node.devices} if prices else set()
    unpriced = sorted(device_types - dict(prices).keys())
    if unpriced:
        raise HardwareError(
            f"cluster {cluster!r} has prices, and none of {', '.join(unpriced)}; add it under prices in the file of the "
            "cluster, or leave prices out"
        )
