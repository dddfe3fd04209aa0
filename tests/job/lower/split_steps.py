"""Microbatches of a model on this process: their losses and gradients added up, beside those of plain PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trainyard.job.lower.split import split
from trainyard.program import spmd
from trainyard.program.capture import capture
from trainyard.program.model import Model
from trainyard.program.program import Program


class _Rank:
    """The microbatch that runs."""

    def __init__(self, index: int) -> None:
        self.index = index

    def axis_offset(self, axis: str, scale: int) -> int:
        return self.index * scale


def plain(model: Model) -> dict[str, Tensor]:
    """The loss and the gradients on one device."""
    model.module.zero_grad()
    loss: Any = model.loss(model.module, model.batch)
    loss.backward()
    grads = {f"grad:{n}": p.grad for n, p in model.module.named_parameters() if p.grad is not None}
    return {"loss:loss": loss.detach(), **grads}


def added_up(model: Model, program: Program, num_parts: int) -> dict[str, Tensor]:
    """What the microbatches of a model's program compute, added up."""
    local = split(program, num_parts) if num_parts > 1 else program
    given = {
        **dict(model.module.named_parameters()),
        **dict(model.module.named_buffers()),
        **program.constants,
    }
    given["rng"] = torch.zeros(3, dtype=torch.int64)
    batch = {f"batch.{n}": v for n, v in model.batch.items()}
    if local.totals is not None:
        given |= _run(local.totals, given | batch, 0)
    found: dict[str, Tensor] = {}
    for index in range(num_parts):
        own = {n: v.chunk(num_parts)[index] for n, v in batch.items()}
        made = _run(local, given | own, index)
        found = {n: found[n] + v if found else v for n, v in made.items()}
    return found


def _run(program: Program, given: Mapping[str, Tensor], index: int) -> dict[str, Tensor]:
    names = [o.path if o.kind == "total" else f"{o.kind}:{o.path}" for o in program.outputs]
    with torch.no_grad():
        results = spmd.bind(program.graph_module, _Rank(index))(*(given[i.path] for i in program.inputs))
    return dict(zip(names, results, strict=True))


def check_splits(model: Model, *parts: int) -> None:
    """Fail unless one, two and four microbatches give the loss and the gradients of one device."""
    wanted, program = plain(model), capture(model)
    for num_parts in parts or (1, 2, 4):
        found = added_up(model, program, num_parts)
        assert found.keys() == wanted.keys()
        largest = max(float(v.norm()) for v in wanted.values())
        for name, value in wanted.items():
            error = float((found[name] - value).norm())
            assert error <= 1e-5 * max(float(value.norm()), 0.05 * largest), (name, num_parts, error)
