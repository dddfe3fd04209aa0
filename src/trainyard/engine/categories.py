"""What kinds of work a task can be, and which of them count as communication."""

from __future__ import annotations

from types import MappingProxyType
from typing import Literal

CategoryKind = Literal["compute", "communication", "other"]
ResourceKind = Literal["compute", "communication", "copy", "other"]

#: The categories every level shares. A copy between a device and its host counts as communication: it runs on
#: a stream of its own, and what matters of it is how much of it computation does not hide.
STANDARD_CATEGORIES: MappingProxyType[str, CategoryKind] = MappingProxyType(
    {
        "forward": "compute",
        "backward": "compute",
        "weight_gradient": "compute",
        "recompute": "compute",
        "optimizer": "compute",
        "encode": "compute",
        "all_reduce": "communication",
        "all_gather": "communication",
        "reduce_scatter": "communication",
        "all_to_all": "communication",
        "broadcast": "communication",
        "send": "communication",
        "swap_out": "communication",
        "swap_in": "communication",
        "other": "other",
    }
)
