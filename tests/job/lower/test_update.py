"""The end of a step is a list of ops: what is in it, in which order, and what the simulator makes of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from exactness import Cell, make_plan, task_of

from trainyard.hardware.parse import parse_cluster
from trainyard.job.lower.lower import Lowered, lower
from trainyard.job.lower.signatures import rank_context, signature
from trainyard.job.optimizer import OptimizerConfig
from trainyard.job.planning import plan
from trainyard.job.simulate import simulate_plan
from trainyard.zoo import build


def lowered_of(cell: Cell, optimizer: OptimizerConfig | None = None) -> Lowered:
    program = task_of(cell.model, cell.rows, cell.dtype).program(cell.rows // cell.microbatches)
    return lower(program, make_plan(cell, program), optimizer)


def ops_of(lowered: Lowered, rank: int = 0) -> list[str]:
    return [n.target.__name__ for n in lowered.updates[rank].nodes]


def test_replicas_do_not_sum_the_norm_that_each_of_them_knows() -> None:
    assert ops_of(lowered_of(Cell("gpt-tiny", data=2, bucket_bytes=2**30))) == [
        "wait_sends",
        "start_losses",
        "finish_accumulation",
        "wait_reduction",
        "squared_norm",
        "wait_losses",
        "update_parameters",
    ]


def test_parts_of_parameters_are_put_together_after_the_update() -> None:
    ops = ops_of(lowered_of(Cell("gpt-tiny", data=2, zero=1, bucket_bytes=2**30)))
    assert ops[-5:] == ["sum_over_ranks", "wait_losses", "update_parameters", "start_weights", "wait_weights"]


def test_what_two_stages_share_is_summed_over_their_ranks_and_then_over_the_replicas() -> None:
    lowered = lowered_of(Cell("gpt-tiny", data=2, pipeline=2, microbatches=2))
    for rank in (0, 1):
        ops = ops_of(lowered, rank)
        assert ops.index("sum_over_stages") + 1 == ops.index("start_reduction")


def test_stages_of_one_rank_add_what_they_share_and_send_nothing() -> None:
    ops = ops_of(lowered_of(Cell("gpt-tiny", schedule="breadth_first", per_rank=2, microbatches=2)))
    assert [op for op in ops if op in ("add_grads", "copy_grads", "sum_over_stages")] == [
        "add_grads",
        "copy_grads",
    ]


@pytest.mark.parametrize(
    ("optimizer", "numbers"),
    [(OptimizerConfig(), 2), (OptimizerConfig("sgd"), 0), (OptimizerConfig("sgd", momentum=0.9), 1)],
)
def test_moments_of_the_optimizer_take_memory(optimizer: OptimizerConfig, numbers: int) -> None:
    lowered = lowered_of(Cell("gpt-tiny"), optimizer)
    num_elements = sum(b.num_elements for b in lowered.stages[0].buckets)
    memory = simulate_plan(lowered, parse_cluster("1x1xA100-80G")).memory[0]
    assert memory["optimizer"] == 4 * numbers * num_elements


def test_messages_that_are_started_are_waited_for() -> None:
    lowered = lowered_of(Cell("gpt-tiny", data=2, pipeline=2, zero=1, microbatches=2))
    for rank in (0, 1):
        context = replace(rank_context(lowered, rank), is_last=True)
        segments = [s for stage in lowered.stages for s in stage.segments.values()]
        own = [n for s in segments if s.stage == rank for n in s.graph.nodes]
        does = [signature(n, context) for n in (*own, *lowered.updates[rank].nodes)]
        started = [found.starts for found in does if found.starts]
        assert {"losses"} < set(started)
        assert len(started) == len({*started})
        assert {found.waits for found in does if found.waits} >= set(started)


def test_what_is_planned_is_what_is_trained() -> None:
    model = build("gpt-tiny", 8)
    adamw = plan(model, "1x1xA100-80G", "data_parallel").simulation.memory[0]
    sgd = plan(model, "1x1xA100-80G", "data_parallel", optimizer=OptimizerConfig("sgd")).simulation.memory[0]
    assert adamw["optimizer"] == 2 * adamw["parameters"] > sgd["optimizer"] == 0


def test_momentum_of_adamw_is_refused() -> None:
    with pytest.raises(ValueError, match=r"momentum 0\.9 is of sgd, not of adamw"):
        OptimizerConfig(momentum=0.9)
