"""Arguments of a wrong type, refused by their name before any work starts."""

import pytest
import torch
from torch import nn

import trainyard as ty

MODEL = ty.Model("line", nn.Linear(2, 3), lambda m, b: m(b).sum(), torch.zeros(4, 2))
CLUSTER = "1x2xA100-80G"
CONFIG = ty.TrainConfig(steps=1)
DATA = ty.FixedData(MODEL.batch)


@pytest.fixture(scope="module")
def planned():
    return ty.plan(MODEL, CLUSTER, "data_parallel")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda _: ty.plan(MODEL.module, CLUSTER), r"model is of type torch\.nn\.modules\.linear\.Linear; .* a Model"),
        (lambda _: ty.plan("gpt2", CLUSTER), r"model is the string 'gpt2'; .*load_model"),
        (lambda _: ty.plan(MODEL, 8), "cluster is of type int; allowed is a Cluster, or text"),
        (lambda _: ty.plan(MODEL, CLUSTER, ["zero"]), "strategies is of type list; allowed is text"),
        (lambda _: ty.plan(MODEL, CLUSTER, optimizer="sgd"), "optimizer is the string 'sgd'; .*an OptimizerConfig"),
        (lambda _: ty.compare(MODEL, CLUSTER, "zero"), r"strategies is the string 'zero'; .* such as \['zero'\]"),
        (lambda _: ty.compare(MODEL, CLUSTER, ["zero", None]), "an entry of strategies is None"),
        (lambda _: ty.compare(MODEL.module, CLUSTER, ["zero"]), "model is of type"),
        (lambda p: ty.simulate(p), r"plan is of type trainyard\.job\.planning\.Planned; allowed is a Plan"),
        (lambda p: ty.simulate(p.plan, MODEL.module), "model is of type"),
        (lambda p: ty.simulate(p.plan, MODEL, 2), "cluster is of type int"),
        (lambda p: ty.simulate(p.plan, MODEL, optimizer="sgd"), "optimizer is the string 'sgd'; allowed"),
        (lambda p: ty.train(MODEL.module, p.plan, DATA, CONFIG), "model is of type .* or a function that builds one"),
        (lambda p: ty.train(MODEL, p, DATA, CONFIG), "plan is of type .*Planned; allowed is a Plan: the attribute plan"),
        (lambda p: ty.train(MODEL, p.plan, 3, CONFIG), r"data is of type int; allowed is a function data\(step\)"),
        (lambda p: ty.train(MODEL, p.plan, {"x": 1}, CONFIG), "data is of type dict; allowed is a function"),
        (lambda p: ty.train(MODEL, p.plan, "rows.csv", CONFIG), "data is of type str; allowed is a function"),
        (lambda p: ty.train(MODEL, p.plan, DATA, {"steps": 1}), "config is of type dict; allowed is a TrainConfig"),
    ],
)  # fmt: skip
def test_a_wrong_type_is_refused_by_name(call, said, planned):
    with pytest.raises(ty.WrongTypeError, match=said) as caught:
        call(planned)
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, ty.TrainyardError)


def test_an_unknown_strategy_is_refused_before_others_are_planned():
    with pytest.raises(ValueError, match="zeero"):
        ty.compare(MODEL, CLUSTER, ["zero", "zeero"])


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ty.PlanError, ValueError), (ty.DoesNotFitError, ty.PlanError), (ty.CaptureError, ValueError),
        (ty.DataError, ValueError), (ty.HardwareError, ValueError), (ty.CheckpointError, RuntimeError),
        (ty.WorkerError, RuntimeError), (ty.NonFiniteError, RuntimeError), (ty.fleet.FleetError, ValueError),
        (ty.serve.ServeError, ValueError), (ty.serve.DoesNotFitError, ty.serve.ServeError),
    ],
)  # fmt: skip
def test_errors_have_one_base(error, kind):
    assert issubclass(ty.TrainyardError, Exception)
    assert issubclass(error, ty.TrainyardError)
    assert issubclass(error, kind)
