"""A fault that is put into the updates of stages is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from asynchronous import SCHEDULES, model, plan_of
from torch import fx

from trainyard.job.lower.calls import Call
from trainyard.job.lower.lower import Lowered, lower
from trainyard.job.lower.verify import LoweringError, verify
from trainyard.job.task import Task


@cache
def task() -> Task:
    return Task(model())


def lowered_of(schedule: str = "pipedream") -> Lowered:
    plan = plan_of(task(), SCHEDULES[schedule])
    return lower(task().program(plan.rows_per_microbatch), plan)


def at(calls: list[Call], action: str) -> int:
    return next(i for i, call in enumerate(calls) if str(call.action) == action)


def using(calls: list[Call], action: str, **changed: Any) -> None:
    """Change what a call does with the weights of its stage."""
    i = at(calls, action)
    calls[i] = replace(calls[i], weights=calls[i].weights._replace(**changed))


def swap(calls: list[Call], i: int, j: int) -> None:
    calls[i], calls[j] = calls[j], calls[i]


CALLS: dict[str, tuple[Callable[[list[Call]], None], str]] = {
    "a backward pass with new weights": (
        lambda calls: using(calls, "0B1", version=1),
        "0B1: does not use the weights of its forward pass",
    ),
    "a forward pass with old weights": (
        lambda calls: using(calls, "0F3", version=0),
        "0F3: does not use the weights of its forward pass",
    ),
    "an update over weights that are needed": (
        lambda calls: using(calls, "0U", is_last=True),
        "0U: writes over weights that are needed",
    ),
    "weights let go of early": (
        lambda calls: using(calls, "0B1", is_last=True),
        "0B2: uses weights that are no more there",
    ),
    "weights never let go of": (
        lambda calls: using(calls, "0B2", is_last=False),
        "weights of stage 0 are never let go of",
    ),
    "an update before its gradients": (
        lambda calls: swap(calls, at(calls, "0B0"), at(calls, "0U")),
        "0U: does not apply the gradients since the last update",
    ),
    "another number of gradients": (
        lambda calls: using(calls, "0B0", num_own=2),
        "0U: does not apply the gradients since the last update",
    ),
    "another mean": (lambda calls: using(calls, "0U", num_applied=2), "0U: counts the microbatches wrongly"),
    "no last update": (lambda calls: calls.pop() and None, "not all gradients of stage 0 are applied"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_fault_of_the_versions_is_found(name: str) -> None:
    change, message = CALLS[name]
    lowered = lowered_of()
    verify(lowered)
    first, *others = lowered.calls
    calls = list(first)
    change(calls)
    lowered.__dict__["calls"] = (tuple(calls), *others)
    with pytest.raises(LoweringError, match=message):
        verify(lowered)


def of_op(graph: fx.Graph, op: str) -> fx.Node:
    return next(n for n in graph.nodes if n.op == "call_function" and n.target.__name__ == op)


def erase(graph: fx.Graph, op: str) -> None:
    graph.erase_node(of_op(graph, op))


def change_share(graph: fx.Graph) -> None:
    node = of_op(graph, "update_stage")
    node.args = (*node.args[:2], 0.5)


OPS: dict[str, tuple[Callable[[fx.Graph], None], str]] = {
    "weights are not kept": (lambda graph: erase(graph, "keep_weights"), "keep_weights is missing"),
    "weights are kept late": (
        lambda graph: of_op(graph, "update_stage").append(of_op(graph, "keep_weights")),
        "not in order",
    ),
    "ranks do not sum": (lambda graph: erase(graph, "sum_over_stages"), "not in order, once each"),
    "a sum after its norm": (
        lambda graph: of_op(graph, "squared_norm").append(of_op(graph, "sum_over_stages")),
        "not in order",
    ),
    "another share of the microbatches": (change_share, "update_stage of .* is wrong"),
}


@pytest.mark.parametrize("name", OPS)
def test_a_fault_of_an_update_is_found(name: str) -> None:
    change, message = OPS[name]
    lowered = lowered_of("replicated")
    verify(lowered)
    change(
        next(
            graph
            for update, graph in lowered.stage_updates.items()
            if update.stage == 1 and not update.in_place
        )
    )
    with pytest.raises(LoweringError, match=message):
        verify(lowered)


def test_the_end_of_the_step_reports_once() -> None:
    lowered = lowered_of()
    graph = lowered.updates[0].parameters
    node = of_op(graph, "sum_over_ranks")
    node.replace_all_uses_with(node.args[0])
    graph.erase_node(node)
    with pytest.raises(LoweringError, match=r"end of the step: .* is wrong"):
        verify(lowered)


@pytest.mark.parametrize(
    ("op", "message"),
    [
        ("wait_sends", "end of the step: wait_sends is missing"),
        ("start_losses", "end of the step: start_losses is missing"),
    ],
)
def test_the_end_of_a_step_that_lacks_an_op_is_found(op: str, message: str) -> None:
    lowered = replace(lowered_of())
    graph = lowered.updates[0].gradients
    graph.erase_node(next(n for n in graph.nodes if n.name == op))
    with pytest.raises(LoweringError, match=message):
        verify(lowered)
