"""Options of the verbs that plan and simulate: what a training step is, beside its model."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Annotated, Literal

import tyro

from trainyard.cli.bounds import FRACTION
from trainyard.job.optimizer import OptimizerConfig

__all__ = ["PRECISION", "OptimizerOptions", "Precision", "StepOptions"]

PRECISION = "Precision to compute in. float32 leaves every parameter in its own type."
Precision = Annotated[Literal["float32", "bfloat16", "float16"], tyro.conf.arg(help=PRECISION)]


@dataclass(frozen=True, kw_only=True)
class OptimizerOptions:
    """Options of the optimizer that decide about memory."""

    heading = "training step"
    optimizer: Literal["adamw", "sgd"] = "adamw"
    """The rule that updates parameters."""
    momentum: Annotated[float, tyro.conf.arg(metavar="X"), FRACTION] = OptimizerConfig.momentum
    """For sgd; above 0 the optimizer keeps one more number for each parameter."""

    def optimizer_config(self, spec: str | None) -> OptimizerConfig:
        """Return the optimizer as the runtime takes it; a Python file may have its own.

        Parameters
        ----------
        spec : the model, as ``load_model`` takes it.

        Raises
        ------
        ValueError
            If the file has its own, and options ask for another.
        """
        from trainyard.job.own_optimizer import check_given, configured

        asked = {"name": self.optimizer, "momentum": self.momentum}
        given = {
            "optimizer": self.optimizer if self.optimizer != OptimizerConfig.name else None,
            "momentum": self.momentum or None,
        }
        check_given(SimpleNamespace(**given), spec)
        return configured(asked, spec)


@dataclass(frozen=True, kw_only=True)
class StepOptions(OptimizerOptions):
    """Options of a training step."""

    heading = OptimizerOptions.heading
    statistics: Literal["batch", "microbatch"] = "batch"
    """batch: microbatches are made only where they train the same as the whole batch. microbatch: also where rows depend
    on each other (batch statistics, pairs of rows, places of experts): each microbatch is computed by itself and the loss
    is the mean of theirs, as gradient accumulation has it, which is another training."""
