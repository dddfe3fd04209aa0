"""A trace runs what its graph runs, and makes up what it lacks: tensors of the same types and layouts, in range."""

from __future__ import annotations

import operator

import pytest
import torch
from made_graphs import fake_graph, small_trace

from trainyard.cost.ops import is_free
from trainyard.cost.trace import OpTimes, SyntheticTensor, run_trace, trace_graph
from trainyard.program.capture import capture
from trainyard.zoo import build


def test_a_trace_computes_what_the_graph_computes():
    trace, times = small_trace(), OpTimes()
    values = {"x": torch.randn(64, 32), "w": torch.randn(16, 32)}
    run_trace(trace, values, times)
    torch.testing.assert_close(values["y"], torch.relu(values["x"] @ values["w"].t()))
    assert set(times.seconds) == trace.signatures
    assert len(times.seconds) == 2  # the transpose is a view


@pytest.mark.parametrize("name", ["gpt-tiny", "moe-tiny", "dlrm-tiny", "resnet-tiny"])
def test_a_training_step_runs_on_made_up_inputs(name):
    program = capture(build(name))
    inputs = [i.path for i in program.inputs]
    trace = trace_graph(program.graph, inputs, [f"{o.kind}:{o.path}" for o in program.outputs])
    times = OpTimes()
    run_trace(trace, {}, times)
    priced = [n for n in program.graph.nodes if n.op == "call_function" and not is_free(n)]
    assert times.failed == {}
    assert sum(map(len, times.seconds.values())) == len(priced)


LONG = torch.zeros(8, 5, dtype=torch.int64)
LOOK_UPS = {
    "gather with a computed index": lambda x, i: x.gather(1, i - 7),
    "scatter": lambda x, i: x.scatter_add(1, i * 100, x),
    "index with a negative number": lambda x, i: x[i[:, 0] - 1000],
    "index behind a mask": lambda x, i: torch.ops.aten.index.Tensor(x, [None, i[0] + 50]),
    "index_put": lambda x, i: torch.ops.aten.index_put(x, [i[:, 0] + 9], x),
    "embedding": lambda x, i: torch.nn.functional.embedding(i * 77 + 3, x),
    "nll": lambda x, i: torch.nn.functional.nll_loss(x.log_softmax(1), i[:, 0] + 11),
}


@pytest.mark.parametrize("name", LOOK_UPS)
def test_computed_indices_are_kept_in_range(name):
    graph = fake_graph(lambda x, i: (LOOK_UPS[name](x, i),), torch.empty(8, 5), LONG)
    times = OpTimes()
    run_trace(trace_graph(graph, ["x", "i"], ["y"]), {}, times)
    assert times.failed == {}


def test_made_up_operands_lie_in_memory_as_those_of_the_graph():
    turned = torch.empty(6, 4, 2).permute(2, 0, 1)
    graph = fake_graph(lambda x: (x.permute(1, 2, 0).view(24, 2).relu(),), turned)
    trace, values = trace_graph(graph, ["x"], ["y"]), {}
    run_trace(trace, values, OpTimes())
    assert values["x"].stride() == turned.stride()
    assert values["x"].untyped_storage().nbytes() == turned.untyped_storage().nbytes()


def test_a_failing_op_is_noted_and_what_follows_runs_on_what_is_made_up():
    def step(x):
        q, r = torch.linalg.qr(x)  # which there is not of 16 bits
        return q, r, (q @ r).relu()

    graph = fake_graph(step, torch.empty(60, 40, dtype=torch.bfloat16))
    trace, times = trace_graph(graph, ["x"], ["q", "r", "y"]), OpTimes()
    values = {"x": torch.ones(60, 40, dtype=torch.bfloat16)}
    for _ in range(2):
        run_trace(trace, values, times)
    ((signature, why),) = times.failed.items()
    assert "linalg_qr" in signature
    assert "not implemented for 'BFloat16'" in why
    assert sorted(map(len, times.seconds.values())) == [2, 2]
    torch.testing.assert_close(values["y"], (values["q"] @ values["r"]).relu())
    for name, node in zip("qr", graph.find_nodes(op="call_function", target=operator.getitem), strict=True):
        made, of_graph = values[name], node.meta["val"]
        assert (made.shape, made.stride(), made.dtype) == (of_graph.shape, of_graph.stride(), of_graph.dtype)
        # Numbers with which no op overflows, and half of which are below zero.
        assert 0.04 < made.float().std() < 0.06
        assert 0.4 < (made > 0).float().mean() < 0.6


@pytest.mark.parametrize(
    ("dtype", "below", "allowed"),
    [
        ("int64", 3, {0, 1, 2}),
        ("uint8", 1000, set(range(255))),
        ("bool", 1000, {False, True}),
        ("int32", 1, {0}),
        ("int32", 0, {0}),  # of an empty table
    ],
)
def test_made_up_integers_are_below_their_bound(dtype, below, allowed):
    made = SyntheticTensor((900, 5), (5, 1), dtype, below).make()
    assert made.dtype == getattr(torch, dtype)
    assert set(made.flatten().tolist()) == allowed


def test_a_made_up_tensor_has_the_memory_of_the_one_that_it_stands_for():
    """One that is broadcast has less than its shape says, one with gaps more, an empty one none."""
    for shape, strides, num_elements in (((4, 7), (0, 1), 7), ((4, 7), (10, 1), 37), ((4, 0), (1, 1), 0)):
        of_graph = SyntheticTensor(shape, strides, "bfloat16")
        assert (of_graph.num_elements, of_graph.num_bytes) == (num_elements, 2 * num_elements)
        made = of_graph.make()
        assert (tuple(made.shape), made.stride()) == (shape, strides)
        assert made.untyped_storage().nbytes() == 2 * num_elements
