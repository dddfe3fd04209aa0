"""Worker processes on this machine, forked from a server that has PyTorch loaded, so that they start at once."""

from __future__ import annotations

import multiprocessing as mp
import os
import pickle
import queue
import tempfile
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import psutil

from trainyard.hardware.interface import use_interface
from trainyard.job.run.errors import FailedRunError
from trainyard.job.run.processes.rank_processes import how_it_ended
from trainyard.processes import ProcessLimits, ProcessLostError, fork_server, start_forked, watch_together

# Beside the workers' own modules what PyTorch loads when it traces the first time.
_PRELOAD = [
    "trainyard.job.run.processes.supervisor",
    "trainyard.program.random.kernels",
    "torch._dynamo",
    "torch.onnx",
]

_RANK_LIMITS = ProcessLimits(cpu_s=600.0)
_LOOK_S = 0.5


class WorkerError(FailedRunError):
    """A worker process failed or died; the message names its rank and what it said last."""


def context() -> Any:
    """The multiprocessing context whose processes start with PyTorch loaded."""
    found = mp.get_context("forkserver")
    found.set_forkserver_preload(_PRELOAD)
    fork_server()
    return found


def start(process: BaseProcess) -> None:
    """Start a process of `context`.

    Raises
    ------
    WorkerError
        If the fork server was ended because it did not answer, or if it and the next one ended by themselves. The next
        process gets another one.
    """
    try:
        start_forked(process)
    except ProcessLostError as error:
        raise WorkerError(f"the process {error}; another server is started") from error


def has_ended(process: BaseProcess) -> bool:
    """Return whether a started process has ended, also if the server does not answer, which means that it has."""
    if process.exitcode is not None:
        return True
    try:
        return psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def warm_up() -> None:
    """Start the server, which takes seconds, so that the first process does not wait for it."""
    process = context().Process(target=os.getpid)
    start(process)
    process.join()


def run_ranks(
    num_ranks: int, function: Callable[..., Any], *args: Any, limits: ProcessLimits = _RANK_LIMITS
) -> list[Any]:
    """Call ``function(rank, *args)`` in one process per rank, in a gloo process group, and return the results.

    Parameters
    ----------
    limits : of each rank on average; ``idle_s`` is how long all together may use no CPU, for who waits for another uses
        none.

    Raises
    ------
    WorkerError
        If a process raises, dies or passes the limits; the others are stopped.
    """
    spawn = context()
    results = spawn.Queue()
    with tempfile.TemporaryDirectory(prefix="trainyard-") as folder:
        store = str(Path(folder) / "store")
        workers = [
            spawn.Process(target=_call, args=(results, store, num_ranks, rank, function, args))
            for rank in range(num_ranks)
        ]
        for worker in workers:
            start(worker)
        try:
            return _collect(workers, results, limits)
        finally:
            for worker in workers:
                worker.kill()
                worker.join()


def _collect(workers: list[Any], results: Any, limits: ProcessLimits) -> list[Any]:
    found: dict[int, Any] = {}
    watch = watch_together([worker.pid for worker in workers], limits)
    while len(found) < len(workers):
        try:
            rank, ok, value = results.get(timeout=_LOOK_S)
        except queue.Empty:
            dead = [r for r, w in enumerate(workers) if r not in found and w.exitcode is not None]
            if dead:
                raise WorkerError(f"rank {dead[0]} {how_it_ended(workers[dead[0]].exitcode)}") from None
            if exceeded := watch.look():
                missing = sorted(set(range(len(workers))) - set(found))
                raise WorkerError(f"ranks {missing} gave no answer: together, all ranks {exceeded}") from None
            continue
        if not ok:
            raise WorkerError(f"rank {rank} failed:\n{value}")
        found[rank] = pickle.loads(value)
    return [found[r] for r in range(len(workers))]


def _call(
    results: Any, store: str, num_ranks: int, rank: int, function: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(max(1, (os.cpu_count() or 1) // num_ranks))
    try:
        if num_ranks > 1:
            use_interface()
            dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=num_ranks)
        # As bytes: tensors that a queue sends end with their process.
        results.put((rank, True, pickle.dumps(function(rank, *args))))
        if dist.is_initialized():
            with suppress(Exception):  # another has failed, and says so
                dist.barrier()  # who leaves resets what others still read from it
    except Exception:
        results.put((rank, False, traceback.format_exc()))
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
