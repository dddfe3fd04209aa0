"""Memory of graphs, against hand counts and PyTorch's own trackers."""

from __future__ import annotations

import pytest
import torch
from allocated import most_allocated, profiled
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.fx.experimental.proxy_tensor import make_fx

from trainyard.cost.memory import Storage, graph_memory
from trainyard.program.capture import capture
from trainyard.program.model import Model
from trainyard.zoo import build


def external(graph):
    return {n: Storage(0, owned=False) for n in graph.nodes if n.op == "placeholder"}


def traced(function, *shapes):
    graph = make_fx(function, tracing_mode="fake")(*(torch.empty(s) for s in shapes)).graph
    return graph, [n for n in graph.nodes if n.op == "call_function"]


def test_what_was_used_last_is_freed():
    graph, _ = traced(lambda x: (x + 1).exp().neg(), (1000,))
    memory = graph_memory(graph, external(graph))
    assert memory.peak_bytes == 8000  # one op's operand and result
    assert memory.after_bytes[-1] == 4000  # the output


def test_a_small_part_keeps_the_whole_alive():
    graph, _ = traced(lambda x: x.exp().split(10)[0], (1000,))
    assert graph_memory(graph, external(graph)).after_bytes[-1] == 4000


def test_inputs_that_share_a_storage_count_once_and_are_freed_after_the_last_of_them():
    graph, _ = traced(lambda a, b: (a + 1, b.neg()), (1000,), (1000,))
    shared = Storage(4000)
    memory = graph_memory(graph, {n: shared for n in graph.nodes if n.op == "placeholder"})
    assert memory.before_bytes == 4000
    assert memory.peak_bytes == 12000
    assert memory.after_bytes[-1] == 8000


def mlp(rows=64, hidden=256):
    net = nn.Sequential(nn.Linear(128, hidden), nn.ReLU(), nn.Linear(hidden, 128))
    loss = lambda module, batch: module(batch["x"]).square().mean()  # noqa: E731
    return Model("mlp", net, loss, {"x": torch.randn(rows, 128)})


def test_a_training_step_of_an_mlp_equals_the_memory_tracker_of_pytorch():
    model = mlp(rows=512)
    program = capture(model)
    ours = graph_memory(program.graph, external(program.graph)).peak_bytes
    inputs = [n.meta["val"] for n in program.graph.nodes if n.op == "placeholder"]
    with FakeTensorMode(), torch.no_grad():
        values = [torch.zeros(v.shape, dtype=v.dtype) for v in inputs]
        tracker = MemTracker()
        tracker.track_external(*values)
        with tracker:
            kept = program.graph_module(*values)
    assert kept
    given = sum(v.numel() * v.element_size() for v in values)
    at_peak = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]
    assert ours == pytest.approx(at_peak["Total"] - given, rel=0.05)


@pytest.mark.parametrize("name", ["gpt-tiny", "llama-tiny", "bert-tiny", "dlrm-tiny", "moe-tiny"])
def test_a_step_equals_what_running_it_allocates(name):
    program = capture(build(name))
    inputs = [n.meta["val"] for n in program.graph.nodes if n.op == "placeholder"]
    values = [
        torch.randn(v.shape).to(v.dtype) if v.is_floating_point() else torch.zeros(v.shape, dtype=v.dtype)
        for v in inputs
    ]
    with torch.no_grad(), profiled() as profiler:
        kept = program.graph_module(*values)
    assert kept
    ours = graph_memory(program.graph, external(program.graph)).peak_bytes
    assert ours == pytest.approx(most_allocated(profiler), rel=0.05)
