"""Evaluations of the model of a run in its processes, each on its share of the batches."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainyard.job.run.best import Evaluated
from trainyard.job.run.checkpoint.gather import whole_tensors
from trainyard.job.run.checkpoint.same_run import BUFFERS, PARAMS
from trainyard.job.run.checkpoint.saved import About
from trainyard.job.run.config import RankStep, TrainConfig
from trainyard.job.run.step.evaluation import (
    Evaluation,
    Sums,
    evaluate_batches,
    evaluation_batches,
    first_evaluation_batch,
)
from trainyard.job.run.step.executor import Executor
from trainyard.job.run.step.state import Values
from trainyard.program.model import Model

__all__ = ["Evaluations", "with_values"]


def with_values(model: Model, values: Mapping[str, Tensor], others: Values, device: torch.device) -> Model:
    """Return a copy of a model that holds values.

    Parameters
    ----------
    model : its module may be on the meta device.
    values : whole ones, by ``param/<path>`` and ``buffer/<path>``.
    others : whole values by path, of what ``values`` does not have.
    """
    module = model.module
    held: dict[str, Tensor] = {f"{PARAMS}/{n}": p for n, p in module.named_parameters()}
    held |= {f"{BUFFERS}/{n}": b for n, b in module.named_buffers()}
    copies: dict[int, Any] = {}
    for key, old in held.items():
        value = values[key] if key in values else others(key.partition("/")[2])
        new = value.reshape(old.shape).to(device, old.dtype, copy=True)
        copies[id(old)] = nn.Parameter(new, old.requires_grad) if isinstance(old, nn.Parameter) else new
    return replace(model, module=copy.deepcopy(module, copies))


class Evaluations:
    """The evaluations of a run; all ranks call every method together.

    Parameters
    ----------
    model : of the run.
    initial : whole initial values by path.
    about : of the checkpoint that the run goes on from.

    Attributes
    ----------
    history : evaluations so far, also of the run that is resumed.
    stop_reason : why the run ends early; "" while it goes on.
    """

    def __init__(
        self, config: TrainConfig, model: Model, initial: Values, executor: Executor, about: About | None
    ) -> None:
        self._config, self._model, self._initial, self._executor = config, model, initial, executor
        self._evaluation = None if config.evaluate is None else config.evaluate.opened()
        self.history: tuple[Evaluated, ...] = () if about is None else about.evaluations
        self.stop_reason = self._reason()
        if self._evaluation is not None:
            first = first_evaluation_batch(self._evaluation, executor.plan.num_rows, model)
            if not self.history:
                self._check_metrics(self._evaluation, first)

    def after(self, step: RankStep) -> RankStep:
        """Evaluate after a step if that is due, and return the step with loss and metrics, the same on all ranks."""
        evaluation, num_steps = self._evaluation, step.step + 1
        if evaluation is None:
            return step
        is_due = bool(evaluation.every) and num_steps % evaluation.every == 0
        if not is_due and num_steps != self._config.steps:
            return step
        began_s = time.perf_counter()
        values = self._sums(evaluation).means(evaluation)
        self.history = (*self.history, (num_steps, values))
        self.stop_reason = self._reason()
        if self._config.keep_best is not None:
            self._config.keep_best.cost(self.history[-1])
        return replace(
            step, evaluation=values, evaluation_s=time.perf_counter() - began_s, note=self.stop_reason
        )

    def _check_metrics(self, evaluation: Evaluation, first: tuple[int, Any]) -> None:
        """Evaluate the first batch, to refuse a metric that no evaluation will give before the run trains."""
        compared = [each for each in (self._config.early_stop, self._config.keep_best) if each is not None]
        if not compared:
            return
        sums = self._evaluated([first], evaluation)
        for each in compared:
            # What is computed from the means of a whole set may fail for one batch of an untrained model.
            each.require_metric(sums.values if each.metric in sums.values else sums.means(evaluation))

    def _reason(self) -> str:
        stop = self._config.early_stop
        return "" if stop is None else stop.reason(self.history)

    def _sums(self, evaluation: Evaluation) -> Sums:
        """Evaluate this rank's batches, and sum over all ranks."""
        plan, rank = self._executor.plan, self._executor.groups.rank
        batches = evaluation_batches(
            evaluation.data, plan.num_rows, self._model.lengths, rank, plan.num_ranks
        )
        own = self._evaluated(batches, evaluation)
        if plan.num_ranks == 1:
            return own
        sums: list[Any] = [None] * plan.num_ranks
        dist.all_gather_object(sums, own)
        # A rank that had no batch knows no names.
        names = dict.fromkeys(name for each in sums for name in each.values)
        values = {name: sum(each.values.get(name, 0.0) for each in sums) for name in names}
        return Sums(values, sum(each.num_rows for each in sums))

    def _evaluated(self, batches: Iterable[tuple[int, Any]], evaluation: Evaluation) -> Sums:
        """Evaluate batches with the present weights of the run."""
        executor = self._executor
        model = with_values(self._model, dict(whole_tensors(executor)), self._initial, executor.device)
        return evaluate_batches(model, batches, evaluation, executor.device, executor.plan.dtype)
