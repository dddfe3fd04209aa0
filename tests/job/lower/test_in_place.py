"""Gradients that are products are written where they are kept, wherever that changes nothing."""

from __future__ import annotations

import torch
from made_plan import made_plan
from one_step import summed

from trainyard.job.lower.lower import Lowered, lower
from trainyard.job.lower.signatures import rank_context
from trainyard.job.run.step.executor import Executor
from trainyard.job.schedules import make_schedule
from trainyard.job.simulation.memory import stage_memory
from trainyard.job.task import Task
from trainyard.zoo import build

ROWS = 8


def lowered(model: str = "gpt-tiny", num_microbatches: int = 1, dtype: str = "float32") -> Lowered:
    program = Task(build(model, ROWS), dtype).program(ROWS // num_microbatches)
    schedule = make_schedule("gpipe", 1, num_microbatches)
    return lower(program, made_plan(program, ROWS, schedule, dtype=dtype))


def num_in_place(given: Lowered) -> int:
    (stage,) = given.stages
    graphs = [segment.graph_module.graph for segment in stage.segments.values()]
    return sum("into" in node.meta for graph in graphs for node in graph.nodes)


def test_only_one_microbatch_in_float32_computes_in_place() -> None:
    # Four products for each of two blocks: the table of tokens is used twice, and positions are looked up.
    assert num_in_place(lowered()) == 8
    assert num_in_place(lowered(num_microbatches=2)) == 0
    assert num_in_place(lowered(dtype="bfloat16")) == 0


def test_gradients_are_those_of_plain_pytorch_and_not_of_the_step_before() -> None:
    model, given = build("llama-tiny", ROWS), lowered("llama-tiny")
    values = {name: value.detach().clone() for name, value in model.module.named_parameters()}
    executor = Executor(given, 0, values.__getitem__, torch.device("cpu"))
    batch = {f"batch.{name}": tensor for name, tensor in model.batch.items()}
    for step in range(2):
        executor.forward_backward(batch, step)
        _, found = summed(executor)
    model.loss(model.module, model.batch).backward()
    assert found.keys() == values.keys()
    for name, value in model.module.named_parameters():
        assert value.grad is not None
        torch.testing.assert_close(found[name], value.grad, rtol=1e-5, atol=1e-7)


def test_they_take_no_memory_beside_the_buckets() -> None:
    given = lowered()
    (stage,) = given.stages
    memory = stage_memory(given, stage, rank_context(given, 0)).actions["B"].graph
    in_place = [node for node in stage.segments["B"].graph.nodes if "into" in node.meta]
    taken = {
        node: sum(storage.num_bytes for storage in memory.storages[node])
        for node in memory.storages
        if node.target is torch.ops.aten.mm.default
    }
    assert {node for node, num_bytes in taken.items() if num_bytes == 0} == set(in_place)
