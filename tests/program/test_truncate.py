"""A truncated model is the same model with fewer blocks."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trainyard.program.model import Model
from trainyard.program.truncate import truncate


class Residual(nn.Sequential):
    """A list of blocks with a forward of its own."""

    def forward(self, x: Tensor) -> Tensor:
        for block in self:
            x = x + block(x)
        return x


def test_a_list_of_blocks_keeps_its_own_forward() -> None:
    module = nn.Sequential(nn.Linear(3, 4), Residual(*(nn.Linear(4, 4) for _ in range(5))))
    model = Model("residual", module, lambda m, batch: m(batch["x"]).sum(), {"x": torch.ones(2, 3)})
    shorter = truncate(model, kept=2)
    assert (shorter.path, shorter.kept, shorter.count) == ("1", 2, 5)
    first, blocks = module
    x = first(model.batch["x"])
    for block in list(blocks)[:2]:
        x = x + block(x)
    torch.testing.assert_close(shorter.model.module(model.batch["x"]), x)
    assert len(blocks) == 5
