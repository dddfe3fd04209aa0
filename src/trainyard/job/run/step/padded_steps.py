"""Padded steps: training on batches of varying length, each by the executor of the size to which it is padded."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from trainyard.job.lower.lower import Lowered
from trainyard.job.run.step.data import DataError, check_batch
from trainyard.job.run.step.executor import Executor
from trainyard.job.run.step.step_result import StepResult
from trainyard.program.lengths import LengthError, Lengths

__all__ = ["PaddedSteps", "padded"]


def padded(
    batch: Mapping[str, Tensor], lengths: Lengths | None, step: int
) -> tuple[int | None, Mapping[str, Tensor]]:
    """Return the smallest size that holds a batch, and the batch padded to it; without lengths None and the batch.

    Raises
    ------
    DataError
        If no size holds it, or its entries have several lengths.
    """
    if lengths is None:
        return None, batch
    try:
        size = lengths.size_for(lengths.length(batch))
    except LengthError as error:
        raise DataError(f"step {step}, of data({step}): {error}") from error
    return size, lengths.padded(batch, size)


class PaddedSteps:
    """Steps of one rank, each by the executor of the size to which its batch is padded.

    Parameters
    ----------
    longest : the executor of the largest size, or of all steps if there are no lengths. The others share its state.
    shorter : the plan applied to batches of each smaller size, by size.
    """

    def __init__(self, longest: Executor, lengths: Lengths | None, shorter: Mapping[int, Lowered]) -> None:
        self._longest, self._lengths = longest, lengths
        rank, values = longest.groups.rank, longest.params.__getitem__
        device, seed, train_state = longest.device, longest.seed, longest.train_state
        self._executors: dict[int | None, Executor] = {
            size: Executor(lowered, rank, values, device, seed, train_state=train_state)
            for size, lowered in shorter.items()
        }

    def run(
        self, batch: Mapping[str, Tensor], step: int, keep_buffers: bool
    ) -> tuple[StepResult, int | None]:
        """Run a step; see `Executor.step`. All ranks call this together.

        Returns
        -------
        The results of the step, and the size to which its batch was padded; None if there are no lengths.

        Raises
        ------
        DataError
            If the batch has another shape than the model was captured with, is too long, or is padded to other sizes on
            other ranks.
        """
        size, padded_batch = padded(batch, self._lengths, step)
        if size is not None:
            self._check_same_size(size, step)
        executor = self._executors.get(size, self._longest)
        check_batch(padded_batch, executor.lowered.program, executor.plan.num_rows)
        return executor.step(padded_batch, step, keep_buffers), size

    def _check_same_size(self, size: int, step: int) -> None:
        """Check that all ranks have one size, in every step: with two they would wait for each other for ever.

        A data set that crops its rows at random may give the first steps alike on all ranks, and later ones not.
        """
        if self._longest.plan.num_ranks == 1:
            return
        limits = torch.tensor([size, -size])
        dist.all_reduce(limits, dist.ReduceOp.MAX)
        most, least = limits[0].item(), -limits[1].item()
        if most != least:
            raise DataError(
                f"the batch of step {step} is padded to {least} on some ranks and to {most} on others: each reads the "
                "whole batch, so the data must depend on nothing but the step. Seed random numbers with it"
            )
