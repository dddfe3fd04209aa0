"""Gather the trained module: every parameter and buffer in whole, on the CPU of every rank, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import safe_open
from torch import Tensor, nn

from trainyard.job.run.checkpoint.same_run import PARAMS
from trainyard.job.run.checkpoint.snapshot import Part, take
from trainyard.job.run.checkpoint.tensor_files import write_tensors
from trainyard.job.run.checkpoint.weights import load_tensors
from trainyard.job.run.step.executor import Executor
from trainyard.program.boxes import Box, narrowed

__all__ = ["TakeTrained", "load_written", "whole_tensors", "write_trained"]

TakeTrained = Callable[[Iterator[tuple[str, Tensor]]], None]
"""Takes all that `whole_tensors` yields, on every rank."""


@dataclass(frozen=True)
class _Held:
    """The part of a tensor that a rank holds, without its numbers."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    boxes: tuple[Box, ...]


def whole_tensors(executor: Executor) -> Iterator[tuple[str, Tensor]]:
    """Put the parameters and buffers of a run together, one at a time.

    Collective: all ranks exhaust the iterator.

    Yields
    ------
    ``param/<path>`` or ``buffer/<path>``, and the whole tensor on the CPU with at least the precision of float32; a
    number without dimensions is a row of one.
    """
    parts = take(executor, (PARAMS,))
    own = {key: _Held(part.shape, part.tensor.dtype, part.boxes) for key, part in parts.items()}
    held: list[Any] = [own]
    if executor.plan.num_ranks > 1:
        held = [None] * executor.plan.num_ranks
        dist.all_gather_object(held, own)
    for key in sorted({key for each in held for key in each}):
        yield key, _whole(key, held, parts.pop(key, None), executor.groups.rank)


def _whole(key: str, held: list[dict[str, _Held]], own: Part | None, rank: int) -> Tensor:
    first = next(each[key] for each in held if key in each)
    whole = torch.empty(first.shape, dtype=first.dtype)
    for source, entries in enumerate(held):
        for box in entries[key].boxes if key in entries else ():
            if source == rank and own is not None:
                piece = box.of(own.tensor).contiguous()
            else:
                piece = torch.empty(box.sizes, dtype=first.dtype)
            if len(held) > 1:
                dist.broadcast(piece.reshape(-1).view(torch.uint8), source)
            narrowed(whole, box.offsets, box.sizes).copy_(piece)
    return whole


def write_trained(file: Path | None, tensors: Iterator[tuple[str, Tensor]]) -> None:
    """Write whole tensors to a file, or exhaust the iterator where another rank does."""
    if file is None:
        for _ in tensors:
            pass
        return
    write_tensors(file, dict(tensors))


def load_written(module: nn.Module, file: Path) -> None:
    """Load what `write_trained` wrote into the module of the run."""
    opened = safe_open(file, framework="pt")
    load_tensors(module, ((key, opened.get_tensor(key)) for key in opened.keys()))  # noqa: SIM118
