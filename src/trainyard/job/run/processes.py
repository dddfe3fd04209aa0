"""Worker processes on this machine, forked from a server that has PyTorch loaded, so that they start at once."""

from __future__ import annotations

import multiprocessing as mp
import os
import queue
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from trainyard.hardware.heap import heap_of_children
from trainyard.hardware.interface import use_interface
from trainyard.job.run.errors import FailedRunError

# Beside the workers' own modules what PyTorch loads when it traces the first time.
_PRELOAD = [
    "trainyard.job.run.supervisor",
    "trainyard.program.random_kernels",
    "torch._dynamo",
    "torch.onnx",
]


class WorkerError(FailedRunError):
    """A worker process failed or died; the message names its rank and what it said last."""


def context() -> Any:
    """The multiprocessing context whose processes start with PyTorch loaded."""
    found = mp.get_context("forkserver")
    found.set_forkserver_preload(_PRELOAD)
    with heap_of_children():
        forkserver.ensure_running()
    return found


def warm_up() -> None:
    """Start the server, which takes seconds, so that the first process does not wait for it."""
    process = context().Process(target=os.getpid)
    process.start()
    process.join()


def run_ranks(num_ranks: int, function: Callable[..., Any], *args: Any, timeout_s: float = 300) -> list[Any]:
    """Call ``function(rank, *args)`` in one process per rank, in a gloo process group, and return the results.

    Raises
    ------
    WorkerError
        If a process raises, dies or does not answer in time; the others are stopped.
    """
    spawn = context()
    results = spawn.Queue()
    with tempfile.TemporaryDirectory(prefix="trainyard-") as folder:
        store = str(Path(folder) / "store")
        workers = [
            spawn.Process(target=_call, args=(results, store, num_ranks, rank, function, args), daemon=True)
            for rank in range(num_ranks)
        ]
        for worker in workers:
            worker.start()
        try:
            return _collect(workers, results, timeout_s)
        finally:
            for worker in workers:
                worker.kill()
                worker.join()


def _collect(workers: list[Any], results: Any, timeout_s: float) -> list[Any]:
    found: dict[int, Any] = {}
    waited_s = 0.0
    while len(found) < len(workers):
        try:
            rank, ok, value = results.get(timeout=0.5)
        except queue.Empty:
            waited_s += 0.5
            dead = [r for r, w in enumerate(workers) if r not in found and w.exitcode is not None]
            if dead:
                raise WorkerError(
                    f"rank {dead[0]} ended with exit code {workers[dead[0]].exitcode}"
                ) from None
            if waited_s > timeout_s:
                missing = sorted(set(range(len(workers))) - set(found))
                raise WorkerError(f"ranks {missing} gave no answer in {timeout_s:.0f} s") from None
            continue
        if not ok:
            raise WorkerError(f"rank {rank} failed:\n{value}")
        found[rank] = value
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
        results.put((rank, True, function(rank, *args)))
    except Exception:
        results.put((rank, False, traceback.format_exc()))
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
