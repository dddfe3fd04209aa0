"""Options that simulations and `fleet run` share: what changes of devices cost a job in the simulator."""

from __future__ import annotations

from typing import Annotated

import tyro

from trainyard.cli.bounds import DURATION

__all__ = ["RestartS", "StartS"]

StartS = Annotated[
    float,
    DURATION,
    tyro.conf.arg(metavar="S", help="Predicted time that a job needs to start before its first step."),
]
RestartS = Annotated[
    float,
    DURATION,
    tyro.conf.arg(
        metavar="S", help="Predicted time that a job loses when it gets other devices, or devices again."
    ),
]
