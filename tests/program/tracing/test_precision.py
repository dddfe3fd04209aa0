"""Precision: a step in 16 bits has the types and values that autocast gives on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from trainyard.program.capture import CaptureError, capture
from trainyard.program.model import Model
from trainyard.program.program import Program, tensor_of
from trainyard.program.tracing.precision import computed_in

X, W = torch.full((4, 4), 0.5, dtype=torch.bfloat16), torch.full((4, 4), 0.5)
HALF, FLOAT = torch.bfloat16, torch.float32


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        (lambda: X @ W, HALF),
        (lambda: torch.einsum("ij,jk->ik", X, W), HALF),
        (lambda: torch.mv(W, X[0]), HALF),
        (lambda: nn.LSTMCell(4, 4)(X)[0], HALF),
        (lambda: F.softmax(X, -1), FLOAT),
        (lambda: F.log_softmax(X, -1), FLOAT),
        (lambda: F.layer_norm(X, [4], X[0]), FLOAT),
        (lambda: F.rms_norm(X, [4]), FLOAT),
        (lambda: F.cross_entropy(X, torch.zeros(4, dtype=torch.int64)), FLOAT),
        (lambda: F.mse_loss(X, X), FLOAT),
        (lambda: X.sum(), FLOAT),
        (lambda: X.sum(1, dtype=HALF), HALF),
        (lambda: X.cumsum(0), FLOAT),
        (lambda: X.prod(), FLOAT),
        (lambda: X.norm(), FLOAT),
        (lambda: X.exp() + X.log() + X.rsqrt(), FLOAT),
        (lambda: X**2, FLOAT),
        (lambda: 2**X, FLOAT),
        (lambda: torch.addcmul(X, X, W), FLOAT),
        (lambda: X + X, HALF),
        (lambda: X + W, FLOAT),
        (lambda: F.relu(X), HALF),
        (lambda: X.double().sum(), torch.float64),
        (lambda: torch.arange(4).sum(), torch.int64),
    ],
)
def test_types_are_those_of_autocast_on_a_gpu(op: Callable[[], Tensor], expected: torch.dtype) -> None:
    with computed_in(HALF):
        assert op().dtype == expected


def test_what_autocast_does_elsewhere_is_left_as_it_was() -> None:
    with computed_in(HALF), torch.autocast("cpu", enabled=False):
        assert X.exp().dtype == HALF
        assert (W @ W).dtype == FLOAT
    with computed_in(FLOAT), torch.autocast("cpu", HALF):
        assert X.exp().dtype == HALF
    with torch.autocast("cpu", HALF):
        assert X.exp().dtype == HALF


class Net(nn.Module):
    """A module of one function of itself and its input, with buffers."""

    def __init__(self, function: Callable[[Any, Tensor], Tensor], **parts: Any) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        for name, part in parts.items():
            self.register_buffer(name, part) if isinstance(part, Tensor) else self.add_module(name, part)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.function(self, x)
        return result


def model_of(function: Callable[[Any, Tensor], Tensor], x: Tensor | None = None, **parts: Any) -> Model:
    torch.manual_seed(0)
    module = Net(function, **parts)
    batch = torch.randn(4, 8) if x is None else x
    return Model("net", module, lambda m, b: m(b["x"]), {"x": batch})


def run(program: Program, model: Model) -> dict[str, Tensor]:
    """What a graph computes; everything is given in the type that it was captured in."""
    state = dict(model.module.named_parameters()) | dict(model.module.named_buffers())
    leaves = iter(pytree.tree_leaves(model.batch))
    given = []
    for entry in program.inputs:
        if entry.kind in ("param", "buffer"):
            value = state[entry.path].detach()
        elif entry.kind == "constant":
            value = program.constants[entry.path]
        elif entry.kind == "loss_scale":
            value = torch.ones(())
        else:
            value = next(leaves) if entry.kind == "batch" else torch.zeros(3, dtype=torch.int64)
        given.append(value.to(tensor_of(program.nodes[entry.node]).dtype, copy=True))
    results = program.graph_module(*given)
    return {f"{o.kind}:{o.path}": r for o, r in zip(program.outputs, results, strict=True)}


def rotate(net: Any, x: Tensor) -> Tensor:
    """Angles of far positions, as of rotary embeddings."""
    y = net.first(x)
    angles = (torch.arange(1000, 1000 + len(x))[:, None] * net.frequency).to(FLOAT)
    turned = y * angles.cos() + y.roll(4, -1) * angles.sin()
    return (turned @ net.first.weight).square().mean()


def masked(net: Any, x: Tensor) -> Tensor:
    """The mask of a published encoder, which 16 bits do not hold."""
    scores = net.first(x) @ x.T + net.mask
    return (scores.softmax(-1) @ x).square().sum()


def long_sum(net: Any, x: Tensor) -> Tensor:
    return (1.0 + 0.01 * net.first(x)).expand(512, 4, 8).sum()


def normalised(net: Any, x: Tensor) -> Tensor:
    return net.norm(net.first(x) * 3 + 2).relu().square().mean()


def powers(net: Any, x: Tensor) -> Tensor:
    return (net.first(x).exp().log() ** 2).sum(-1).sqrt().mean()


FREQUENCY = torch.tensor([1.0, 0.37, 0.11, 0.053, 0.017, 0.0059, 0.0021, 0.0007])
MODELS: dict[str, Model] = {
    "a table of angles": model_of(rotate, frequency=FREQUENCY),
    "an additive mask": model_of(masked, mask=torch.tensor([[0.0, 0.0, -1e9, -torch.inf]])),
    "a long sum": model_of(long_sum),
    "layer norm": model_of(normalised, norm=nn.LayerNorm(8)),
    "group norm": model_of(normalised, norm=nn.GroupNorm(2, 8)),
    "batch norm": model_of(normalised, norm=nn.BatchNorm1d(8)),
    "powers": model_of(powers),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", MODELS)
def test_a_step_in_16_bits_is_near_one_in_float32(name: str, dtype: torch.dtype) -> None:
    model = MODELS[name]
    exact, program = run(capture(model), model), capture(model, dtype=dtype)
    found = run(program, model)
    assert found["loss:loss"].dtype == FLOAT
    for path, value in exact.items():
        assert found[path].dtype == (dtype if path.startswith("grad:") else value.dtype)
        error = (found[path] - value).float().norm() / value.float().norm().clamp(min=0.01)
        assert error < (0.06 if path.startswith("grad:") else 0.01), path
    assert {tensor_of(program.nodes[i.node]).dtype for i in program.inputs if i.kind == "batch"} == {FLOAT}


def test_a_norm_and_a_softmax_keep_16_bits_for_the_backward_pass() -> None:
    def attend(net: Any, x: Tensor) -> Tensor:
        y = net.first(net.norm(net.first(x)))
        return (net.first(y @ y.T @ x).softmax(-1) @ y.T).square().mean()

    program = capture(model_of(attend, norm=nn.LayerNorm(8)), dtype=HALF)
    wide = {
        str(source.target)
        for node in program.graph.nodes
        if node.op == "call_function" and node.meta["phase"] == "backward"
        for source in node.all_input_nodes
        if source.op == "call_function" and source.meta["phase"] == "forward"
        and isinstance(source.meta["val"], Tensor)
        and source.meta["val"].dtype == FLOAT and source.meta["val"].numel() > 4
    }  # fmt: skip
    assert not wide


def test_double_precision_is_kept_or_refused() -> None:
    def scaled(net: Any, x: Tensor) -> Tensor:
        return (net.first(x.float()) * net.scale).sum()

    model = model_of(scaled, torch.randn(4, 8).double(), scale=torch.rand(8).double())
    for dtype in (FLOAT, HALF):
        program = capture(model, dtype=dtype)
        kinds = [
            tensor_of(program.nodes[i.node]).dtype for i in program.inputs if i.kind in ("buffer", "batch")
        ]
        assert kinds == [torch.float64, torch.float64]
        assert run(program, model)["loss:loss"].dtype == torch.float64
    model.module.double()
    with pytest.raises(CaptureError, match=r"first\.weight is of float64.*module\.float\(\)"):
        capture(model)


def test_everything_is_traced_in_its_own_type_where_no_other_is_asked_for() -> None:
    model = model_of(
        normalised, torch.randn(4, 8).bfloat16(), norm=nn.LayerNorm(8), frequency=FREQUENCY.half()
    )
    model.module.first.bfloat16()
    model.module.norm.bfloat16()
    program, found = capture(model), run(capture(model), model)
    kinds = {i.path: tensor_of(program.nodes[i.node]).dtype for i in program.inputs}
    assert kinds["first.weight"] == kinds["norm.bias"] == kinds["batch.x"] == HALF
    assert kinds["frequency"] == torch.float16
    loss = model.loss(model.module, model.batch)
    loss.backward()
    assert found["loss:loss"].dtype == loss.dtype
    torch.testing.assert_close(found["grad:first.weight"], model.module.first.weight.grad)


TARGET = torch.tensor([0, 5, -100, 3])
SHARE = torch.linspace(0.1, 0.8, 8)
LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cross entropy": lambda y, x: F.cross_entropy(y, TARGET),
    "its sum": lambda y, x: F.cross_entropy(y, TARGET, reduction="sum"),
    "with weights": lambda y, x: F.cross_entropy(y, TARGET, SHARE.to(y.dtype), label_smoothing=0.1),
    "of probabilities": lambda y, x: F.cross_entropy(y, x.softmax(-1)),
    "of a sequence": lambda y, x: F.cross_entropy(y.T[None], TARGET[None]),
    "negative log likelihood": lambda y, x: F.nll_loss(F.log_softmax(y, -1), TARGET),
    "squares": lambda y, x: F.mse_loss(y, x),
    "distances": lambda y, x: F.smooth_l1_loss(y, x) + F.huber_loss(y, x) + F.l1_loss(y, x),
    "binary": lambda y, x: F.binary_cross_entropy(y.sigmoid(), x.sigmoid()),
    "binary, of logits": lambda y, x: F.binary_cross_entropy_with_logits(y, x.sigmoid()),
    "divergence": lambda y, x: F.kl_div(F.log_softmax(y, -1), x.softmax(-1), reduction="batchmean"),
    "margin": lambda y, x: F.soft_margin_loss(y, x.sign()) + F.triplet_margin_loss(y, x, -x),
}


@pytest.mark.parametrize("dtype", [FLOAT, HALF])
@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_of_16_bit_scores_trains_as_in_plain_pytorch(name: str, dtype: torch.dtype) -> None:
    model = model_of(lambda net, x: LOSSES[name](net.first(x), x), torch.randn(4, 8).bfloat16())
    model.module.first.bfloat16()
    found = run(capture(model, dtype=dtype), model)
    with computed_in(dtype):
        loss = model.loss(model.module, model.batch)
        loss.backward()
    tolerance = {"rtol": 0.02, "atol": 2e-3, "check_dtype": False}
    torch.testing.assert_close(found["loss:loss"], loss.detach(), **tolerance)
    torch.testing.assert_close(found["grad:first.weight"], model.module.first.weight.grad, **tolerance)


UNLIKE: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "addmm": lambda net, x: net.first(x.to(HALF)),
    "mm": lambda net, x: net.first(x) @ net.first.weight.to(HALF),
    "native_layer_norm": lambda net, x: F.layer_norm(net.first(x), [8], x[0].to(HALF)),
    "index_put": lambda net, x: x.index_put((torch.tensor([0]),), net.first(x)[:1].to(HALF)),
    "index_add": lambda net, x: x.index_add(0, torch.tensor([0]), net.first(x)[:1].to(HALF)),
    "grid_sampler_2d": lambda net, x: F.grid_sample(
        net.first(x)[None, None], x[None, :4, :2, None].expand(1, 4, 2, 2).to(HALF), align_corners=False
    ),
}
"""Uses of float32 beside bfloat16, by the op that refuses them."""


@pytest.mark.parametrize("name", UNLIKE)
@pytest.mark.parametrize("rows", [4, 2**18])
def test_types_that_do_not_go_together_are_refused_with_the_line(name: str, rows: int) -> None:
    model = model_of(lambda net, x: UNLIKE[name](net, x).float().square().sum(), torch.ones(4, 8))
    with pytest.raises(CaptureError, match=rf"test_precision\.py:\d+ .* aten\.{name} .*float.*\.to\("):
        capture(model, rows)


def test_types_that_go_together_are_captured() -> None:
    def mixed(net: Any, x: Tensor) -> Tensor:
        y = net.norm(net.first(x).to(HALF)) * x + torch.cat([x, x.to(HALF)])[:4]
        return F.scaled_dot_product_attention(y.to(HALF), y.to(HALF), y.to(HALF), x @ x.T).float().sum()

    assert capture(model_of(mixed, norm=nn.LayerNorm(8))).num_params
