"""Initial values: a module's own where it has any, else the same in every process."""

import pytest
import torch
from torch import nn

from trainyard.job.run.step.initial import InitialValueError, initial_values
from trainyard.program.model import Model
from trainyard.zoo import build, initial_value


class _Rotary(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("angles", torch.arange(4.0) * 0.5)
        self.scale = nn.Parameter(torch.full((3,), 2.0))
        self.linear = nn.Linear(4, 3)
        self.norm = nn.BatchNorm1d(3)


def _model():
    return Model("rotary", _Rotary(), lambda module, batch: module.scale.sum(), {})


def _meta_model():
    with torch.device("meta"):
        return _model()


def test_real_values_are_kept():
    model = _model()
    value = initial_values(model, seed=0)
    for name, held in [*model.module.named_parameters(), *model.module.named_buffers()]:
        assert torch.equal(value(name), held)


def test_meta_values_follow_seed_and_path():
    value = initial_values(_meta_model(), 1, _model)
    again = initial_values(_meta_model(), 1, _model)
    other = initial_values(_meta_model(), 2, _model)
    weight = value("linear.weight")
    assert torch.equal(weight, again("linear.weight"))
    assert not torch.equal(weight, other("linear.weight"))
    # As nn.Linear draws them: uniform within 1 / sqrt(inputs).
    assert 0.2 < float(weight.abs().max()) <= 0.5
    assert torch.equal(value("norm.running_var"), torch.ones(3))
    assert int(value("norm.num_batches_tracked")) == 0


def test_values_computed_when_built_come_from_building_again():
    value = initial_values(_meta_model(), 1, _model)
    assert torch.equal(value("angles"), torch.arange(4.0) * 0.5)
    assert torch.equal(value("scale"), torch.full((3,), 2.0))
    with pytest.raises(InitialValueError, match="angles"):
        initial_values(_meta_model(), 1)("angles")


def test_a_tied_parameter_has_its_value_by_either_name():
    def tied():
        model = _model()
        model.module.same = nn.Module()
        model.module.same.scale = model.module.scale
        return model

    with torch.device("meta"):
        model = tied()
    value = initial_values(model, 1, tied)
    for name in ("scale", "same.scale"):
        assert torch.equal(value(name), torch.full((3,), 2.0))


def test_drawing_leaves_the_global_generator_alone():
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    initial_values(_meta_model(), 1, _model)("linear.weight")
    assert torch.equal(torch.rand(3), expected)


def test_our_models_start_as_the_zoo_says():
    with torch.device("meta"):
        model = build("gpt-tiny", 2)
    value = initial_values(model, 7)
    path = "blocks.0.up.weight"
    assert torch.equal(value(path), initial_value(model.module, path, 7))
