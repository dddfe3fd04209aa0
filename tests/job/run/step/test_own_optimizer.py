"""Optimizers of the user's own, as in plain PyTorch under any plan that does not divide what they need as a whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from updates import STEPS, Case, batch, differences, model, plan, task

from trainyard.hardware.parse import parse_cluster
from trainyard.job.auto.points import estimate_all
from trainyard.job.auto.probes import Probes
from trainyard.job.lower.lower import lower
from trainyard.job.optimizer import OptimizerConfig
from trainyard.job.optimizer.own import UserOptimizerError
from trainyard.job.optimizer.probe import probe
from trainyard.job.plan import PlanError
from trainyard.job.planning import make_setting
from trainyard.job.planning import plan as plan_model
from trainyard.job.run.config import TrainConfig
from trainyard.job.run.errors import CheckpointError
from trainyard.job.run.step.data import FunctionData, by_path
from trainyard.job.run.step.executor import Executor
from trainyard.job.run.train import train
from trainyard.job.simulate import simulate_plan
from trainyard.job.task import Task

SHAPES = {"a.weight": (9, 8), "a.bias": (9,), "norm.weight": (8,), "b.weight": (8, 9), "scale": ()}
Params = list[tuple[str, Tensor]]


def grouped_adam(params: Params) -> torch.optim.Optimizer:
    """Two groups, with rates and decays of their own."""
    return torch.optim.AdamW(
        [
            {"params": [p for _, p in params if p.ndim > 1], "weight_decay": 0.3},
            {"params": [p for _, p in params if p.ndim < 2], "lr": 0.05, "weight_decay": 0.0},
        ],
        lr=0.02,
        amsgrad=True,
    )


def muon_and_adam(params: Params) -> list[torch.optim.Optimizer]:
    """Muon for matrices, AdamW for the rest, as it is used."""
    matrices, rest = ([pair for pair in params if (pair[1].ndim == 2) is is_one] for is_one in (True, False))
    return [torch.optim.Muon(matrices, lr=0.05), torch.optim.AdamW(rest, lr=0.02)]


class NormedSgd(torch.optim.SGD):
    """Divides by the norm of all gradients: needs all parameters at once."""

    def step(self, closure: Any = None) -> Any:
        """Update."""
        every = [p for group in self.param_groups for p in group["params"]]
        torch.nn.utils.clip_grad_norm_(every, 0.1)
        super().step()


class LayerwiseSgd(torch.optim.SGD):
    """Divides by the norm of each gradient, as LARS and LAMB do: needs all of a parameter."""

    def step(self, closure: Any = None) -> Any:
        """Update."""
        for param in (p for group in self.param_groups for p in group["params"]):
            param.grad /= param.grad.norm()
        super().step()


class ShortMomentum(torch.optim.SGD):
    """Keeps its momentum in 16 bits, and counts in its groups."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Update."""
        for group in self.param_groups:
            group["count"] = group.get("count", 0) + 1
            for param in group["params"]:
                state = self.state[param]
                if "mean" not in state:
                    state["mean"] = torch.zeros_like(param, dtype=torch.bfloat16)
                state["mean"].mul_(0.9).add_(param.grad)
                param -= group["lr"] / group["count"] * state["mean"].to(param.dtype)


LAYERWISE = partial(LayerwiseSgd, lr=0.05, momentum=0.9)
ADAFACTOR = partial(torch.optim.Adafactor, lr=0.05)
NORMED = partial(NormedSgd, lr=0.5, momentum=0.9)


def plain(make: Callable[[Params], Any], module: nn.Module) -> Callable[[int], None]:
    """The same optimizers in plain PyTorch, with a rate that falls linearly after warm-up, and clipping."""
    made = make(list(module.named_parameters()))
    members = made if isinstance(made, list) else [made]
    rates = [torch.optim.lr_scheduler.LambdaLR(member, _linear) for member in members]

    def follow(step: int) -> None:
        torch.nn.utils.clip_grad_norm_(module.parameters(), 0.7)
        for member, rate in zip(members, rates, strict=True):
            member.step()
            rate.step()

    return follow


def _linear(step: int) -> float:
    return (step + 1) / 2 if step < 2 else 1.0 - (step - 2) / (STEPS - 2)


def config(make: Callable[[Params], Any]) -> OptimizerConfig:
    """The same here."""
    return OptimizerConfig(make=make, lr_schedule="linear", lr_steps=STEPS, warmup_steps=2, clip_norm=0.7)


def cases(*makes: Callable[[Params], Any]) -> list[Case]:
    """Each beside plain PyTorch."""
    return [(config(make), partial(plain, make)) for make in makes]


ELEMENTWISE = (grouped_adam, torch.optim.RAdam, partial(torch.optim.Rprop, lr=0.01))


