"""Published pipeline schedules, one generator each, and what checks and times them.

All generators take ``(num_ranks, num_microbatches, num_stages_per_rank)``, which are p, m and v in most papers and
in the descriptions, and at least 1; they return a `Schedule`, and raise `ValueError` on a count that the schedule
does not allow. Descriptions are for stages of equal length: f seconds forward, b backward, or i and w for the
gradients of inputs and of weights.

Example
-------
>>> schedule = make_schedule("one_f_one_b", num_ranks=2, num_microbatches=2)
>>> print(schedule, end="")
one_f_one_b stages=2 microbatches=2
0: 0F0 0F1 0B0 0B1
1: 1F0 1B0 1F1 1B1
>>> dry_run(schedule, {"F": 1.0, "B": 2.0}).makespan_s
9.0
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from trainyard.job.schedule import Schedule
from trainyard.job.schedules.breadth_first import breadth_first
from trainyard.job.schedules.checking import check
from trainyard.job.schedules.dry_run import DryRun, dry_run, peak_awaiting_backward
from trainyard.job.schedules.gpipe import gpipe
from trainyard.job.schedules.interleaved import interleaved
from trainyard.job.schedules.one_f_one_b import one_f_one_b
from trainyard.job.schedules.pipedream import pipedream
from trainyard.job.schedules.versions import (
    WeightUse,
    explain_versions,
    is_one_step,
    num_versions,
    staleness,
    weight_uses,
)
from trainyard.job.schedules.zero_bubble import zb_v, zero_bubble_h1, zero_bubble_h2
from trainyard.reading import shown
from trainyard.reading.arguments import WrongValueError

__all__ = [
    "SCHEDULES",
    "DryRun",
    "WeightUse",
    "breadth_first",
    "check",
    "dry_run",
    "explain_versions",
    "gpipe",
    "interleaved",
    "is_one_step",
    "make_schedule",
    "num_versions",
    "one_f_one_b",
    "peak_awaiting_backward",
    "pipedream",
    "staleness",
    "weight_uses",
    "zb_v",
    "zero_bubble_h1",
    "zero_bubble_h2",
]

SCHEDULES: Mapping[str, Callable[[int, int, int], Schedule]] = MappingProxyType(
    {
        "gpipe": gpipe,
        "breadth_first": breadth_first,
        "one_f_one_b": one_f_one_b,
        "pipedream": pipedream,
        "interleaved": interleaved,
        "zero_bubble_h1": zero_bubble_h1,
        "zero_bubble_h2": zero_bubble_h2,
        "zb_v": zb_v,
    }
)
"""Generators by name; each takes the numbers of ranks, microbatches and stages per rank."""


def make_schedule(name: str, num_ranks: int, num_microbatches: int, num_stages_per_rank: int = 1) -> Schedule:
    """Make a published schedule by its name.

    Parameters
    ----------
    name : str
        A key of `SCHEDULES`.
    num_ranks, num_microbatches, num_stages_per_rank : int
        At least 1 each; some schedules ask for more, and say so.

    Returns
    -------
    Schedule

    Raises
    ------
    WrongValueError
        On an unknown name or a count the schedule does not allow.
    """
    if name not in SCHEDULES:
        raise WrongValueError(f"unknown schedule {shown(name)}; known: {', '.join(sorted(SCHEDULES))}")
    return SCHEDULES[name](num_ranks, num_microbatches, num_stages_per_rank)
