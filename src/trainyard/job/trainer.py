"""Trainer: from a model and data to a trained model, planned for this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import fields, replace
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainyard.hardware.cluster import Cluster
from trainyard.hardware.local import cluster_of_profile, local_profile
from trainyard.job.arguments import require_model, require_plan, require_strategies
from trainyard.job.optimizer import OptimizerConfig
from trainyard.job.plan import DoesNotFitError, Plan, parse_plan
from trainyard.job.planning import Planned
from trainyard.job.planning import plan as make_plan
from trainyard.job.run.checkpoint.weights import load_weights
from trainyard.job.run.config import InitFrom, ModelSource, StepMetrics, TrainConfig, TrainResult
from trainyard.job.run.processes.evaluations import with_values
from trainyard.job.run.processes.launchers import is_launched, join_launcher
from trainyard.job.run.processes.rendezvous import broadcast_text
from trainyard.job.run.step.data_source import Source
from trainyard.job.run.step.evaluation import Evaluation, evaluate_batches, evaluation_batches
from trainyard.job.run.step.initial import initial_values
from trainyard.job.run.train import Run
from trainyard.program.batch import batch_rows
from trainyard.program.model import Model
from trainyard.reading.arguments import WrongTypeError, WrongValueError, require_function, require_type

__all__ = ["StopTraining", "Trainer"]


class StopTraining(Exception):  # noqa: N818 -- it is no error
    """Ends a training after the present step, as if its steps were done; raised by a callback."""


class Trainer:
    """Trains a model on this machine.

    `train` trains to the end. A loop over the trainer trains, too, and gets every step:

    >>> for step in Trainer(model, data, steps=100):  # doctest: +SKIP
    ...     print(step.step, step.losses)

    The next step begins when all callbacks and the body of the loop are done. When the loop is left, the run ends after
    that step, with a checkpoint if there is a folder of checkpoints. The module of a `Model` has its trained values
    after the run in either case.

    Parameters
    ----------
    model : a model, or a function that builds it.
    data : what `train` takes: a Dataset, a DataLoader, a dataset of Hugging Face, a function ``data(step)``.
    steps : of the whole run.
    optimizer : how parameters are updated; by default AdamW.
    cluster : to plan for, as `plan` takes it; its devices are processes here. By default this machine.
    processes : of this machine; by default one, or one for each core, whichever is predicted to be faster. Under a
        launcher every process that it started is one.
    plan : made before; then nothing is planned.
    strategies, dtype : as `plan` takes them.
    evaluate : on a held-out set: an `Evaluation`, or its data alone, which is then evaluated after the last step.
    callbacks : each is called with the `StepMetrics` of every step. `StopTraining` ends the run after that step.
    checkpoint : folder of checkpoints.
    init_from : weights to begin with: `InitFrom`, or what that takes.
    options : further fields of `TrainConfig`, such as ``seed``, ``resume``, ``early_stop``, ``keep_best``.

    Attributes
    ----------
    result : of the last run; None before it.

    Raises
    ------
    WrongTypeError
        If an argument is of another type, or an option has no field of that name.
    WrongValueError
        If several of ``cluster``, ``processes`` and ``plan`` are given, or an option has a value that is not allowed.
    """

    def __init__(
        self,
        model: Model | ModelSource,
        data: Source,
        *,
        steps: int,
        optimizer: OptimizerConfig | None = None,
        cluster: Cluster | str | None = None,
        processes: int | None = None,
        plan: Plan | None = None,
        strategies: str = "auto",
        dtype: str = "float32",
        evaluate: Evaluation | Source | None = None,
        callbacks: Iterable[Callable[[StepMetrics], None]] = (),
        checkpoint: Path | str | None = None,
        init_from: InitFrom | Mapping[str, Tensor] | Path | str | None = None,
        **options: Any,
    ) -> None:
        given = [
            n for n, v in (("cluster", cluster), ("processes", processes), ("plan", plan)) if v is not None
        ]
        if len(given) > 1:
            raise WrongValueError(
                f"{' and '.join(given)} each say where the run takes place; give one of them"
            )
        _check_arguments(model, processes, plan, strategies, options)
        if evaluate is not None and not isinstance(evaluate, Evaluation):
            evaluate = Evaluation(evaluate)
        self._model, self._data, self._callbacks = model, data, _functions(callbacks)
        self._cluster, self._processes, self._given_plan = cluster, processes, plan
        self._strategies, self._dtype = strategies, dtype
        self.config = TrainConfig(
            steps,
            OptimizerConfig() if optimizer is None else optimizer,
            None if checkpoint is None else Path(checkpoint),
            evaluate=evaluate,
            init_from=_init_from(init_from),
            **options,
        )
        self.result: TrainResult | None = None
        self._run: Run | None = None

    @cached_property
    def plan(self) -> Plan:
        """The plan of the run; the first use makes it.

        Raises
        ------
        PlanError
            If there is none, or none that fits.
        WrongValueError
            If a launcher's variables do not say which rank this process is.
        """
        if self._given_plan is not None:
            return self._given_plan
        join_launcher()
        if is_launched():
            return parse_plan(broadcast_text("plan", lambda: self._best_plan().to_text()))
        return self._best_plan()

    def _best_plan(self) -> Plan:
        """Plan for the cluster, or for each number of processes of this machine that is in question."""
        if self._cluster is not None:
            return self._plan(self._cluster).plan
        profile = local_profile()
        counts = sorted({1, profile.num_cores}) if self._processes is None else [self._processes]
        counts = [int(os.environ["WORLD_SIZE"])] if is_launched() and self._processes is None else counts
        found = []
        for count in counts:
            try:
                found.append(self._plan(cluster_of_profile(profile, count)))
            except DoesNotFitError:
                if count == counts[-1] and not found:
                    raise
        return min(found, key=lambda each: (not each.simulation.fits, each.simulation.step_s)).plan

    def _plan(self, cluster: Cluster | str) -> Planned:
        return make_plan(
            self._built,
            cluster,
            self._strategies,
            self._dtype,
            all_devices=True,
            optimizer=self.config.optimizer,
        )

    @cached_property
    def _built(self) -> Model:
        """The model, with the values that its function draws from the seed."""
        if isinstance(self._model, Model):
            return self._model
        torch.manual_seed(self.config.seed)
        return self._model()

    def train(self) -> TrainResult:
        """Train to the last step, and return what the run came to; errors as of `trainyard.train`."""
        join_launcher()
        # Under a launcher callbacks of rank 0 may end the run for all, and other ranks need not have any.
        for _ in self._steps(waits_for_caller=bool(self._callbacks) or is_launched()):
            pass
        assert self.result is not None
        return self.result

    def __iter__(self) -> Generator[StepMetrics]:
        """Train, and yield every step; see `Run.steps`. A checkpoint of the trainer's own is continued."""
        return self._steps(waits_for_caller=True)

    def _steps(self, waits_for_caller: bool) -> Generator[StepMetrics]:
        is_stopped = False
        if self.result is not None and self.result.checkpoint is not None:
            self.config = replace(self.config, resume=True)
        built, waits = self._built, waits_for_caller
        run = Run(self._model, self.plan, self._data, self.config, built=built, waits_for_caller=waits)
        steps, self._run = run.steps(), run
        try:
            for step in steps:
                for callback in self._callbacks:
                    try:
                        callback(step)
                    except StopTraining:
                        is_stopped = True
                if is_stopped:
                    break
                yield step
        finally:
            try:
                steps.close()
            finally:
                self.result = run.result()

    def evaluate(self, data: Source | Evaluation) -> dict[str, float]:
        """Return loss and metrics of the trained model on a held-out set, computed on the CPU of this process.

        The weights are those after the last step; after a run that failed, those of its last checkpoint.

        Parameters
        ----------
        data : as `Evaluation` takes it, or an `Evaluation`.

        Raises
        ------
        WrongValueError
            If nothing was trained, or a run failed before its first checkpoint.
        """
        if self._run is None or self.result is None:
            raise WrongValueError(
                "nothing is trained yet, so there is nothing to evaluate; call train() first"
            )
        if not self._run.has_trained:
            if self.result.checkpoint is None:
                raise WrongValueError(
                    "the run failed, and there is no checkpoint of it to evaluate; give the trainer checkpoint=FOLDER"
                )
            load_weights(self._built.module, self.result.checkpoint)
        evaluation = (data if isinstance(data, Evaluation) else Evaluation(data)).opened()
        cpu = torch.device("cpu")
        model = with_values(self._built, {}, initial_values(self._built, self.config.seed), cpu)
        num_rows = batch_rows(self._built.batch, self._built.whole)
        batches = evaluation_batches(evaluation.data, num_rows, self._built.lengths)
        return evaluate_batches(model, batches, evaluation, cpu, self.plan.dtype).means(evaluation)


def _check_arguments(
    model: object,
    processes: object,
    plan: object,
    strategies: object,
    options: Mapping[str, Any],
) -> None:
    """Refuse an argument of another type by its name; `TrainConfig` checks those that it takes."""
    require_model(model, may_be_function=True)
    require_type("processes", processes, (int, type(None)), "a whole number, or None")
    if plan is not None:
        require_plan(plan)
    require_strategies(strategies)
    known = [each.name for each in fields(TrainConfig)]
    for name in options:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            advice = f"the nearest name is {near[0]}" if near else f"there are {', '.join(known)}"
            raise WrongTypeError(f"Trainer has no option {name}; {advice}")


def _functions(callbacks: Any) -> tuple[Callable[[StepMetrics], None], ...]:
    require_type("callbacks", callbacks, Iterable, "a list of functions, such as [print]")
    functions = tuple(callbacks)
    for each in functions:
        require_function("an entry of callbacks", each)
    return functions


def _init_from(given: InitFrom | Mapping[str, Tensor] | Path | str | None) -> InitFrom | None:
    if given is None or isinstance(given, InitFrom):
        return given
    return InitFrom(Path(given) if isinstance(given, str) else given)
