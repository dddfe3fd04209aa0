"""The address of the daemon's state, and the address without its password."""

from __future__ import annotations

import os
import re
from pathlib import Path

from trainyard.fleet.errors import FleetError

__all__ = ["state_address", "with_driver", "without_password"]

_VARIABLE = "TRAINYARD_STATE"


def state_address(given: str | None, folder: Path) -> str:
    """Return the address of the state: the option, else the variable ``TRAINYARD_STATE``, else a file in the folder.

    The variable is removed from the environment, so that jobs do not inherit it.

    Raises
    ------
    FleetError
        If a password is given, which everybody on this machine sees in the list of processes.
    """
    kept = os.environ.pop(_VARIABLE, None)
    if given and (shown := without_password(given)) != given:
        raise FleetError(
            f"--state {shown!r} has a password, which everybody on this machine could read in the list of processes: "
            f"give the address without it and keep the password in ~/.pgpass, or give all of it in the "
            f"variable {_VARIABLE}"
        )
    return given or kept or f"sqlite:///{folder / 'state.sqlite'}"


def with_driver(url: str) -> str:
    """Return an address with the driver for SQLAlchemy."""
    return url.replace("postgresql://", "postgresql+psycopg://", 1)


def without_password(url: str) -> str:
    """Return an address without anything that may be a password, even if the address is malformed."""
    begin = url.find("://") + 3 if "://" in url else 0
    rest = re.sub("(password=)[^&]*", r"\1***", url[begin:], flags=re.IGNORECASE)
    return url[:begin] + re.sub(":.+@", ":***@", rest, count=1, flags=re.DOTALL)
