"""Random numbers beside dropout: drawn by position, whatever op asks for them, in a graph as in eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_capture import assert_captured, model_of, run_graph
from torch import Tensor, nn

from trainyard.program.algebra.notation import choices
from trainyard.program.algebra.rules import axes_of
from trainyard.program.capture import CaptureError, capture
from trainyard.program.placement import Shard
from trainyard.program.propagate import Axis, propagate
from trainyard.program.random.draw_op import draw, draw_by_arithmetic
from trainyard.program.random.positional import PositionalDraws

RNG = torch.tensor([3, 1, 0])
ROWS, WIDTH = 64, 500
EMPTY = torch.empty(ROWS, WIDTH)

# Each with the mean and the standard deviation that its numbers have.
OPS: dict[str, tuple[Callable[[], Tensor], float, float]] = {
    "rand": (lambda: torch.rand(ROWS, WIDTH), 0.5, 12**-0.5),
    "rand_like": (lambda: torch.rand_like(EMPTY, dtype=torch.bfloat16), 0.498, 12**-0.5),
    "randn": (lambda: torch.randn((ROWS, WIDTH)), 0.0, 1.0),
    "randn_like": (lambda: torch.randn_like(EMPTY, dtype=torch.float64), 0.0, 1.0),
    "uniform_": (lambda: EMPTY.clone().uniform_(-1, 3), 1.0, 4 * 12**-0.5),
    "normal_": (lambda: EMPTY.clone().normal_(2, 3), 2.0, 3.0),
    "normal of tensors": (lambda: torch.normal(torch.full((ROWS, WIDTH), 2.0), torch.full((WIDTH,), 3.0)), 2.0, 3.0),
    "normal of a size": (lambda: torch.normal(2.0, 3.0, (ROWS, WIDTH)), 2.0, 3.0),
    "bernoulli": (lambda: torch.bernoulli(torch.full((ROWS, WIDTH), 0.3)), 0.3, 0.21**0.5),
    "bernoulli_": (lambda: EMPTY.clone().bernoulli_(0.3), 0.3, 0.21**0.5),
    "exponential_": (lambda: EMPTY.clone().exponential_(2.0), 0.5, 0.5),
    "geometric_": (lambda: EMPTY.clone().geometric_(0.5), 2.0, 2**0.5),
    "log_normal_": (lambda: EMPTY.clone().log_normal_(0, 0.5).log(), 0.0, 0.5),
    "cauchy_": (lambda: EMPTY.clone().cauchy_().atan(), 0.0, torch.pi * 12**-0.5),
    "randint": (lambda: torch.randint(5, 10, (ROWS, WIDTH)), 7.0, 2**0.5),
    "random_": (lambda: EMPTY.long().random_(7), 3.0, 2.0),
    "multinomial": (lambda: torch.multinomial(torch.tensor([1.0, 2.0, 7.0]), ROWS * WIDTH, True), 1.6, 0.44**0.5),
    "two without replacement": (
        lambda: torch.multinomial(torch.tensor([0.5, 0.5, 0.0]).expand(ROWS * WIDTH, 3), 2)[:, 0], 0.5, 0.5,
    ),
    "dropout2d": (lambda: F.dropout2d(torch.ones(ROWS, WIDTH, 2, 2), 0.5), 1.0, 1.0),
    "gumbel_softmax": (lambda: F.gumbel_softmax(torch.zeros(ROWS * WIDTH, 2), hard=True), 0.5, 0.5),
    "rrelu": (lambda: F.rrelu(-torch.ones(ROWS, WIDTH), 0.1, 0.3, True), -0.2, 0.2 * 12**-0.5),
    "a distribution": (lambda: torch.distributions.Laplace(torch.zeros(ROWS, WIDTH), 1.0).rsample(), 0.0, 2**0.5),
}  # fmt: skip


@pytest.mark.parametrize("name", OPS)
def test_every_op_has_its_distribution_and_takes_its_numbers_by_position(name: str) -> None:
    function, mean, deviation = OPS[name]
    with PositionalDraws(RNG, ROWS) as mode:
        found = function()
        assert mode.calls == 1
        other = function()
    with mode:
        assert torch.equal(function(), found)
    assert not torch.equal(other, found)
    count = ROWS * WIDTH
    assert abs(float(found.double().mean()) - mean) < 6 * deviation * count**-0.5
    assert abs(float(found.double().std()) / deviation - 1) < 0.05


def test_permutations_are_permutations() -> None:
    with PositionalDraws(RNG, 4):
        first, second = torch.randperm(100), torch.randperm(100)
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(100))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("distribution", ["uniform", "normal"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_part_is_the_part_of_the_whole_also_by_arithmetic(distribution: Any, dtype: torch.dtype) -> None:
    whole = draw([12, 7], RNG, distribution, 5, 0, 7, dtype=dtype)
    for rows, columns in ((slice(3, 9), slice(0, 7)), (slice(0, 12), slice(2, 5))):
        where = (RNG, distribution, 5, 0, 7, [12, 7], [rows.start, columns.start])
        shape = list(whole[rows, columns].shape)
        assert torch.equal(draw(shape, *where, dtype=dtype), whole[rows, columns])
        other = draw_by_arithmetic(shape, *where, dtype=dtype, device=torch.device("cpu"))
        torch.testing.assert_close(other, whole[rows, columns], rtol=1e-13, atol=1e-15)
    later = draw([6, 7], RNG + torch.tensor([0, 0, 6]), distribution, 5, 0, 7, dtype=dtype)
    assert torch.equal(later, whole[6:])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: torch finds none")
@pytest.mark.parametrize("distribution", ["uniform", "normal"])
def test_cuda_draws_the_numbers_of_the_cpu(distribution: Any) -> None:
    where = ([8, 33], RNG, distribution, 4, 0, 33, [8, 33], [0, 0])
    torch.testing.assert_close(draw(*where, device="cuda").cpu(), draw(*where), rtol=1e-6, atol=1e-7)


def test_passes_the_operator_checks_of_pytorch() -> None:
    arguments = ([4, 6], RNG, "normal", 0, 0, 6, [4, 6], [0, 0])
    options = {"dtype": torch.float32, "device": torch.device("cpu")}
    torch.library.opcheck(torch.ops.trainyard.draw.default, arguments, options)


class Noisy(nn.Module):
    """A block that draws in several ways, and drops."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        noise = torch.randn_like(x) + torch.rand(6)
        return F.dropout(torch.tanh(self.linear(x)) + noise, 0.2) + torch.randint(3, (x.shape[0], 1))


