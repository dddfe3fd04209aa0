"""Routines as text say where each message starts."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from trainyard.job.lower.lower import lower
from trainyard.job.optimizer import OptimizerConfig
from trainyard.job.plan import Plan
from trainyard.job.schedules import make_schedule
from trainyard.job.task import Task
from trainyard.program.model import Model
from trainyard.report.routines import routines_text


def test_the_reduction_that_the_update_waits_for_is_said_to_start_with_the_last_microbatch() -> None:
    model = Model("line", nn.Linear(4, 4), lambda m, b: m(b["x"]).square().mean(), {"x": torch.ones(8, 4)})
    program = Task(model).program(4)
    lowered = lower(program, Plan("line", program.fingerprint, "c", 8, 2, 1, make_schedule("gpipe", 1, 2)))
    text = routines_text(lowered)
    (given,) = (line for line in text.splitlines() if "= accumulate_grads(" in line)
    assert "(of the last microbatch; all_reduce of 80 bytes over data; runs beside what follows)" in given
    assert "wait_reduction('stage0.bucket0')  (waits for gradients of stage0.bucket0)" in text


def test_momentum_of_adamw_is_refused() -> None:
    with pytest.raises(ValueError, match=r"momentum 0\.9 is of sgd, not of adamw"):
        OptimizerConfig(momentum=0.9)
