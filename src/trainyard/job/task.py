"""Task: the work to be planned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch

from trainyard.divisors import divisors
from trainyard.job.lower.split import CoupledRowsError, split
from trainyard.job.model_state import ParameterTypes, trained_shapes
from trainyard.job.optimizer import OptimizerConfig
from trainyard.job.optimizer.groups import check_patterns
from trainyard.job.optimizer.probe import probe
from trainyard.job.plan import PlanError, Statistics
from trainyard.job.plan.plan import DTYPES, STATISTICS
from trainyard.program.batch import batch_rows
from trainyard.program.capture import capture
from trainyard.program.model import Model
from trainyard.program.program import Program
from trainyard.reading import count_text
from trainyard.reading.arguments import WrongValueError


@dataclass(frozen=True, eq=False)
class Task:
    """One training step of a model: its batch is all rows of one optimizer step.

    Attributes
    ----------
    model : captured on as many rows as a microbatch has, when a plan asks for it.
    dtype : compute precision, ``float32`` (each parameter in its own type), ``bfloat16`` or ``float16``.
    statistics : of what rows that depend on each other are computed where the batch is split into microbatches: of the
        ``batch``, which refuses to split it, or of each ``microbatch``, which trains something else. See ``Plan``.
    rows : of one step; by default those of the model's example batch.
    optimizer : how parameters are updated, and so what is kept for each of them. A user's own is probed.
    """

    model: Model
    dtype: str = "float32"
    statistics: Statistics = "batch"
    rows: int | None = None
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    _programs: dict[int, Program] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        for name, known in (("dtype", DTYPES), ("statistics", STATISTICS)):
            if getattr(self, name) not in known:
                raise WrongValueError(f"unknown {name} {getattr(self, name)!r}; known: {', '.join(known)}")
        optimizer = self.optimizer
        if optimizer.make is not None and optimizer.traits is None:
            traits = probe(optimizer.make, trained_shapes(self.model.module))
            object.__setattr__(self, "optimizer", replace(optimizer, traits=traits))

    @cached_property
    def num_rows(self) -> int:
        """Rows of one step."""
        return batch_rows(self.model.batch, self.model.whole) if self.rows is None else self.rows

    @cached_property
    def weight_types(self) -> ParameterTypes:
        """The types in which parameters are computed with."""
        return ParameterTypes.of(self.model.module, getattr(torch, self.dtype))

    def program(self, num_rows: int) -> Program:
        """The program of a microbatch of this many rows (on all ranks together); made once.

        Raises
        ------
        PlanError
            If that is not the whole batch, and its rows depend on each other.
        """
        if num_rows not in self._programs:
            self._programs[num_rows] = self._program(num_rows)
        return self._programs[num_rows]

    def _program(self, num_rows: int) -> Program:
        dtype = getattr(torch, self.dtype)
        count = self.num_rows // num_rows
        if count == 1:
            return capture(self.model, num_rows, dtype)
        try:
            return split(self.program(self.num_rows), count)
        except CoupledRowsError as error:
            if self.statistics == "microbatch":
                return replace(capture(self.model, num_rows, dtype, share=1 / count), is_separate=True)
            raise PlanError(
                f"{self.model.name} cannot be trained in {count} microbatches of {count_text(num_rows, 'row')}: {error}. "
                "Microbatches could train something else than the whole batch. Use one microbatch, whose rows may be "
                "divided over ranks, or accept that each microbatch is computed by itself (--statistics microbatch)"
            ) from error

    @cached_property
    def shorter(self) -> Mapping[int, Task]:
        """Tasks on batches of each size of the model's lengths but the largest, by size."""
        lengths = self.model.lengths
        sizes = () if lengths is None else lengths.sizes[:-1]
        return {size: replace(self, model=self.model.at_length(size), _programs={}) for size in sizes}

    def check_patterns(self) -> None:
        """Check that every pattern of the optimizer stands for a trained parameter of the model.

        Raises
        ------
        WrongValueError
            If one does not.
        """
        check_patterns(self.optimizer, trained_shapes(self.model.module))

    @cached_property
    def coupling(self) -> str | None:
        """Why the batch cannot be split into microbatches exactly; None where it can."""
        rows = self.num_rows
        count = next(iter(divisors(rows)[1:]), 1)
        try:
            self._programs.setdefault(rows // count, split(self.program(rows), count))
        except CoupledRowsError as error:
            return str(error)
        return None

    @property
    def splits(self) -> bool:
        """True if the batch may be split into microbatches."""
        return self.statistics == "microbatch" or self.coupling is None

    def statistics_in(self, num_microbatches: int) -> Statistics:
        """Return the field `statistics` of a plan with so many microbatches."""
        return "microbatch" if self.program(self.num_rows // num_microbatches).is_separate else "batch"
