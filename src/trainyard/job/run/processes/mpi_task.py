"""Being one of several processes that ``mpirun`` or ``mpiexec`` started: what an MPI says in variables."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from types import MappingProxyType
from typing import NamedTuple
from zlib import crc32

from trainyard.reading import shown
from trainyard.reading.arguments import WrongValueError

__all__ = ["join_mpi_task"]


class _Names(NamedTuple):
    """Names of an MPI's variables, in the order of those of torchrun: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE."""

    rank: str
    num_ranks: str
    local_rank: str
    num_local_ranks: str


_OPEN_MPI = _Names(*(f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")))
_HYDRA = _Names("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
_PROGRAMS = MappingProxyType({_OPEN_MPI: "Open MPI", _HYDRA: "MPICH or Intel MPI"})
_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
# Of a run of Open MPI; it differs between runs.
_NAMES_OF_RUN = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid")
# Below those that systems give to connections.
_FIRST_PORT, _NUM_PORTS = 20_000, 10_000
_MOST_DIGITS = 15


def join_mpi_task(environ: MutableMapping[str, str] = os.environ) -> bool:
    """Say in the variables of ``torchrun`` which rank this process is, if an MPI started several.

    Ranks of one machine meet on a port that follows from the run, unless ``MASTER_PORT`` says where.

    Returns
    -------
    bool
        Whether this process is one of several that an MPI started.

    Raises
    ------
    WrongValueError
        If a variable is missing or no number, or ranks are on several machines, and ``MASTER_ADDR`` and ``MASTER_PORT``
        do not say where they meet.
    """
    names = _names_in(environ)
    if names is None:
        return False
    numbers = [_number(environ, name, names) for name in names]
    rank, num_ranks, local_rank, num_local_ranks = numbers
    if num_ranks == 1:
        return False
    if not (rank < num_ranks and local_rank < num_local_ranks <= num_ranks):
        given = ", ".join(f"{name} {number}" for name, number in zip(names, numbers, strict=True))
        raise WrongValueError(
            f"{given}: such ranks cannot be; start the processes with mpirun or mpiexec, or with torchrun"
        )
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not environ.get(name)]
    if num_local_ranks < num_ranks and missing:
        raise WrongValueError(
            f"{_PROGRAMS[names]} started {num_ranks} processes on several machines, and {' and '.join(missing)} "
            f"{'are' if len(missing) > 1 else 'is'} missing, which say where they meet: set MASTER_ADDR to the address "
            "of the machine of rank 0, and MASTER_PORT to a free port of it, for all processes"
        )
    environ.update(zip(_TORCHRUN, map(str, numbers), strict=True))
    environ.setdefault("MASTER_ADDR", "127.0.0.1")
    environ.setdefault("MASTER_PORT", str(_port(environ)))
    return True


def _names_in(environ: Mapping[str, str]) -> _Names | None:
    """The variables of the MPI that started this process; None if none did, or Slurm says the same itself."""
    if _OPEN_MPI.rank in environ or _OPEN_MPI.num_ranks in environ:
        return _OPEN_MPI
    if _HYDRA.rank not in environ and _HYDRA.num_ranks not in environ:
        return None
    num_tasks = environ.get("SLURM_STEP_NUM_TASKS") if "SLURM_PROCID" in environ else None
    return None if num_tasks is not None and num_tasks == environ.get(_HYDRA.num_ranks) else _HYDRA


def _number(environ: Mapping[str, str], name: str, names: _Names) -> int:
    text = environ.get(name)
    if text is None:
        has = next(other for other in names if other in environ)
        raise WrongValueError(
            f"{has} says that {_PROGRAMS[names]} started this process, and {name} is missing: start it with mpirun or "
            f"mpiexec, or with torchrun; or unset {has} to train on this machine alone"
        )
    if not (text.isascii() and text.isdecimal()) or len(text) > _MOST_DIGITS:
        raise WrongValueError(
            f"{name} is {shown(text)}, allowed is a whole number; start the processes with mpirun"
        )
    return int(text)


def _port(environ: Mapping[str, str]) -> int:
    """A port that is the same for all processes of a run on a machine: they have one session in any case."""
    run = next((environ[name] for name in _NAMES_OF_RUN if name in environ), str(os.getsid(0)))
    return _FIRST_PORT + crc32(run.encode(errors="surrogateescape")) % _NUM_PORTS
