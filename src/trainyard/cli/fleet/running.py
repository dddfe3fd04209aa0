"""Options that `fleet run` and `fleet daemon` share: the cluster, the backend, the policy and limits of jobs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from trainyard.cli.bounds import PERIOD, STALL
from trainyard.cli.outputs import Output
from trainyard.cli.quantities import Duration, DurationOrNever, Size
from trainyard.cli.screen import Common

if TYPE_CHECKING:
    from trainyard.fleet.run.backend import JobLimits

__all__ = ["RunningOptions"]


@dataclass(frozen=True, kw_only=True)
class RunningOptions(Common):
    """The cluster, the backend, the policy and limits of jobs."""

    cluster: Annotated[str, tyro.conf.arg(metavar="C")]
    """NODESxDEVICESxTYPE; of type local, a device is a process of this machine: 2x2xlocal."""
    folder: Annotated[Path, tyro.conf.arg(metavar="DIR"), Output.FOLDER]
    """Folder with a folder for each job, which all nodes must see. Jobs already there go on from their checkpoints."""
    policy: Annotated[str, tyro.conf.arg(metavar="P")] = "srtf"
    """Policy, with options in parentheses. FILE.py:NAME is one of your own."""
    backend: Annotated[str, tyro.conf.arg(metavar="B")] = "local"
    """Backend that starts the processes: local, slurm or ray."""
    placement: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Rule that chooses devices for jobs: anywhere, consolidated, packed, spread or emptiest; by default as the policy's
    paper does. Not for policies that choose devices themselves."""
    round: Annotated[Duration | None, PERIOD] = None
    """Time between decisions of the policy; by default the policy's own."""
    stall: Annotated[DurationOrNever, STALL] = 1800.0
    """Time without a step after which a job fails. Its first step may take 30 min in any case."""
    max_checkpoint_size: Size = 100 * 10**9
    """Most disk space that the checkpoints of one job may take; a job that would need more is refused."""

    @property
    def limits(self) -> JobLimits:
        """Limits of each job."""
        from trainyard.fleet.run.backend import JobLimits

        return JobLimits(stall_s=self.stall, max_checkpoint_bytes=self.max_checkpoint_size)
