"""Being a rank that a launcher started: with torchrun's variables, those of an MPI, or those of a step of Slurm."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping

from trainyard.job.run.processes.mpi_task import join_mpi_task
from trainyard.job.run.processes.slurm_step import join_slurm_step
from trainyard.reading import shown
from trainyard.reading.arguments import WrongValueError

__all__ = ["is_launched", "join_launcher", "other_machine"]

_ALONE = "to train on this machine alone"
_MOST_DIGITS = 15


def is_launched(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether a launcher started this process as one of several ranks."""
    return "RANK" in environ and "WORLD_SIZE" in environ


def join_launcher(environ: MutableMapping[str, str] = os.environ) -> None:
    """Say in the variables of ``torchrun`` which rank this process is, if a launcher started several.

    Torchrun's variables hold as they are. Those of Open MPI come next, then those of a step of Slurm, then those of MPICH
    and Intel MPI, which Slurm sets, too. A process that was started alone is left as it is.

    Raises
    ------
    WrongValueError
        If several processes were started, and it is not known which of them this one is, or where they meet: each would
        train everything. The message names the variable that is missing.
    """
    if not is_launched(environ) and not join_mpi_task(environ):
        join_slurm_step(environ)
    if is_launched(environ):
        _check(environ)
    elif "RANK" in environ or environ.get("WORLD_SIZE", "1") != "1":
        has, lacks = ("RANK", "WORLD_SIZE") if "RANK" in environ else ("WORLD_SIZE", "RANK")
        raise WrongValueError(
            f"{has} is {shown(environ[has])}, as launchers set it for each of several processes, and {lacks} is missing: "
            f"set {lacks}, as torchrun does, or unset {has} {_ALONE}"
        )


def other_machine(environ: Mapping[str, str] = os.environ) -> str:
    """Return the address by which ranks on other machines meet this one; "" if all ranks are on this machine."""
    # A launcher that does not say how many ranks are here may have started some elsewhere.
    is_alone = environ.get("LOCAL_WORLD_SIZE") == environ["WORLD_SIZE"]
    return "" if is_alone else environ["MASTER_ADDR"]


def _check(environ: Mapping[str, str]) -> None:
    """Check the variables that say which rank this process is, and where all meet."""
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not environ.get(name)]
    if missing:
        raise WrongValueError(
            f"RANK and WORLD_SIZE say that a launcher started this process, and {' and '.join(missing)} "
            f"{'are' if len(missing) > 1 else 'is'} missing, which say where its ranks meet: set MASTER_ADDR and "
            f"MASTER_PORT, as torchrun does, or unset RANK and WORLD_SIZE {_ALONE}"
        )
    numbers = {name: _number(environ, name) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT")}
    if not numbers["RANK"] < numbers["WORLD_SIZE"]:
        raise WrongValueError(
            f"RANK is {numbers['RANK']}, and WORLD_SIZE {numbers['WORLD_SIZE']}: ranks are numbered from 0, so RANK is "
            "less than WORLD_SIZE; set both as torchrun does"
        )


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ[name]
    if not (text.isascii() and text.isdecimal()) or len(text) > _MOST_DIGITS:
        raise WrongValueError(f"{name} is {shown(text)}, allowed is a whole number; set it as torchrun does")
    return int(text)
