"""Check that all ranks begin with the same values: each builds the model and reads the data by itself."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from trainyard.job.plan import PlanError
from trainyard.job.run.config import WorkerInput
from trainyard.job.run.step.data import DataError, checksum
from trainyard.job.run.step.initial import InitialValueError
from trainyard.program.model import Model


def held_values(model: Model) -> dict[str, Tensor]:
    """Parameters and buffers that hold numbers; others are made from the seed when a rank needs them."""
    entries = [*model.module.named_parameters(), *model.module.named_buffers()]
    return {name: t.detach() for name, t in entries if t.device.type != "meta"}


def check_same_run(work: WorkerInput, resumes: bool) -> None:
    """Compare what the ranks are to do; all call this together, before they do anything else together.

    Parameters
    ----------
    resumes : whether there is a checkpoint to continue from.

    Raises
    ------
    PlanError
        On all ranks, if that is not the same on all of them.
    """
    config = work.config
    said = {
        "plan": work.plan.to_text(),
        "seed": config.seed,
        "number of steps": config.steps,
        "optimizer": config.optimizer,
        "steps between checkpoints": config.checkpoint_every,
        "answer to steps that are not finite": config.on_nonfinite,
        "use of checkpoints": (config.checkpoint is None, config.pause is None),
        "checkpoint to continue from (do all see its folder?)": resumes,
    }
    if work.plan.num_ranks > 1 and (
        name := _first_unlike({n: _checksum_of_text(v) for n, v in said.items()})
    ):
        raise PlanError(
            f"the ranks differ in their {name}; start all with the same command, on the same files"
        )


def check_same_values(work: WorkerInput, values: Mapping[str, Tensor]) -> None:
    """Compare the tensors that the ranks begin with, by checksums; all call this together.

    Parameters
    ----------
    values : of parameters, buffers and constants, before training.

    Raises
    ------
    InitialValueError
        On all ranks, if values are not the same on all of them.
    """
    if work.plan.num_ranks == 1:
        return
    if name := _first_unlike({name: checksum(t) for name, t in values.items()}):
        raise InitialValueError(
            f"{name} has other values on some ranks than on others: each builds the model by itself, and must build "
            "the same. Call torch.manual_seed before, or give the model as a function"
        )


def check_same_batch_on_ranks(work: WorkerInput, step: int, batch: Mapping[str, Tensor]) -> None:
    """Compare the batch of the step to come, by checksums; all call this together.

    Parameters
    ----------
    batch : as this rank has it; empty if the run is over.

    Raises
    ------
    DataError
        On all ranks, if it is not the same on all of them.
    """
    if work.plan.num_ranks == 1:
        return
    if name := _first_unlike({name: checksum(t) for name, t in batch.items()}):
        raise DataError(
            f"{name} of step {step} is another on some ranks than on others: each reads the whole batch and takes "
            "its rows, so the data must depend on nothing but the step. Seed random numbers with it"
        )


def _first_unlike(checksums: Mapping[str, int]) -> str:
    """The first name whose number is not the same on all ranks; empty if there is none."""
    if not checksums:
        return ""
    mine = torch.tensor([*checksums.values()], dtype=torch.int64)
    least, most = mine.clone(), mine.clone()
    dist.all_reduce(least, dist.ReduceOp.MIN)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    unlike = (least != most).tolist()
    return next((name for name, is_unlike in zip(checksums, unlike, strict=True) if is_unlike), "")


def _checksum_of_text(value: object) -> int:
    return zlib.crc32(str(value).encode())
