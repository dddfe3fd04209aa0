"""Blocks that look alike and are not: whatever tells them apart, the captured step is what PyTorch computes."""

from __future__ import annotations

from typing import Any

import lookalikes
import lookalikes_backward
import pytest
import torch
from lookalikes import Block, chain, table_on_first_use
from lookalikes_backward import checkpointed_inside
from test_capture import assert_captured, model_of, run_eager, run_graph
from test_repeats import captured
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from trainyard.program.capture import CaptureError, capture

CASES = lookalikes.CASES | lookalikes_backward.CASES


@pytest.mark.parametrize("name", CASES)
def test_what_is_captured_is_what_pytorch_computes(name: str) -> None:
    """And as many blocks are traced once as can be."""
    make, replaced = CASES[name]
    # Made anew, as what the code of a model leaves on it changes what it computes the next time.
    (program, num_blocks), (rows, model) = captured(make()), (4, make())
    assert num_blocks == replaced
    graph, eager = run_graph(program, model), run_eager(make(), rows)
    assert set(graph) == set(eager)
    for path, value in eager.items():
        torch.testing.assert_close(
            graph[path], value, rtol=1e-5, atol=1e-6, msg=lambda m, p=path: f"{p}: {m}"
        )


def test_attention_is_the_one_that_was_asked_for() -> None:
    class Attending(Block):
        def forward(self, x: Tensor) -> Tensor:
            heads = self.inner(x)[None, None]
            return nn.functional.scaled_dot_product_attention(heads, heads, heads)[0, 0]

    def loss(module: Any, batch: Any) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            return module(batch["x"]).square().mean()

    program = assert_captured(model_of(chain(Attending), loss))
    assert not [n for n in program.graph.nodes if "flash" in str(n.target)]


def test_the_model_is_left_as_it_was() -> None:
    model = table_on_first_use()
    model.module.again = model.module.blocks[0]
    before = {name: id(p) for name, p in model.module.named_parameters(remove_duplicate=False)}
    capture(model)
    assert {name: id(p) for name, p in model.module.named_parameters(remove_duplicate=False)} == before
    assert all(block.table is None for block in model.module.blocks)


def test_recomputation_reads_the_parameters_of_its_step() -> None:
    model = checkpointed_inside()
    program = capture(model)
    assert not program.constants
    with torch.no_grad():
        for parameter in model.module.parameters():
            parameter.mul_(0.5)
    graph, eager = run_graph(program, model), run_eager(model, 4)
    for path, value in eager.items():
        torch.testing.assert_close(graph[path], value, rtol=1e-5, atol=1e-6)


def test_a_parameter_outside_the_module_is_refused() -> None:
    outside = nn.Parameter(torch.ones(6))
    with pytest.raises(
        CaptureError, match=r"uses a tensor of shape \(6,\) .* Register parameters with the module"
    ):
        capture(model_of(chain(), lambda module, batch: (module(batch["x"]) * outside).square().mean()))