def test_repeated_blocks_draw_each_their_own() -> None:
    model = model_of(nn.Sequential(*(Noisy() for _ in range(4))))
    program = assert_captured(model)
    drawn = [n.args[3] for n in program.graph.nodes if n.target is torch.ops.trainyard.draw.default]
    assert len(set(drawn)) == len(drawn) == 12


def test_noise_is_drawn_for_a_ranks_own_rows() -> None:
    program = capture(model_of(Noisy()))
    assignment = propagate(program, Axis("data", 2), {"batch.x": Shard(0)})
    drawn = program.graph.find_nodes(op="call_function", target=torch.ops.trainyard.draw.default)
    made = {tuple(n.meta["val"].shape): str(assignment.made[n][0]) for n in drawn}
    assert made == {(4, 6): "S0", (6,): "R", (4, 1): "S0"}
    assert [str(c.results[0]) for c in choices(axes_of(drawn[0]), 2)] == ["R", "S0", "S1"]


class Redrawing(torch.autograd.Function):
    """Draws in its backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * torch.rand_like(grad)


def seeded(x: Tensor) -> Tensor:
    torch.manual_seed(0)
    return x + torch.randn(4, 6)


@pytest.mark.parametrize(
    ("do", "why"),
    [
        (lambda x: x * torch.poisson(torch.ones(4, 6)), "draws random numbers by aten.poisson.default"),
        (lambda x: x + torch.rand(4, 6, generator=torch.Generator()), "from a generator of its own"),
        (lambda x: Redrawing.apply(x), "draws random numbers in the backward pass"),
        (seeded, "it seeds PyTorch's random numbers"),
    ],
)
def test_what_cannot_be_drawn_by_position_is_refused(do: Any, why: str) -> None:
    with pytest.raises(CaptureError, match=why):
        capture(model_of(nn.Linear(6, 6), lambda m, b: do(m(b["x"])).square().mean()))


def test_permuted_rows_are_those_of_eager() -> None:
    def mixed(module: nn.Module, batch: Any) -> Tensor:
        y = module(batch["x"])
        return (y + y[torch.randperm(4)]).square().mean()

    model = model_of(nn.Linear(6, 6), mixed)
    with PositionalDraws(RNG, 4):
        torch.testing.assert_close(
            run_graph(capture(model), model)["loss:loss"], mixed(model.module, model.batch).detach()
        )
