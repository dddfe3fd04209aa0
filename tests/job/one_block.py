"""A Llama of one block, ways to place it, and choices for its ops drawn at random."""

from __future__ import annotations

import operator
import random
from functools import cache

import torch

from trainyard.job.task import Task
from trainyard.program.algebra.notation import choices
from trainyard.program.algebra.rules import axes_of
from trainyard.program.placement import REPLICATE, OpChoice, Placement, Shard
from trainyard.program.program import Program
from trainyard.program.spmd import is_scalar
from trainyard.zoo.llama import LlamaConfig, build

ROWS = 4
MEGATRON: dict[str, Placement] = {
    **dict.fromkeys((f"blocks.0.attention.{name}.weight" for name in "qkv"), Shard(0)),
    **dict.fromkeys((f"blocks.0.{name}.weight" for name in ("gate", "up")), Shard(0)),
    **dict.fromkeys((f"blocks.0.{name}.weight" for name in ("attention.out", "down")), Shard(1)),
    "tokens.weight": Shard(0),
    "head.weight": Shard(0),
}


@cache
def task() -> Task:
    """One Llama block between an embedding and a head."""
    config = LlamaConfig(vocab=32, context=8, layers=1, hidden=16, heads=4, kv_heads=2, ffn=32)
    model = build("one-block", config, ROWS)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.module.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) * p.shape[-1] ** -0.5)
    return Task(model)


def drawn_choices(program: Program, num_ranks: int, seed: int) -> dict[str, OpChoice]:
    """Some choice for every op, and for some to where its result is moved."""
    drawn = random.Random(seed)
    found: dict[str, OpChoice] = {}
    for name, node in program.addresses.nodes.items():
        if node.target is operator.getitem or is_scalar(node):
            continue
        choice = drawn.choice(choices(axes_of(node), num_ranks))
        moves: list[Placement | None] = [None, None]
        if len(choice.results) == 1:
            shape = node.meta["val"].shape
            moves += [REPLICATE, *(Shard(d) for d, size in enumerate(shape) if size % num_ranks == 0)]
        move = drawn.choice(moves)
        found[name] = OpChoice(choice.operands, choice.results, move if move not in choice.results else None)
    return found