@pytest.mark.parametrize(
    ("plans", "makes"),
    [
        (["one", "microbatches"], (*ELEMENTWISE, ADAFACTOR, muon_and_adam, NORMED)),
        (["data", "zero1", "zero3", "tensor", "pipeline"], ELEMENTWISE),
        (["data", "pipeline"], (ADAFACTOR, LAYERWISE, muon_and_adam)),
        (["data"], (NORMED,)),
        pytest.param(["data x tensor, zero3", "data x pipeline, zero1"], ELEMENTWISE, marks=pytest.mark.slow),
    ],
    ids=["1", "2, elementwise", "2, by parameter", "2, of the model", "4"],
)
def test_updates_are_those_of_plain_pytorch(plans: list[str], makes: tuple[Any, ...]) -> None:
    found = differences(plans, cases(*makes))
    assert {key: value for key, value in found.items() if not value < 3e-6} == {}


@pytest.mark.slow
def test_lion_is_divided_and_updates_as_in_plain_pytorch() -> None:
    lion = pytest.importorskip("lion_pytorch", reason="needs lion-pytorch: pip install 'trainyard-ml[dev]'")
    make = partial(lion.Lion, lr=0.01, weight_decay=0.1)
    assert probe(make, SHAPES).scope == "element"
    found = differences(["data", "zero1", "zero3", "tensor", "pipeline"], cases(make))
    assert {key: value for key, value in found.items() if not value < 3e-6} == {}


@pytest.mark.parametrize(
    ("make", "scope", "tensors"),
    [
        (torch.optim.AdamW, "element", {"exp_avg", "exp_avg_sq"}),
        (partial(torch.optim.AdamW, fused=True), "element", {"exp_avg", "exp_avg_sq"}),
        (partial(torch.optim.SGD, lr=0.1), "element", set()),
        (torch.optim.Adagrad, "element", {"sum"}),
        (torch.optim.Adafactor, "parameter", {"row_var", "col_var", "variance"}),
        (muon_and_adam, "parameter", {"momentum_buffer", "exp_avg", "exp_avg_sq"}),
        (LAYERWISE, "parameter", {"momentum_buffer"}),
        (NORMED, "model", {"momentum_buffer"}),
    ],
    ids=["AdamW", "fused", "SGD", "Adagrad", "Adafactor", "Muon", "layerwise", "normed"],
)
def test_the_probe_finds_what_an_update_depends_on(make: Any, scope: str, tensors: set[str]) -> None:
    traits = probe(make, SHAPES)
    assert (traits.scope, {name for name, _ in traits.tensors}) == (scope, tensors)
    assert (traits.state_bytes == 4 * len(tensors)) is (
        make is not torch.optim.Adafactor and make is not muon_and_adam
    )


class _Elsewhere(torch.optim.SGD):
    def __init__(self, params: Any) -> None:
        super().__init__(params, lr=0.1)
        self.mine = [p for group in self.param_groups for p in group["params"]]

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for param in self.mine:
            if param.grad is not None:
                param.data = param - param.grad


