"""The errors of this level, and how errors are told."""

from __future__ import annotations

from trainyard.errors import TrainyardError
from trainyard.hardware.cluster import Cluster

__all__ = ["FleetError", "UnfitJobError", "one_line", "require_one_type"]

_LONGEST = 500


class FleetError(TrainyardError, ValueError):
    """Something given to the fleet level that cannot be; the message says what is allowed."""


class UnfitJobError(FleetError):
    """A job that can never run on a cluster, or not under a policy.

    Attributes
    ----------
    reason : of what kind that is, in words; jobs with the same one are counted together.
    """

    def __init__(self, reason: str, said: str) -> None:
        super().__init__(said)
        self.reason = reason


def require_one_type(cluster: Cluster, who: str) -> None:
    """Refuse, in the name of a policy that takes all devices for equal, a cluster where they are not.

    Raises
    ------
    FleetError
        If there are several types of devices.
    """
    if len(cluster.device_types) > 1:
        raise FleetError(
            f"{who} is for devices of one type; cluster {cluster.name!r} has {', '.join(cluster.device_types)}"
        )


def one_line(error: BaseException) -> str:
    """An error as a reason, in one line of bounded length."""
    kind, text = type(error), " ".join(str(error).split())
    if not kind.__module__.startswith("trainyard."):  # whose errors are sentences
        text = f"{kind.__name__}: {text}" if text else kind.__name__
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."
