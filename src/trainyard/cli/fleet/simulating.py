"""Options that `fleet simulate` and `fleet compare` share: the cluster, the trace, costs and failures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from trainyard.cli.bounds import DURATION, FRACTION, PERIOD, PERIOD_OR_NEVER
from trainyard.cli.quantities import Duration, DurationOrNever, DurationOrZero
from trainyard.cli.screen import Common

if TYPE_CHECKING:
    from trainyard.fleet.workload.read import Workload
    from trainyard.hardware.cluster import Cluster

__all__ = ["SimulatingOptions"]


@dataclass(frozen=True, kw_only=True)
class JobTraceOptions:
    """Options of reading a trace of jobs."""

    heading = "trace"
    format: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Format of the trace; by default recognised by its contents."""
    profiles: Annotated[Path | None, tyro.conf.arg(metavar="PATH")] = None
    """Measured speeds that jobs refer to: a file for traces of Gavel, Shockwave and Synergy, a folder for traces of
    ElasticFlow, Pollux and Sia. Traces of Pollux and Sia need it. Sia's speeds are by the cluster's device types."""
    limit: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Take only the first jobs of the trace."""
    strict: bool = False
    """Stop at the first row of the trace that cannot be read, and at the first job that can never run on the cluster; by
    default these are left out, and counted."""
    timezone: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Time zone of dates in the trace that name none, such as Europe/Berlin; by default UTC, and for Philly its
    cluster's zone."""

    own_files: bool = False
    """Run the Python files that jobs of the trace name as their models, to predict how fast they are."""

    def read(self, trace: Path, cluster: Cluster) -> Workload:
        """Read the jobs of a trace."""
        from trainyard.fleet.workload.read import read_workload

        return read_workload(
            trace,
            self.format,
            self.profiles,
            self.limit,
            cluster.device_types,
            strict=self.strict,
            timezone=self.timezone,
            own_files=self.own_files,
        )


@dataclass(frozen=True, kw_only=True)
class CostAndFailureOptions:
    """Costs of starting and moving jobs, and failures."""

    heading = "costs and failures"
    start: Annotated[DurationOrZero, DURATION] = 0.0
    """Predicted time that a job needs to start before its first step."""
    restart: Annotated[DurationOrZero, DURATION] = 0.0
    """Predicted time that a job loses when it restarts, on other devices or after waiting."""
    failure_every: Annotated[DurationOrNever, PERIOD_OR_NEVER] = float("inf")
    """Mean time between failures of one device; its job goes back to its last checkpoint."""
    node_failure_every: Annotated[DurationOrNever, PERIOD_OR_NEVER] = float("inf")
    """Mean time between failures of one node; its jobs go back to their last checkpoints, and wait for devices."""
    node_repair: Annotated[Duration, PERIOD] = 3600.0
    """Mean time until a failed node is back."""
    checkpoint_every: Annotated[DurationOrNever, PERIOD_OR_NEVER] = 600.0
    """Time between checkpoints of a job."""
    stragglers: Annotated[float, tyro.conf.arg(metavar="SHARE"), FRACTION] = 0.0
    """Share of the starts of jobs, from 0 to 1, after which a job runs half as fast as it should."""
    crowding: Annotated[float, tyro.conf.arg(metavar="N")] = float("inf")
    """Devices of a node that work at full speed at once. When more are in use, all devices of the node slow down."""

    def conditions(self, seed: int) -> dict[str, Any]:
        """Return the costs and failures as parameters of a simulation."""
        from trainyard.fleet.mechanism.costs import Costs
        from trainyard.fleet.mechanism.crowding import Crowding
        from trainyard.fleet.mechanism.hazards import Hazards

        hazards = Hazards(
            failure_every_s=self.failure_every,
            checkpoint_every_s=self.checkpoint_every,
            node_failure_every_s=self.node_failure_every,
            node_repair_s=self.node_repair,
            straggler_share=self.stragglers,
            seed=seed,
        )
        costs = Costs(self.restart, self.start)
        return {"costs": costs, "hazards": hazards, "crowding": Crowding(self.crowding)}


@dataclass(frozen=True, kw_only=True)
class SimulatingOptions(JobTraceOptions, CostAndFailureOptions, Common):
    """The cluster and the conditions of a simulation."""

    cluster: Annotated[str, tyro.conf.arg(metavar="C")]
    """NODESxDEVICES or NODESxDEVICESxTYPE, pools joined by +, such as 2x8xV100+4x4xK80; after an @, what else nodes have:
    16x4@24cpu,500GB,4/rack. GB are 10^9 bytes, GiB 2^30. Or a YAML file with this and partitions (see the guide)."""
    placement: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Rule that chooses devices for jobs: anywhere, consolidated, packed, spread or emptiest; by default as the policy's
    paper does, mostly consolidated. With consolidated, a job waits until as few nodes as can hold it are free; with
    packed, it takes more nodes rather than wait. Placement can matter more than the policy (see the guide). Not for
    policies that choose devices themselves."""
    baseline: Annotated[str | None, tyro.conf.arg(metavar="POLICY")] = None
    """Policy that the others are compared with, also by groups of jobs; by default the first. 'as recorded' is the
    schedule of the trace itself, if the trace says when jobs started."""
    round: Annotated[Duration | None, PERIOD] = None
    """Time between decisions of the policy; by default the policy's own."""
