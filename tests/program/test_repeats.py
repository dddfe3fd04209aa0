"""Repeated blocks are traced once, and the graph is the one that tracing all of them gives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from unittest.mock import patch

import pytest
import torch
from test_capture import assert_captured, model_of, randomise
from torch import Tensor, nn

from trainyard.program.capture import capture
from trainyard.program.model import Model
from trainyard.program.program import Program
from trainyard.program.repeats import Repeats, find, write_out
from trainyard.zoo import bert, gpt, llama, moe
from trainyard.zoo.bert import BertConfig
from trainyard.zoo.gpt import GPTConfig
from trainyard.zoo.llama import LlamaConfig
from trainyard.zoo.moe import MoEConfig

MODELS = {
    "gpt": lambda: gpt.build("gpt", GPTConfig(64, 16, 4, 32, 4), 4),
    "llama": lambda: llama.build("llama", LlamaConfig(64, 16, 4, 32, 4, 2, 64), 4),
    "bert": lambda: bert.build("bert", BertConfig(64, 16, 4, 32, 4, predictions=4), 4),
    "moe": lambda: moe.build("moe", MoEConfig(64, 16, 6, 32, 4, experts=4), 4),
}


def traced_whole(model: Model) -> Program:
    with patch.object(find, "repeated_blocks", lambda module: {}):
        return capture(model)


def described(program: Program) -> tuple[list[str], Counter[str]]:
    """Forward ops in order with their layers; backward ops, which autograd may order differently."""
    ops = [n for n in program.graph.nodes if n.op == "call_function"]
    # Positions also count what is simplified away.
    rank = {p: i for i, p in enumerate(sorted({n.meta["position"] for n in ops}))}
    text = [
        (n.meta["phase"], f"{n.target} {n.meta['layer']} {rank[n.meta['position']]} {n.meta['val']}")
        for n in ops
    ]
    return [t for phase, t in text if phase == "forward"], Counter(
        t for phase, t in text if phase == "backward"
    )


def captured(model: Model) -> tuple[Program, int]:
    """What is captured of a model, and how many of its blocks were not traced themselves."""
    seen: list[Repeats] = []
    plain = write_out
    with patch("trainyard.program.capture.write_out", lambda g, r, s: (seen.append(r), plain(g, r, s))[1]):
        program = capture(model)
    return program, len(seen[0].placed)


def num_replaced(model: Model) -> int:
    """How many blocks were not traced themselves."""
    return captured(model)[1]


@pytest.mark.parametrize(
    "name",
    [
        "gpt",
        pytest.param("bert", marks=pytest.mark.slow),
        *(pytest.param(name, marks=(pytest.mark.slow, pytest.mark.long)) for name in ("llama", "moe")),
    ],
)
def test_graph_is_that_of_tracing_every_block(name: str) -> None:
    model = MODELS[name]()
    randomise(model.module)
    program, num_blocks = captured(model)
    assert num_blocks >= 3
    assert_captured(model, program)
    whole = traced_whole(model)
    assert described(program) == described(whole)
    assert [replace(i, node="") for i in program.inputs] == [replace(i, node="") for i in whole.inputs]
    assert program.outputs == whole.outputs


class Stack(nn.Module):
    """Four blocks and a sum of their results' means, so that every block's result is used twice."""

    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Tensor) -> Tensor:
        total = x.new_zeros(())
        for block in self.blocks:
            x = block(x)
            total = total + x.mean()
        return total * x


class Scaled(nn.Module):
    """A block with a plain number that decides what it computes."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.linear, self.factor = nn.Linear(6, 6), factor

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.linear(x)) * self.factor


def test_a_result_that_is_used_twice() -> None:
    model = model_of(Stack(*(Scaled(0.5) for _ in range(4))))
    # The first works on the batch, which needs no gradient, and so is another graph.
    assert num_replaced(model) == 3
    assert_captured(model)


def test_blocks_with_other_attributes_are_traced_themselves() -> None:
    model = model_of(Stack(*(Scaled(0.5 + i) for i in range(4))))
    assert num_replaced(model) == 0
    assert_captured(model)


class Counting(nn.Module):
    """A block that writes to a buffer, and with ``in_place`` to its input."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.linear, self.in_place = nn.Linear(6, 6), in_place
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.in_place:
            x.add_(1.0)
        else:
            self.seen += x.detach().sum()
        return self.linear(x)


@pytest.mark.parametrize("in_place", [False, True])
def test_blocks_that_write_to_what_they_are_given_are_traced_themselves(in_place: bool) -> None:
    model = model_of(nn.Sequential(nn.Linear(6, 6), Stack(*(Counting(in_place) for _ in range(3)))))
    assert num_replaced(model) == 0
    assert_captured(model)


def test_a_hook_on_one_block_is_called() -> None:
    blocks = [Scaled(0.5) for _ in range(4)]
    blocks[2].register_forward_hook(lambda module, args, result: result * 3.0)
    model = model_of(Stack(*blocks))
    # That one and the first are traced by themselves.
    assert num_replaced(model) == 2
    assert_captured(model)


class Shrinking(nn.Module):
    """Equal blocks on inputs of different shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.LayerNorm(6) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for i, block in enumerate(self.blocks):
            x = block(torch.cat([x, x], 0) if i == 2 else x)
        return x


def test_calls_on_other_shapes_are_traced_themselves() -> None:
    model = model_of(Shrinking())
    assert num_replaced(model) == 2
    assert_captured(model)


def test_frozen_parameters_get_no_gradient() -> None:
    blocks = [Scaled(0.5) for _ in range(4)]
    for block in blocks:
        block.linear.bias.requires_grad_(False)
    model = model_of(Stack(*blocks))
    assert num_replaced(model) == 3
    program = assert_captured(model)
    assert not any(i.trainable for i in program.params if i.path.endswith("bias"))


class Twice(Stack):
    """Its third block is called once more, with the same parameters."""

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks[2](super().forward(x))


def with_penalty(module: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """The loss has the weights of a block, too."""
    return module(batch["x"]).square().mean() + module.blocks[3].linear.weight.square().sum()


def tied_to_a_block() -> nn.Module:
    stack = Stack(*(Scaled(0.5) for _ in range(4)))
    first = nn.Linear(6, 6)
    stack.blocks[3].linear.weight = first.weight
    return nn.Sequential(first, stack)


class Beside(nn.Module):
    """Equal blocks that all work on the batch itself."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Scaled(0.5) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        return sum(block(x) for block in self.blocks)


@pytest.mark.parametrize(
    ("model", "replaced"),
    [
        (lambda: model_of(Twice(*(Scaled(0.5) for _ in range(4)))), 2),
        (lambda: model_of(Stack(*(Scaled(0.5) for _ in range(4))), with_penalty), 2),
        (lambda: model_of(tied_to_a_block()), 3),
        (lambda: model_of(Beside()), 0),
    ],
    ids=["called twice", "read by the loss", "tied to another layer", "without a gradient before them"],
)
def test_blocks_whose_parameters_others_use_are_traced_themselves(
    model: Callable[[], Model], replaced: int
) -> None:
    assert num_replaced(model()) == replaced
    assert_captured(model())
