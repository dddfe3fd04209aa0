"""HiveD: a virtual cluster is as good as a private one, and opportunistic jobs give way."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from trainyard.fleet.policies.hived.policy import hived
from trainyard.fleet.reproduce.priorities import priority_table
from trainyard.fleet.simulate_fleet import simulate_fleet
from trainyard.fleet.workload.job import declared_job
from trainyard.hardware.cluster import Cluster
from trainyard.published import PaperTable, Row

_HOURS = (1, 2, 3, 4, 5)


def _private() -> Iterator[Row]:
    others = [
        declared_job(f"other {n}", 0.0, n % 8 + 1, 7200.0, virtual_cluster="b", guaranteed=n % 2 == 0)
        for n in range(40)
    ]
    own = [declared_job(f"{n}", 1.0, 8, 3600.0 * n, virtual_cluster="a") for n in _HOURS]
    run = simulate_fleet([*others, *own], Cluster.uniform(2, 8), hived(quotas=(("a", 8, 1), ("b", 8, 1))))
    ended_h = dict(zip(run.names, ((run.finish_s - 1.0) / 3600).tolist(), strict=True))
    for n, theirs in zip(_HOURS, accumulate(_HOURS), strict=True):
        yield Row(f"{n} h on eight devices", theirs, ended_h[f"{n}"])


TABLES = (
    PaperTable(
        "Zhao et al., OSDI 2020, its claim of sharing safety: a virtual cluster is as good as a private one",
        "end, h",
        "simulated: a node's worth of cells beside another tenant with 40 jobs, guaranteed and opportunistic; theirs are "
        "the sums of the lengths up to each, as on a node of one's own",
        _private,
        tolerance=1e-6,
    ),
    priority_table(hived(quotas=(("", 1, 1),))),
)