class _Random(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for param in group["params"]:
                param += torch.randn_like(param)


class _Differing(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for param in group["params"]:
                self.state[param]["norm"] = float(param.norm())


class _Listing(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for param in group["params"]:
                self.state[param]["history"] = [1]


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (torch.optim.LBFGS, UserOptimizerError, r"LBFGS\.step\(\) failed .*closure.*Take an optimizer whose step"),
        (_Elsewhere, UserOptimizerError, "_Elsewhere does not update the tensors in its param_groups alone"),
        (_Random, UserOptimizerError, "_Random draws random numbers, which would not be the same on all ranks"),
        (_Differing, UserOptimizerError, "_Differing keeps a number 'norm' that differs between parameters"),
        (_Listing, UserOptimizerError, "_Listing keeps a list 'history' for each parameter, which no checkpoint holds"),
        (lambda params: 3, TypeError, r"<lambda>\(params\) returned a int; it has to return a torch\.optim\.Optimizer"),
        (lambda params: torch.optim.SGD(params[1:]), UserOptimizerError, r"SGD has no group with a\.weight, which is"),
        (
            lambda params: [torch.optim.SGD(params), torch.optim.AdamW(params[:1])],
            UserOptimizerError,
            r"SGD, AdamW has a\.weight in several groups",
        ),
    ],
)  # fmt: skip
def test_what_cannot_update_here_is_refused(make: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        probe(make, SHAPES)


@pytest.mark.parametrize(
    ("plan_options", "make", "said"),
    [
        ({"data": 2, "zero": 1}, ADAFACTOR, r"Adafactor needs all of a parameter .* divides the optimizer state .*ZeRO"),
        ({"tensor": 2}, muon_and_adam, r"Muon, AdamW needs all of a parameter .* cuts first\.weight along tensor"),
        ({"pipeline": 2}, NORMED, r"NormedSgd needs all parameters .* on several ranks of a pipeline"),
    ],
    ids=["zero", "tensor", "pipeline"],
)  # fmt: skip
def test_a_plan_that_divides_what_is_needed_is_refused(
    plan_options: dict[str, int], make: Any, said: str
) -> None:
    work = task(config(make))
    with pytest.raises(PlanError, match=said):
        lower(work.program(8), plan(**plan_options), work.optimizer)


@pytest.mark.parametrize("make", [ADAFACTOR, NORMED], ids=["Adafactor", "normed"])
def test_auto_chooses_no_such_plan(make: Any) -> None:
    found = plan_model(model(), "1x2xA100-80G", optimizer=config(make), all_devices=True)
    assert (found.plan.state.divided, found.plan.mesh.size("tensor")) == ((), 1)
    assert found.plan.pipeline == 1 or make is not NORMED
    assert any("Only plans that divide no parameter" in reason for reason in found.plan.reasons)
    setting = make_setting(task(config(make)), parse_cluster("1x2xA100-80G"), all_devices=True)
    points = [each.point for each in estimate_all(setting, Probes(setting), 2**40).points]
    assert {(point.tensor, point.zero_stage) for point in points} == {(1, 0)}
    assert {point.pipeline for point in points} == ({1} if make is NORMED else {1, 2})


def test_parameters_in_16_bits_are_updated_as_those_of_the_built_in_optimizer() -> None:
    def params(optimizer: OptimizerConfig) -> dict[str, Tensor]:
        work = Task(model(), "bfloat16", optimizer=optimizer)
        program = work.program(8)
        one = replace(plan(), fingerprint=program.fingerprint, dtype="bfloat16")
        values = {n: p.detach().clone() for n, p in work.model.module.named_parameters()}
        executor = Executor(lower(program, one, work.optimizer), 0, values.__getitem__, torch.device("cpu"))
        for step in range(STEPS):
            executor.step(by_path(batch(step)), step)
        return executor.state.local_tensors({n: s.master for n, s in executor.state.buckets.items()})

    wanted = params(OptimizerConfig(lr=0.01, weight_decay=0.1))
    found = params(OptimizerConfig(make=partial(torch.optim.AdamW, lr=0.01, weight_decay=0.1)))
    before = dict(model().module.named_parameters())
    for path, value in wanted.items():
        torch.testing.assert_close(found[path], value, rtol=2e-3, atol=1e-5)
        assert not torch.allclose(value, before[path], rtol=0.02)


def test_its_state_is_counted() -> None:
    def optimizer_bytes(make: Any) -> int:
        work = task(config(make))
        lowered = lower(work.program(8), plan(), work.optimizer)
        return simulate_plan(lowered, parse_cluster("1x1xA100-80G")).memory[0]["optimizer"]

    num_elements = sum(p.numel() for p in model().module.parameters())
    assert optimizer_bytes(grouped_adam) == 3 * 4 * num_elements
    # Rows and columns of matrices, and all of the vectors.
    assert optimizer_bytes(ADAFACTOR) == 4 * (8 + 6 + 4 + 8 + 6 + 6 + 8 + 4)


def test_options_of_the_built_in_optimizers_are_refused_beside_it() -> None:
    with pytest.raises(
        ValueError, match="weight_decay is of adamw and sgd; the optimizer that Adafactor makes has its"
    ):
        OptimizerConfig(make=torch.optim.Adafactor, weight_decay=0.1)
    with pytest.raises(TypeError, match="got a SGD, which has its parameters already; give its class"):
        OptimizerConfig(make=torch.optim.SGD([torch.zeros(1)]))  # type: ignore[arg-type]


def _run(folder: Path, steps: int, make: Any, resume: bool = False, **sizes: Any) -> dict[int, float]:
    """Train in processes; returns the losses by step."""
    options = TrainConfig(steps, config(make), checkpoint=folder, resume=resume)
    result = train(model, plan(**sizes), FunctionData(batch), options)
    return {metrics.step: metrics.losses["loss:loss"] for metrics in result.metrics}


@pytest.mark.parametrize(
    ("make", "sizes", "others"),
    [
        (grouped_adam, {"data": 2, "zero": 3}, {"pipeline": 2}),
        (muon_and_adam, {"pipeline": 2}, {}),
        pytest.param(ADAFACTOR, {"data": 2}, {"pipeline": 2}, marks=pytest.mark.slow),
        pytest.param(torch.optim.NAdam, {}, {"data": 2, "zero": 1}, marks=pytest.mark.slow),
        pytest.param(partial(ShortMomentum, lr=0.5), {}, {}, marks=pytest.mark.slow),
    ],
    ids=["groups", "Muon", "Adafactor", "NAdam", "bfloat16"],
)
def test_a_run_goes_on_exactly_also_on_other_ranks(
    make: Any, sizes: dict[str, int], others: dict[str, int], tmp_path: Path
) -> None:
    whole = _run(tmp_path / "whole", 6, make)
    _run(tmp_path / "half", 3, make, **sizes)
    rest = _run(tmp_path / "half", 6, make, resume=True, **others)
    assert list(rest) == [3, 4, 5]
    assert rest == pytest.approx({step: whole[step] for step in rest}, rel=2e-6)
    if make is grouped_adam:
        with pytest.raises(
            CheckpointError, match=r"with the optimizer AdamW: .*lr 0\.02.* and this one is AdamW: "
        ):
            _run(tmp_path / "half", 8, _other_adam, resume=True)


def _other_adam(params: Params) -> torch.optim.Optimizer:
    return grouped_adam(params[:2] + params[2:]) if params[0][1].numel() == 0 else torch.optim.AdamW(params)


_other_adam.__name__ = "grouped_adam"
