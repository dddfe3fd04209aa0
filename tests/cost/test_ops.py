"""Seconds of ops by the roofline, against hand counts."""

from __future__ import annotations

import pytest
import torch
from torch import fx

from trainyard.cost.ops import OpSeconds, Roofline, is_free, op_bytes
from trainyard.hardware.devices import DeviceSpec, Efficiency

aten = torch.ops.aten

DEVICE = DeviceSpec(
    name="round numbers",
    memory_bytes=2**30,
    peak_flops_per_s={"float32": 1e12, "tf32": 2e12, "bfloat16": 4e12},
    memory_bandwidth_bytes_per_s=1e9,
    launch_s=1e-6,
    efficiency=Efficiency(0.5, 0.0, 0.5, 0.0),
    source="none",
)


def node_of(target, *operands, dtype=torch.float32, out=None, extra=()):
    """A graph of one op on operands of the given shapes."""
    graph = fx.Graph()
    nodes = []
    for i, shape in enumerate(operands):
        nodes.append(graph.placeholder(f"x{i}"))
        nodes[-1].meta["val"] = torch.empty(shape, dtype=dtype, device="meta")
    node = graph.call_function(target, (*nodes, *extra))
    shape = out if out is not None else tuple(target(*(n.meta["val"] for n in nodes), *extra).shape)
    node.meta["val"] = torch.empty(shape, dtype=dtype, device="meta")
    return node


def test_a_large_product_takes_its_flops_at_the_reached_rate():
    node = node_of(aten.mm.default, (1024, 1024), (1024, 1024))
    assert Roofline()(node, DEVICE) == pytest.approx(
        1e-6 + max(2 * 1024**3 / 0.5e12, 3 * 4 * 1024**2 / 0.5e9)
    )


@pytest.mark.parametrize(("dtype", "tf32", "peak"), [
    (torch.float32, False, 1e12), (torch.float32, True, 2e12), (torch.bfloat16, False, 4e12)
])  # fmt: skip
def test_the_peak_is_that_of_the_type_and_tf32_must_be_asked_for(dtype, tf32, peak):
    size = 2**14  # so large that memory does not bind
    node = node_of(aten.mm.default, (size, size), (size, size), dtype=dtype)
    assert Roofline(tf32)(node, DEVICE) == pytest.approx(1e-6 + 2 * size**3 / (peak / 2))


def test_an_elementwise_op_takes_its_bytes():
    node = node_of(aten.add.Tensor, (1000, 1000), (1000, 1000))
    assert op_bytes(node) == 3 * 4 * 10**6
    assert Roofline()(node, DEVICE) == pytest.approx(1e-6 + 12e6 / 0.5e9)


def test_views_cost_nothing_and_copies_do():
    view, copy = node_of(aten.t.default, (8, 4)), node_of(aten.clone.default, (8, 4))
    assert is_free(view)
    assert Roofline()(view, DEVICE) == 0.0
    assert not is_free(copy)
    assert op_bytes(copy) == 2 * 8 * 4 * 4


def test_a_lookup_reads_the_rows_and_not_the_table():
    graph = fx.Graph()
    table, indices = graph.placeholder("table"), graph.placeholder("indices")
    table.meta["val"] = torch.empty(10**6, 16, device="meta")
    indices.meta["val"] = torch.empty(8, dtype=torch.int64, device="meta")
    node = graph.call_function(aten.embedding.default, (table, indices))
    node.meta["val"] = torch.empty(8, 16, device="meta")
    assert op_bytes(node) == 2 * 8 * 16 * 4 + 8 * 8


def test_a_broadcast_operand_is_read_once():
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.empty(1, 8, device="meta")
    wide = graph.call_function(aten.expand.default, (x, [100, 8]))
    wide.meta["val"] = torch.empty(100, 8, device="meta")
    node = graph.call_function(aten.clone.default, (wide,))
    node.meta["val"] = torch.empty(100, 8, device="meta")
    assert op_bytes(node) == 8 * 4 + 100 * 8 * 4


def test_equal_ops_are_priced_once_and_different_types_apart():
    roofline = Roofline()
    for dtype in (torch.float32, torch.bfloat16):
        for _ in range(3):
            roofline(node_of(aten.mm.default, (64, 64), (64, 64), dtype=dtype), DEVICE)
    assert len(roofline._known) == 2


def test_passes_over_buffers_take_their_bytes():
    class Only(OpSeconds):
        def __call__(self, node: fx.Node, device: DeviceSpec) -> float:
            raise AssertionError("a pass is no op")

    assert Only().buffer_op_s("adamw", 10**6, 4, DEVICE) == pytest.approx(7 * 4e6 / 0.5e9 + 1e-6)
    assert Only().buffer_op_s("adamw", 0, 4, DEVICE) == 0.0
