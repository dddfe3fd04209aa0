"""Whether all ranks begin with the same: each builds the model and reads the data by itself under a launcher."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from trainyard.job.plan import PlanError
from trainyard.job.run.config import Work
from trainyard.job.run.data import DataError
from trainyard.job.run.initial import InitialValueError
from trainyard.program.model import Model


def held_values(model: Model) -> dict[str, Tensor]:
    """Parameters and buffers that hold numbers; others are made from the seed when a rank needs them."""
    entries = [*model.module.named_parameters(), *model.module.named_buffers()]
    return {name: t.detach() for name, t in entries if t.device.type != "meta"}


def check_agreement(work: Work, values: Mapping[str, Tensor], step: int) -> None:
    """Compare what the ranks have, by check sums; all call this together.

    Parameters
    ----------
    values : of parameters and buffers, before training.
    step : the one to come, whose batch is compared; none if the run is over.

    Raises
    ------
    PlanError, InitialValueError, DataError
        On all ranks, if the plan or the seed, the values, or the batch are not the same on all of them.
    """
    if work.plan.num_ranks == 1:
        return
    if _first_unlike({"plan": zlib.crc32(f"{work.config.seed} {work.plan.to_text()}".encode())}):
        raise PlanError("the ranks have different plans or seeds; start all with the same command")
    if name := _first_unlike({name: _check_sum(t) for name, t in values.items()}):
        raise InitialValueError(
            f"{name} has other values on some ranks than on others: each builds the model by itself, and must build "
            "the same. Call torch.manual_seed before, or give the model as a function"
        )
    batch = work.data.batch(step) if step < work.config.steps else {}
    if name := _first_unlike({name: _check_sum(t) for name, t in batch.items()}):
        raise DataError(
            f"{name} of step {step} is another on some ranks than on others: each reads the whole batch and takes "
            "its rows, so the data must depend on nothing but the step. Seed random numbers with it"
        )


def _first_unlike(check_sums: Mapping[str, int]) -> str:
    """The first name whose number is not the same on all ranks; empty if there is none."""
    if not check_sums:
        return ""
    mine = torch.tensor([*check_sums.values()], dtype=torch.int64)
    least, most = mine.clone(), mine.clone()
    dist.all_reduce(least, dist.ReduceOp.MIN)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    unlike = (least != most).tolist()
    return next((name for name, is_unlike in zip(check_sums, unlike, strict=True) if is_unlike), "")


def _check_sum(tensor: Tensor) -> int:
    return zlib.crc32(tensor.cpu().contiguous().flatten().view(torch.uint8).numpy().data)
