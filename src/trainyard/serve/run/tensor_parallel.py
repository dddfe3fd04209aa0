"""A model that several processes share, each with a part of every layer: the first leads, the others follow its steps."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FileStore

from trainyard.hardware.interface import use_interface
from trainyard.job.run.processes.worker import join_group
from trainyard.job.run.step.process_groups import ProcessGroups
from trainyard.serve.batch import CacheOp, WorkItem
from trainyard.serve.errors import ServeError
from trainyard.serve.request_state import RequestState
from trainyard.serve.run.causal_model import CausalModel
from trainyard.serve.run.model_shards import ModelShards
from trainyard.serve.run.pretrained import ModelLoader, load_causal_pretrained, refusing
from trainyard.serve.run.sharded_modules import shard_model

__all__ = ["TensorParallelModel"]

_NOTICE_S = 5.0  # for the end of another process to be seen, where that is why something failed


class TensorParallelModel:
    """The first of the processes that share a model. It computes steps, and has the others compute them with it.

    Parameters
    ----------
    folder : of the model, in Hugging Face form; every process reads it.
    dtype : type of weights and cache.
    shards : how it is cut.
    num_threads : of each of the other processes.
    lost : is told in a thread if one of them ends; no step can be computed then.
    load : how every process makes the model of the folder.

    Attributes
    ----------
    name, context, vocabulary : see `trainyard.serve.run.step_model.StepModel`.
    processes : the other ones.

    Raises
    ------
    ServeError
        If the model cannot be read, or cannot be served so.
    """

    def __init__(
        self,
        folder: Path,
        dtype: torch.dtype,
        shards: ModelShards,
        num_threads: int = 1,
        lost: Callable[[str], None] = lambda why: None,
        load: ModelLoader = load_causal_pretrained,
    ) -> None:
        self._lost, self._is_closing = lost, False
        self._connections: list[Connection] = []
        self.processes: list[BaseProcess] = []
        with TemporaryDirectory(prefix="trainyard-ranks-") as met:
            own_part = partial(_own_part, load, folder, dtype, shards, str(Path(met) / "store"))
            for rank in range(1, shards.num_ranks):
                self._start(partial(own_part, rank), num_threads)
            self._watch = Thread(target=self._wait_for_end, args=(folder.name,), daemon=True)
            self._watch.start()
            try:
                self._own = own_part(0, self._wait_until_read)
            except BaseException:
                self.close()
                raise
        self.name, self.context = self._own.name, self._own.context
        self.vocabulary = self._own.vocabulary

    def new_cache(self, num_blocks: int, block_tokens: int, num_host_blocks: int) -> None:
        """Keep keys and values in new KV caches, one of each process."""
        self._compute("new_cache", num_blocks, block_tokens, num_host_blocks)

    def apply(self, ops: Sequence[CacheOp]) -> None:
        """Do operations on the KV caches, whose blocks lie alike in each process."""
        if ops:
            self._compute("apply", ops)

    def load_adapter(self, adapter: str, folder: Path) -> None:
        """Not done: nothing says how it is cut."""
        raise ServeError(
            f"{self.name} is shared by several processes, and such models have no adapters; leave {adapter} out, or "
            "serve the model in one process"
        )

    def unload_adapter(self, adapter: str) -> None:
        """There are none."""

    def logits(
        self, items: Sequence[WorkItem], requests: Mapping[int, RequestState], rows: Sequence[int]
    ) -> Tensor:
        """Compute a step."""
        found: Tensor = self._compute("compute", self._own.inputs(items, requests), rows)
        return found

    def report_progress(self, report: Callable[[], None]) -> None:
        """Call a function for each layer of the part of this process."""
        self._own.report_progress(report)

    def close(self) -> None:
        """End the other processes."""
        self._is_closing = True
        for connection in self._connections:
            connection.close()
        for process in self.processes:
            process.join(_NOTICE_S)
            process.kill()
            process.join()
        if dist.is_initialized():
            dist.destroy_process_group()

    def _start(self, own_part: _OwnPart, num_threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        mine, theirs = context.Pipe()
        process = context.Process(target=_follow, args=(theirs, own_part, num_threads), daemon=True)
        process.start()
        theirs.close()
        self._connections.append(mine)
        self.processes.append(process)

    def _wait_until_read(self) -> None:
        """Processes that cannot read their part would be waited for in vain."""
        for connection in self._connections:
            try:
                connection.recv()
            except EOFError as error:
                raise ServeError(
                    "a process ended before it had its part of the model; its messages say why"
                ) from error

    def _wait_for_end(self, name: str) -> None:
        """Tell of a process that ends by itself, in a thread."""
        wait([process.sentinel for process in self.processes])
        if not self._is_closing:
            self._lost(f"one of the processes that share {name} ended")

    def _compute(self, method: str, *given: Any) -> Any:
        """Call a method of every process's part; return what that of this one returns."""
        try:
            for connection in self._connections:
                connection.send((method, given))
            return getattr(self._own, method)(*given)
        except (RuntimeError, OSError):
            self._watch.join(_NOTICE_S)
            raise


_OwnPart = Callable[[Callable[[], None]], CausalModel]


def _own_part(
    load: ModelLoader,
    folder: Path,
    dtype: torch.dtype,
    shards: ModelShards,
    store: str,
    rank: int,
    read: Callable[[], None],
) -> CausalModel:
    """The part of a model that a rank has.

    Parameters
    ----------
    store : file in which the ranks meet.
    read : is called when the model is read, before the ranks meet.
    """
    model = load(folder, dtype)
    read()
    use_interface()
    join_group(torch.device("cpu"), FileStore(store, shards.num_ranks), rank, shards.num_ranks)
    groups = ProcessGroups(shards.plan, rank, torch.device("cpu"))
    with refusing(
        folder, f"cannot be served in {shards.num_ranks} shards", "serve it without tensor parallelism"
    ):
        shard_model(model, folder.name, shards, groups)
        return CausalModel(model, folder.name)


def _follow(connection: Connection, own_part: _OwnPart, num_threads: int) -> None:
    """Run a process other than the first, until the first ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: who began the first process ends it
    torch.set_num_threads(num_threads)
    calls: SimpleQueue[tuple[str, tuple[Any, ...]]] = SimpleQueue()
    receiving = Thread(target=_receive, args=(connection, calls), daemon=True)
    receiving.start()
    try:
        try:
            model = own_part(lambda: connection.send(None))
        except Exception as error:
            receiving.join(_NOTICE_S)  # a first process that cannot have its part, either, says so and ends
            print(f"a part of the model cannot be computed: {error}", file=sys.stderr, flush=True)
            os._exit(1)
        while True:
            method, given = calls.get()
            getattr(model, method)(*given)
    except (RuntimeError, OSError):
        receiving.join(_NOTICE_S)
        raise


def _receive(connection: Connection, calls: SimpleQueue[tuple[str, tuple[Any, ...]]]) -> None:
    """Receive messages in a thread, so that the end of the first process is seen during a sum, too."""
    with suppress(EOFError, OSError):
        while True:
            calls.put(connection.recv())
    os._exit(0)
