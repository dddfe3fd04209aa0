"""Graphs without a gradient."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, fx, nn

from trainyard.program.capture_error import CaptureError
from trainyard.program.forward import capture_forward, shortened_sequences
from trainyard.program.model import Model
from trainyard.zoo import build


def _values(program, module, batch):
    """Of the placeholders, by their kind."""
    params, buffers = dict(module.named_parameters()), dict(module.named_buffers())
    given = {"param": params, "buffer": buffers, "constant": program.constants}
    for entry in program.inputs:
        if entry.kind == "batch":
            yield batch[entry.path.removeprefix("batch.")]
        elif entry.kind == "rng":
            yield torch.zeros(3, dtype=torch.int64)
        else:
            yield given[entry.kind][entry.path]


@pytest.mark.parametrize(
    "name", ["gpt-tiny", "llama-tiny", "bert-tiny", "resnet-tiny", "gnmt-tiny", "dlrm-tiny"]
)
def test_the_graph_computes_what_the_module_returns_in_evaluation(name):
    model = build(name)
    program = capture_forward(model, 2)
    batch = {path: value[:2] for path, value in model.batch.items()}
    with torch.no_grad():
        found = fx.GraphModule(nn.Module(), program.graph)(*_values(program, model.module, batch))
        returned = []
        handle = model.module.register_forward_hook(lambda _m, _g, result: returned.append(result))
        model.module.eval()
        model.loss(model.module, batch)
        handle.remove()
    expected = torch.utils._pytree.tree_leaves(returned[0])
    assert [each.kind for each in program.outputs] == ["value"] * len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_no_op_is_of_the_loss_or_of_a_gradient():
    program = capture_forward(build("gpt-tiny"), 1)
    ops = [node for node in program.graph.nodes if node.op == "call_function"]
    assert not any("softmax" in str(node.target) or "nll" in str(node.target) for node in ops)
    assert all(node.meta["phase"] == "forward" for node in ops)


def test_sequences_may_be_shorter():
    model = shortened_sequences(build("llama-tiny"), 5)
    program = capture_forward(model, 1)
    (result,) = next(iter(reversed(program.graph.nodes))).args[0]
    assert result.meta["val"].shape == (1, 5, 128)


class _Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(self.norm(self.linear(x)), training=self.training)


def test_nothing_is_dropped_and_no_statistics_change():
    module = _Noisy()
    program = capture_forward(Model("noisy", module, lambda m, b: m(b).mean(), torch.zeros(3, 4)), 3)
    assert module.training
    assert module.norm.training
    assert [each.kind for each in program.outputs] == ["value"]
    assert not any("rand" in str(node.target) for node in program.graph.nodes)


def test_a_loss_that_runs_its_module_twice_is_refused():
    twice = Model("twice", nn.Linear(4, 4), lambda m, b: m(m(b)).mean(), torch.zeros(3, 4))
    with pytest.raises(CaptureError, match="runs the module 2 times; allowed is once"):
        capture_forward(twice, 3)
