"""Options that say what is otherwise than at present, and how fast devices are."""

from __future__ import annotations

import math
from typing import Annotated

import tyro
from tyro.constructors import PrimitiveConstructorSpec

from trainyard.cli.lists import between_commas
from trainyard.reading import shown

__all__ = ["Speeds", "WhatIfs"]


def _speed(text: str) -> tuple[str, float]:
    name, _, number = text.rpartition("=")
    try:
        speed = float(number)
    except ValueError:
        speed = math.nan
    if not name or not 0.0 < speed < math.inf:
        raise ValueError(
            f"{shown(text)} is not TYPE=X; give a type of device and a number above 0, such as V100=0.5"
        )
    return name, speed


WhatIfs = Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="CHANGE")]
"""What-ifs as `trainyard.fleet.what_if.what_ifs_of` reads them; the option may be given again."""
Speeds = Annotated[
    tuple[tuple[str, float], ...],
    PrimitiveConstructorSpec(
        nargs=1,
        metavar="TYPE=X,...",
        instance_from_str=lambda given: tuple(map(_speed, between_commas(given[0]))),
        is_instance=lambda value: isinstance(value, tuple),
        str_from_instance=lambda value: [",".join(f"{name}={speed:g}" for name, speed in value)],
    ),
]
"""Types of device with a speed each, between commas."""
