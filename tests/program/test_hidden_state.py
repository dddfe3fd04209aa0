"""Models whose steps differ are refused; those that only remember something are captured."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from lookalikes_backward import Scaled
from test_capture import Doing, assert_captured, model_of
from torch import Tensor, nn

from trainyard.program.capture import CaptureError, capture

Forward = Callable[[Any, Tensor], Tensor]


def counting(m: Any, x: Tensor) -> Tensor:
    m.steps += 1
    return x * m.steps


def counting_in_place(m: Any, x: Tensor) -> Tensor:
    m.steps.add_(1)
    return x * m.steps


def counting_on_the_class(m: Any, x: Tensor) -> Tensor:
    type(m).steps = getattr(type(m), "steps", 0) + 1
    return x * type(m).steps


def averaging(m: Any, x: Tensor) -> Tensor:
    m.mean = 0.9 * m.mean + 0.1 * x.detach().mean(0)
    return x - m.mean


def scaling_at_first(m: Any, x: Tensor) -> Tensor:
    if m.is_first:
        m.is_first, m.scale = False, x.detach().std(0)
    return x / m.scale


def alternating_gradient(m: Any, x: Tensor) -> Tensor:
    m.odd = not m.odd
    return x + ((2 * x) if m.odd else (2 * x).detach())


def stateful_recurrence(m: Any, x: Tensor) -> Tensor:
    found, hidden = m.cell(x[:, None], m.hidden)
    m.hidden = tuple(h.detach() for h in hidden)
    return found[:, 0]


def queueing(m: Any, x: Tensor) -> Tensor:
    m.queue[m.steps % 4] = x.detach().mean(0)
    m.steps += 1
    return x - m.queue.mean(0)


UNSTEADY: dict[str, Callable[[], nn.Module]] = {
    "a number": lambda: Doing(counting, steps=0),
    "a tensor": lambda: Doing(counting, steps=torch.zeros(())),
    "a tensor written to": lambda: Doing(counting_in_place, steps=torch.zeros(())),
    "on the class": lambda: type("Counting", (Doing,), {})(counting_on_the_class),
    "a running mean": lambda: Doing(averaging, mean=torch.zeros(6)),
    "made of the first batch": lambda: Doing(scaling_at_first, is_first=True),
    "gradients of every other step": lambda: Doing(alternating_gradient, odd=False),
    "a recurrent state": lambda: Doing(
        stateful_recurrence, cell=nn.LSTM(6, 6, batch_first=True), hidden=None
    ),
    "where in a buffer": lambda: Doing(queueing, queue=nn.Buffer(torch.zeros(4, 6)), steps=0),
}


@pytest.mark.parametrize("name", UNSTEADY)
def test_state_outside_of_buffers_is_refused(name: str) -> None:
    with pytest.raises(
        CaptureError, match=r"its second step computes something else .* register_buffer"
    ) as refused:
        capture(model_of(UNSTEADY[name]()))
    assert f"{__file__}:" in str(refused.value)


@pytest.mark.parametrize("draw", [random.random, lambda: np.random.rand()])
@pytest.mark.parametrize("seed", range(4))
def test_random_numbers_of_others_are_refused(draw: Callable[[], float], seed: int) -> None:
    """Whether or not what they decide differs between two steps."""
    random.seed(seed)
    np.random.seed(seed)
    with pytest.raises(CaptureError, match="it draws random numbers of Python or NumPy"):
        capture(model_of(Doing(lambda _, x: 2 * x if draw() < 0.5 else x)))


def reversing(m: Any, x: Tensor) -> Tensor:
    m.steps += 1
    return Scaled.apply(x, -m.steps / 1000)


def hooking(m: Any, x: Tensor) -> Tensor:
    m.steps += 1
    x.register_hook(lambda grad: grad * m.steps)
    return 2 * x


@pytest.mark.parametrize("then", [reversing, hooking])
def test_state_in_the_backward_pass_is_refused(then: Forward) -> None:
    with pytest.raises(CaptureError, match="its second step computes something else"):
        capture(model_of(Doing(then, steps=0)))


def test_the_line_named_is_one_that_matters() -> None:
    def then(m: Any, x: Tensor) -> Tensor:
        m.steps += 1
        m.log = x.mean() * m.steps  # nobody reads it
        return x * m.steps

    line = then.__code__.co_firstlineno + 3
    with pytest.raises(CaptureError, match=f"{__file__}:{line} `return x"):
        capture(model_of(Doing(then, steps=0)))


def test_graphs_within_the_graph_are_refused() -> None:
    def then(m: Any, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))

    with pytest.raises(CaptureError, match=r"`return torch.cond.*` calls torch.cond"):
        capture(model_of(Doing(then)))


def test_state_of_the_loss_is_refused() -> None:
    steps = 0

    def loss(module: nn.Module, batch: Any) -> Tensor:
        nonlocal steps
        steps += 1
        return module(batch["x"]).square().mean() / steps

    with pytest.raises(CaptureError, match="its second step computes something else"):
        capture(model_of(nn.Linear(6, 6), loss))


def counting_unused(m: Any, x: Tensor) -> Tensor:
    m.steps += 1
    return x


def remembering(m: Any, x: Tensor) -> Tensor:
    m.last = x
    return x


def table_in_a_list(m: Any, x: Tensor) -> Tensor:
    if not m.tables:
        m.tables.append(torch.cos(torch.arange(6.0)))
    return x * m.tables[0]


def constants(m: Any, x: Tensor) -> Tensor:
    return x * torch.tensor(2.0) + torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]) * m.scale


STEADY: dict[str, Callable[[], nn.Module]] = {
    "a number that nothing depends on": lambda: Doing(counting_unused, steps=0),
    "a result that nothing reads": lambda: Doing(remembering),
    "a table in a list": lambda: Doing(table_in_a_list, tables=[]),
    "constants": lambda: Doing(constants, scale=torch.linspace(0, 1, 6)),
    "a buffer": lambda: Doing(counting, steps=nn.Buffer(torch.zeros(()))),
    "a buffer that is assigned": lambda: Doing(averaging, mean=nn.Buffer(torch.zeros(6))),
    "LSTM": lambda: Doing(lambda m, x: m.cell(x[:, None])[0][:, 0], cell=nn.LSTM(6, 6, batch_first=True)),
    "spectral norm": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6)),
}


@pytest.mark.parametrize("name", STEADY)
def test_what_every_step_does_is_captured(name: str) -> None:
    assert_captured(model_of(STEADY[name]()))


def test_containers_are_left_as_they_were() -> None:
    class Options(dict[str, Any]):
        """Not a plain dictionary."""

    options = Options()
    options["self"] = options
    deep: Any = ()
    for _ in range(2000):
        deep = (deep,)
    module = Doing(table_in_a_list, tables=[], options=options, deep=deep)
    capture(model_of(module))
    assert module.tables == []


def test_objects_of_a_module_are_left_as_they_were() -> None:
    rotary = SimpleNamespace(table=None)

    def then(m: Any, x: Tensor) -> Tensor:
        if rotary.table is None:
            rotary.table = torch.cos(torch.arange(6.0))
        return x * rotary.table

    assert_captured(model_of(Doing(then, rotary=rotary)))
    rotary.table = None
    capture(model_of(Doing(then, rotary=rotary)))
    assert rotary.table is None
