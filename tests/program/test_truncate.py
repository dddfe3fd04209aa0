"""A truncated model is the same model with fewer blocks."""

from __future__ import annotations

from collections import OrderedDict

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


def model_of(module: nn.Module) -> Model:
    return Model("stack", module, lambda m, batch: m(batch["x"]).sum(), {"x": torch.ones(2, 4)})


def linears(count: int) -> list[nn.Module]:
    return [nn.Linear(4, 4) for _ in range(count)]


def test_a_list_of_blocks_keeps_its_own_forward() -> None:
    blocks = Residual(*linears(5))
    model = model_of(nn.Sequential(OrderedDict(first=nn.Linear(4, 4), blocks=blocks)))
    shorter = truncate(model, kept=2)
    assert (shorter.path, shorter.kept, shorter.count) == ("blocks", 2, 5)
    x = model.module.first(model.batch["x"])
    for block in list(blocks)[:2]:
        x = x + block(x)
    torch.testing.assert_close(shorter.model.module(model.batch["x"]), x)
    assert len(blocks) == 5


def test_the_model_itself_may_be_the_list() -> None:
    shorter = truncate(model_of(nn.Sequential(*linears(5))), kept=2)
    assert (shorter.path, shorter.kept, shorter.count, len(shorter.model.module)) == ("", 2, 5, 2)
    assert [shorter.block(i) for i in range(2)] == ["0", "1"]


def test_a_list_inside_an_item_of_a_list_is_one_block_and_stays_whole() -> None:
    model = model_of(nn.Sequential(nn.Linear(4, 4), nn.Sequential(*linears(5))))
    assert truncate(model, kept=2).model is model
