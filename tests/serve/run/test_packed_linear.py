"""Linear layers with packed weights."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch import nn

from trainyard.serve.run import linear as linear_module
from trainyard.serve.run.linear import PackedLinear, pack_linear_layers


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(1, 24), (1, 7, 24), (33, 24)])
@torch.inference_mode()
def test_results_are_those_of_the_layer(shape: tuple[int, ...], bias: bool, dtype: torch.dtype):
    """Also in bfloat16 on a processor for which oneDNN does not have it, where nothing is packed."""
    torch.manual_seed(0)
    linear = nn.Linear(24, 37, bias).to(dtype)
    x = torch.randn(shape).to(dtype)
    near = 1e-6 if dtype == torch.float32 else 2e-2
    expected, model = linear(x), nn.Sequential(linear)
    pack_linear_layers(model)
    torch.testing.assert_close(model(x), expected, rtol=near, atol=near)


def test_layers_are_replaced_once_and_other_types_stay():
    shared = nn.Linear(4, 4)
    model = nn.Sequential(shared, nn.ReLU(), nn.Sequential(shared), nn.Linear(4, 4).double())
    pack_linear_layers(model)
    assert isinstance(model[0], PackedLinear)
    assert model[2][0] is model[0]
    assert type(model[3]) is nn.Linear


def test_a_layer_is_gone_when_the_next_one_is_packed(monkeypatch: pytest.MonkeyPatch):
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
    layers = [weakref.ref(each) for each in model]
    there = []

    class Counting(PackedLinear):
        def __init__(self, linear: nn.Linear) -> None:
            super().__init__(linear)
            there.append(sum(each() is not None for each in layers))

    monkeypatch.setattr(linear_module, "PackedLinear", Counting)
    pack_linear_layers(model)
    assert there == [3, 2, 1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_weight_can_be_read(dtype: torch.dtype):
    """Some modules of transformers multiply by it themselves, or ask for its dtype."""
    linear = nn.Linear(24, 37).to(dtype)
    weight, model = linear.weight.detach().clone(), nn.Sequential(linear)
    pack_linear_layers(model)
    assert torch.equal(model[0].weight, weight)
    assert model[0].weight.dtype == dtype
