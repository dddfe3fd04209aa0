"""The options `--what-if` and `--speed`."""

from __future__ import annotations

from typing import Annotated

import tyro

from trainyard.cli.named_numbers import NamedNumbers, named_numbers

__all__ = ["Speeds", "WhatIfs"]

WhatIfs = Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="CHANGE")]
"""Changes to simulate, in the form of `trainyard.fleet.what_if.parse_what_ifs`; the option may be given several times."""
Speeds = Annotated[
    NamedNumbers,
    named_numbers(
        "TYPE=X", lambda speed: speed > 0.0, "a type of device and a number above 0, such as V100=0.5"
    ),
]
"""Device types with a speed each, between commas."""
