"""Options that simulations and `fleet run` share: what changes of devices cost a job in the simulator."""

from __future__ import annotations

from typing import Annotated

import tyro

from trainyard.cli.bounds import DURATION
from trainyard.cli.quantities import DurationOrZero

__all__ = ["Restart", "Start"]

Start = Annotated[
    DurationOrZero,
    DURATION,
    tyro.conf.arg(help="Predicted time that a job needs to start before its first step."),
]
Restart = Annotated[
    DurationOrZero,
    DURATION,
    tyro.conf.arg(help="Predicted time that a job loses when it gets other devices, or devices again."),
]
