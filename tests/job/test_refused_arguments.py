"""Arguments of a wrong type, refused by their name before any work starts."""

import numpy as np
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


LAMBDA_RATE = ty.TrainConfig(1, ty.OptimizerConfig(lr_schedule=lambda step: 1.0))
SGD = ty.OptimizerConfig("sgd", lr=0.1)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: ty.OptimizerConfig(lr="0.1"), r"lr is the string '0\.1'; allowed is a number"),
        (lambda: ty.OptimizerConfig(warmup_steps=1.5), "warmup_steps is of type float; allowed is a whole number"),
        (lambda: ty.OptimizerConfig(betas=0.9), "betas is of type float; allowed is two numbers"),
        (lambda: ty.OptimizerConfig(no_decay="1d"), r"give \('1d',\)"),
        (lambda: ty.OptimizerConfig(no_decay=(1,)), "an entry of no_decay is of type int"),
        (lambda: ty.OptimizerConfig(lr_scale={"head.**": 2.0}), "lr_scale is of type dict; allowed is pairs"),
        (lambda: ty.OptimizerConfig(make=torch.optim.SGD([torch.ones(1)])), "give its class or such a function"),
        (lambda: ty.TrainConfig("3"), "steps is the string '3'; allowed is a whole number"),
        (lambda: ty.TrainConfig(True), "steps is of type bool; allowed is a whole number"),
        (lambda: ty.TrainConfig(1, checkpoint="runs"), r"checkpoint is .*; allowed is a pathlib\.Path or None"),
        (lambda: ty.TrainConfig(1, SGD, resume="no"), "resume is the string 'no'; allowed is True or False"),
        (lambda: ty.TrainConfig(1, "sgd"), "optimizer is the string 'sgd'; allowed is an OptimizerConfig"),
        (lambda: ty.TrainConfig(1, evaluate=[1]), r"evaluate is of type list; allowed is None or an Evaluation, such as"),
        (lambda: ty.TrainConfig(1, keep_best=True), "keep_best is of type bool; allowed is None or a KeepBest"),
        (lambda: ty.TrainConfig(1, log_to="csv"), r"such as \['csv'\]"),
        (lambda: ty.KeepBest(num="2"), "num is the string '2'"),
        (lambda: ty.EarlyStop(metric=None), "metric is None; allowed is text"),
        (lambda: ty.Evaluation([], every=1.0), "every is of type float"),
        (lambda: ty.Evaluation([], metrics={}), "metrics is of type dict; allowed is a function or None"),
        (lambda: ty.InitFrom("a.safetensors"), "weights is the string .*; allowed is a pathlib.Path, or tensors by name"),
        (lambda: ty.InitFrom({"weight": 3}), "an entry of weights is of type int; allowed is a tensor"),
        (lambda: ty.InitFrom({}, {"w": 3}), "an entry of rename is of type int"),
        (lambda: ty.Model("net", 3, print, ()), r"module is of type int; allowed is a torch\.nn\.Module"),
        (lambda: ty.Model("net", nn.ReLU(), "mse", ()), "loss is the string 'mse'; allowed is a function"),
        (lambda: ty.Model(nn.ReLU(), nn.ReLU(), print, ()), "name is .*; allowed is text"),
        (lambda: ty.Model("net", nn.ReLU(), print, (), "edges"), r"whole is .*, such as \['edges'\]"),
        (lambda: ty.capture(MODEL.module), "model is .*; allowed is a Model, such as"),
        (lambda: ty.capture(MODEL, "4"), "num_rows is the string '4'"),
        (lambda: ty.capture(MODEL, dtype="float32"), "dtype is the string 'float32'; allowed is a type of PyTorch"),
        (lambda: ty.load_plan(3), "path is of type int; allowed is the path of a file"),
        (lambda: ty.load_model(3), "spec is of type int; allowed is the name of a model"),
        (lambda: ty.read_weights(3), "path is of type int"),
        (lambda: ty.load_weights(3, "weights.safetensors"), r"module is of type int; allowed is the torch\.nn\.Module"),
        (lambda: ty.train(MODEL, ty.plan(MODEL, "local:1", "data_parallel").plan, DATA, LAMBDA_RATE),
         "the optimizer cannot be sent to worker processes"),
        (lambda: ty.Trainer(MODEL.module, DATA, steps=1), "model is of type .* or a function that builds one"),
        (lambda: ty.Trainer(MODEL, DATA, steps=1, plan="plan.txt"), r"plan is the string 'plan\.txt'; .*load_plan"),
        (lambda: ty.Trainer(MODEL, DATA, steps=1, processes="2"), "processes is the string '2'"),
        (lambda: ty.Trainer(MODEL, DATA, steps=1, optimizer=nn.ReLU), "optimizer is .*; allowed is an OptimizerConfig"),
        (lambda: ty.Trainer(MODEL, DATA, steps=1, callbacks=print), "callbacks is .*; allowed is a list of functions"),
        (lambda: ty.Trainer(MODEL, DATA, steps=1, callbacks=[print, "x"]), "an entry of callbacks is the string"),
        (lambda: ty.Trainer(MODEL, DATA, steps=1, keep_bets=1), "no option keep_bets; the nearest name is keep_best"),
    ],
)  # fmt: skip
def test_an_option_of_a_wrong_type_is_refused_by_name(call, said):
    with pytest.raises(ty.WrongTypeError, match=said):
        call()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: ty.OptimizerConfig("adam"), "unknown optimizer 'adam'; known: adamw, sgd"),
        (lambda: ty.OptimizerConfig(lr=float("nan")), "lr cannot be negative, got nan"),
        (lambda: ty.OptimizerConfig(betas=("0.9", 0.99)), "betas are two numbers from 0 to below 1"),
        (lambda: ty.OptimizerConfig(lr_scale=(("a", "2"),)), "lr_scale has pairs of a pattern and a factor"),
        (lambda: ty.OptimizerConfig(lr_scale=((2.0, "a"),)), "lr_scale has pairs of a pattern and a factor"),
        (lambda: ty.TrainConfig(-1), "steps cannot be negative, got -1"),
        (lambda: ty.TrainConfig(1, seed=2**63), "seed is a number of 64 bits"),
        (lambda: ty.plan(MODEL, CLUSTER, dtype="fp8"), "unknown dtype 'fp8'; known: float32, bfloat16, float16"),
        (lambda: ty.plan(MODEL, CLUSTER, dtype=torch.bfloat16), r"unknown dtype torch\.bfloat16; known: float32"),
        (lambda: ty.plan(MODEL, CLUSTER, statistics="rows"), "unknown statistics 'rows'; known: batch, microbatch"),
        (lambda: ty.KeepBest(mode="best"), "unknown mode 'best'; known: min, max"),
        (lambda: ty.Evaluation([], every=-1), "every cannot be negative"),
        (lambda: ty.Trainer(MODEL, DATA, steps=1, cluster=CLUSTER, processes=1), "give one of them"),
        (lambda: ty.load_model("gpt-5"), "unknown model 'gpt-5'; known: "),
        (lambda: ty.rows(torch.ops.aten.add), "rows are declared of an op of one's own"),
        (lambda: ty.plan(MODEL, CLUSTER, "data_parallel", optimizer=ty.OptimizerConfig(no_decay=("**.biass",))),
         "no trained parameter is as the pattern '\\*\\*.biass' has it"),
        (lambda: ty.plan(MODEL, CLUSTER, "data_parallel", optimizer=ty.OptimizerConfig(make=lambda p: p)),
         "has to return a torch.optim.Optimizer"),
    ],
)  # fmt: skip
def test_an_option_with_a_wrong_value_is_a_typed_error(call, said):
    with pytest.raises(ty.TrainyardError, match=said):
        call()


def test_numbers_of_numpy_are_numbers():
    config = ty.TrainConfig(np.int64(3), ty.OptimizerConfig(lr=np.float32(0.5), warmup_steps=np.int64(1)))
    assert (config.steps, config.optimizer.lr) == (3, 0.5)


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
