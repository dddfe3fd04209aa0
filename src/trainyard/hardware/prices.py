"""Prices of the devices of a cluster: of one device of each type for an hour."""

from __future__ import annotations

from collections.abc import Iterable

from trainyard.hardware.errors import HardwareError

__all__ = ["Prices", "check_prices"]

Prices = tuple[tuple[str, float], ...]
"""Device types, each with its price; a type that the cluster lacks may have one, too."""


def check_prices(prices: Prices, device_types: Iterable[str], cluster: str) -> None:
    """Check that all types of device have a price, or that there are no prices.

    Raises
    ------
    HardwareError
        If a type has none; the message names the types and the cluster.
    """
    unpriced = sorted(set(device_types) - dict(prices).keys()) if prices else []
    if unpriced:
        raise HardwareError(
            f"cluster {cluster!r} has prices, and none of {', '.join(unpriced)}; add it under prices in the file of the "
            "cluster, or leave prices out"
        )
