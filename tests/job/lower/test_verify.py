"""What the lowering makes is proved to fit together for plans that are drawn; a fault that is put in is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
import torch
from exactness import STYLES, Cell, _plan_of, task_of
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import fx

from trainyard.job.lower.calls import Call
from trainyard.job.lower.lower import Lowered, lower
from trainyard.job.lower.verify import LoweringError, check_graph, verify
from trainyard.job.plan import PlanError
from trainyard.program import spmd

aten = torch.ops.aten


def lowered_of(cell: Cell) -> Lowered:
    plan = _plan_of(cell)
    return lower(task_of(cell.model, cell.rows, cell.dtype).program(plan.rows_per_microbatch), plan)


SCHEDULES = (("gpipe", 1), ("one_f_one_b", 1), ("interleaved", 2), ("zero_bubble_h1", 1), ("zb_v", 2))


@st.composite
def cells(draw: st.DrawFn) -> Cell:
    schedule, per_rank = draw(st.sampled_from(SCHEDULES))
    return Cell(
        "gpt-tiny",
        data=draw(st.sampled_from((1, 2, 4))),
        tensor=draw(st.sampled_from((1, 2, 4))),
        pipeline=draw(st.sampled_from((1, 2))),
        schedule=schedule,
        per_rank=per_rank,
        microbatches=draw(st.sampled_from((1, 2, 4))),
        zero=draw(st.integers(0, 3)),
        tensor_style=draw(st.sampled_from([s for s in STYLES if s])),
        data_style=draw(st.sampled_from(("", "embedding rows"))),
        recompute=draw(st.booleans()),
        rows=16,
        dtype=draw(st.sampled_from(("float32", "bfloat16"))),
        bucket_bytes=draw(st.sampled_from((5_000, 100_000))),
    )


@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(cell=cells())
def test_every_plan_that_is_drawn_fits_together(cell: Cell) -> None:
    try:
        lowered = lowered_of(cell)
    except (PlanError, ValueError):
        assume(False)
    verify(lowered)


@cache
def pipelined() -> Lowered:
    """Two ranks that share the table of tokens, each in two data-parallel copies."""
    return lowered_of(Cell("gpt-tiny", data=2, pipeline=2, schedule="one_f_one_b", microbatches=4, zero=1))


def with_calls(change: Callable[[list[Call]], None], rank: int) -> Lowered:
    lowered = replace(pipelined())
    calls = list(lowered.calls[rank])
    change(calls)
    lowered.__dict__["calls"] = tuple(tuple(calls) if r == rank else c for r, c in enumerate(lowered.calls))
    return lowered


def without(calls: list[Call], i: int, name: str) -> None:
    calls[i] = replace(calls[i], **{name: ()})


FAULTS: dict[str, tuple[int, Callable[[list[Call]], None], str]] = {
    "a call is left out": (0, lambda calls: calls.pop(2), "is never let go of"),
    "two calls change places": (0, lambda calls: calls.insert(0, calls.pop(-1)), "is not there"),
    "nothing is sent": (0, lambda calls: without(calls, 0, "sends"), "does not receive what rank 0 sends"),
    "nothing is posted": (1, lambda calls: without(calls, 0, "posts"), "not ready to receive"),
    "nothing is received": (1, lambda calls: without(calls, 0, "receives"), "is not there"),
    "a call runs twice": (
        1,
        lambda calls: calls.insert(1, replace(calls[0], posts=())),
        "not the actions of the schedule",
    ),
    "let go of early": (
        0,
        lambda calls: calls.__setitem__(1, replace(calls[1], arrived=calls[0].sends)),
        "may not have arrived",
    ),
    "nothing is run": (
        0,
        lambda calls: calls.clear(),
        r"rank 0, update: wait_reduction\w* waits for gradients of stage0\.bucket\d+, which nothing started",
    ),
    "posted late": (
        1,
        lambda calls: calls.__setitem__(slice(0, 2), [replace(calls[0], posts=()), calls[1]]),
        "not ready",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_the_calls_is_found(name: str) -> None:
    rank, change, message = FAULTS[name]
    verify(pipelined())
    with pytest.raises(LoweringError, match=message):
        verify(with_calls(change, rank))


def test_ranks_that_wait_for_each_other_are_found() -> None:
    lowered = replace(pipelined())
    first, second = lowered.calls
    # Rank 1 wants the third microbatch before its first backward pass, for which rank 0 waits before it sends the third.
    order = {str(call.action): call for call in second}
    early = ["1F0", "1F1", "1F2", "1B0"]
    calls = [order[name] for name in (*early, *(name for name in order if name not in early))]
    posts = tuple(delivery for call in second for delivery in call.posts)
    calls = [replace(call, posts=() if i else posts, arrived=()) for i, call in enumerate(calls)]
    plan = lowered.plan
    actions = plan.schedule.actions[0], tuple(call.action for call in calls)
    schedule = replace(plan.schedule, actions=actions)
    lowered = replace(lowered, plan=replace(plan, schedule=schedule))
    lowered.__dict__["calls"] = (first, tuple(calls))
    with pytest.raises(LoweringError, match="wait for each other for ever: 0 at 0B0, 1 at 1F2"):
        verify(lowered)


def test_an_update_that_does_not_wait_is_found() -> None:
    lowered = replace(pipelined())
    graph = lowered.updates[0].gradients
    graph.erase_node(first_of(graph, "wait_reduction"))
    with pytest.raises(LoweringError, match=r"gradients of stage0\.bucket0 are not summed over the ranks"):
        verify(lowered)


@cache
def shared_and_short() -> Lowered:
    """Two stages of one rank that share a table, in 16 bits, in two data-parallel copies of two tensor-parallel ranks."""
    return lowered_of(
        Cell(
            "gpt-tiny",
            data=2,
            tensor=2,
            schedule="breadth_first",
            per_rank=2,
            microbatches=2,
            dtype="bfloat16",
        )
    )


UPDATES: dict[str, tuple[str, Callable[[fx.Graph, fx.Node], None], str]] = {
    "a sum is left out": ("add_grads", fx.Graph.erase_node, "copies a part of a sum"),
    "a copy is left out": ("copy_grads", fx.Graph.erase_node, "is of a part of a sum"),
    "nothing is updated": (
        "update_parameters",
        lambda graph, node: drop(graph, node),
        "are not updated once",
    ),
    "the norm lacks a bucket": (
        "squared_norm",
        lambda _, node: setattr(node, "args", (node.args[0][1:], node.args[1][1:])),
        "not of all gradients",
    ),
    "copies count twice": (
        "squared_norm",
        lambda _, node: setattr(node, "args", (node.args[0], (1,) * len(node.args[0]))),
        "does not count every gradient once",
    ),
    "weights stay old": ("convert_weights", fx.Graph.erase_node, "weights are not made once"),
    "what the rank has not": (
        "start_reduction",
        lambda _, node: setattr(node, "args", ("nobody",)),
        "names nobody, which the rank has not",
    ),
    "a reduction before its sum": (
        "start_reduction",
        lambda graph, node: first_of(graph, "add_grads").prepend(node),
        "is of a part of a sum",
    ),
    "a loss is forgotten": (
        "start_losses",
        lambda _, node: setattr(node, "args", (node.args[0][1:],)),
        "not all losses",
    ),
    "the norm after its use": (
        "squared_norm",
        lambda graph, node: next(iter(node.users)).append(node),
        "not made before",
    ),
}


def first_of(graph: fx.Graph, op: str) -> fx.Node:
    return next(n for n in graph.nodes if n.op == "call_function" and n.target.__name__ == op)


def drop(graph: fx.Graph, node: fx.Node) -> None:
    node.replace_all_uses_with(node.all_input_nodes[0])
    graph.erase_node(node)


@pytest.mark.parametrize("name", UPDATES)
def test_a_fault_of_the_update_is_found(name: str) -> None:
    op, change, message = UPDATES[name]
    lowered = replace(shared_and_short())
    verify(lowered)
    graphs = lowered.updates[0].routines.values()
    graph = next(g for g in graphs if any(n.name.startswith(op) for n in g.nodes))
    change(graph, first_of(graph, op))
    with pytest.raises(LoweringError, match=message):
        verify(lowered)


def all_nodes(lowered: Lowered, target: object) -> list[fx.Node]:
    graphs = [segment.graph for stage in lowered.stages for segment in stage.segments.values()]
    return [n for graph in graphs for n in graph.nodes if n.target is target]


@pytest.mark.parametrize(
    ("target", "change", "message"),
    [
        (spmd.accumulate_grads, lambda n: n.graph.erase_node(n), "not every bucket is given its gradients"),
        (spmd.accumulate_grads, lambda n: n.append(n.graph.node_copy(n, lambda x: x)), "not every bucket"),
        (
            spmd.accumulate_grads,
            lambda n: setattr(n, "args", (n.args[0], n.args[1][1:])),
            "gradients are not those",
        ),
        (
            spmd.start_all_reduce,
            lambda n: setattr(n, "args", (n.args[0], "data", n.args[2])),
            r"along data \(1 ranks\)",
        ),
        (
            spmd.accumulate_grads,
            lambda n: setattr(n, "args", ("nobody", n.args[1])),
            "accumulate_grads is of nobody, which the stage has not",
        ),
        (
            spmd.start_all_reduce,
            lambda n: n.meta.update(val=n.meta["val"].unsqueeze(0)),
            r"along tensor \(2 ranks\) does not make \[1, ",
        ),
        (spmd.start_all_reduce, lambda n: drop(n.graph, n), "which starts nothing"),
    ],
)
def test_a_fault_of_what_a_routine_does_beside_computing_is_found(
    target: object, change: Callable[[fx.Node], None], message: str
) -> None:
    lowered = lowered_of(Cell("gpt-tiny", tensor=2))
    change(all_nodes(lowered, target)[0])
    with pytest.raises(LoweringError, match=message):
        verify(lowered)


def test_a_transfer_of_another_type_is_found() -> None:
    lowered = replace(pipelined())
    first, *others = lowered.transfers
    object.__setattr__(lowered, "transfers", (replace(first, dtype="float16"), *others))
    with pytest.raises(LoweringError, match=r"and received by stage \d as float16"):
        verify(lowered)


def graph_of(*lines: str) -> fx.Graph:
    """A small graph: ``relu x`` and the like, ``over`` for what is written over its first operand."""
    graph = fx.Graph()
    made = {"x": graph.placeholder("x")}
    for line in lines:
        name, op, *operands = line.split()
        nodes = tuple(made[o] for o in operands)
        if op == "start":
            made[name] = graph.call_function(spmd.start_all_reduce, (*nodes, "data", "sum"))
        elif op == "wait":
            made[name] = graph.call_function(spmd.wait, nodes)
        else:
            made[name] = graph.call_function(getattr(aten, op.removesuffix("!")).default, nodes)
            made[name].meta.update({"over": 0} if op.endswith("!") else {})
    graph.output(tuple(made.values())[-1:])
    return graph


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (("a relu x", "b neg! a", "c relu b"), ""),
        (("a relu x", "b neg! a", "c relu a"), "reads relu_default, which was written over"),
        (("a relu x", "v t a", "b neg! a", "c relu v"), "reads t_default, which was written over"),
        (("a start x", "b relu x", "c wait a"), ""),
        (("a start x", "b relu x"), "not waited for exactly once: start_all_reduce"),
        (("a start x", "b wait a", "c wait a"), "2 times"),
        (("a start x", "b relu a", "c wait a"), "has not arrived"),
        (("a relu x", "s start a", "b neg! a", "c wait s a"), "which was written over"),
    ],
)
def test_a_fault_of_a_graph_is_found(lines: tuple[str, ...], message: str) -> None:
    if not message:
        check_graph(graph_of(*lines), "here")
        return
    with pytest.raises(LoweringError, match=message):
        check_graph(graph_of(*lines), "here")
