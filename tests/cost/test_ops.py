"""Seconds of ops by the roofline, against hand counts."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import fx

from trainyard.cost.measured import MeasuredOps
from trainyard.cost.ops import BUFFER_OPS, OpSeconds, Roofline, is_free, op_bytes
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


def test_products_last_at_a_rate_of_their_own_and_attention_does_not():
    lasting = replace(DEVICE, efficiency=Efficiency(0.5, 3e6, 0.5, 0.0, 0.25))
    size = 2**14
    product = node_of(aten.mm.default, (size, size), (size, size))
    # Half the rate, and the same ramp.
    assert Roofline()(product, lasting) == pytest.approx(1e-6 + (2 * size**3 + 0.75e6 / 2) / 0.25e12)
    heads = (1, 8, 4096, 64)
    attention = node_of(aten._scaled_dot_product_flash_attention_for_cpu.default, *[heads] * 3, out=heads)
    assert Roofline()(attention, lasting) == pytest.approx(1e-6 + (4 * 8 * 4096**2 * 64 + 0.75e6) / 0.5e12)


# Half of its rates is reached at 3e6 flops of 16 bits, which take as long as 0.75e6 of float32, and at 2 kB.
RAMPS = replace(DEVICE, memory_bandwidth_bytes_per_s=1e12, efficiency=Efficiency(0.5, 3e6, 0.25, 2e3))


@pytest.mark.parametrize(
    ("target", "shapes", "dtype", "work_s"),
    [
        # Bound by computing.
        (aten.mm.default, [(700, 900), (900, 500)], torch.float32, (2 * 700 * 900 * 500 + 0.75e6) / 0.5e12),
        (aten.mm.default, [(700, 900), (900, 500)], torch.bfloat16, (2 * 700 * 900 * 500 + 3e6) / 2e12),
        (
            aten.bmm.default,
            [(3, 70, 900), (3, 900, 50)],
            torch.float32,
            (6 * 70 * 900 * 50 + 0.75e6) / 0.5e12,
        ),
        # Bound by memory: one row, or no product.
        (aten.mm.default, [(1, 900), (900, 500)], torch.float32, (4 * (900 + 450_000 + 500) + 2e3) / 0.25e12),
        (
            aten.add.Tensor,
            [(700, 900), (700, 1)],
            torch.bfloat16,
            (2 * 700 * (900 + 1 + 900) + 2e3) / 0.25e12,
        ),
        (aten.sum.default, [(700, 900)], torch.float32, (4 * (630_000 + 1) + 2e3) / 0.25e12),
        # Bound by its launch.
        (aten.add.Tensor, [(3,), (3,)], torch.float32, (4 * 9 + 2e3) / 0.25e12),
    ],
)
def test_an_op_takes_the_longest_of_what_bounds_it(target, shapes, dtype, work_s):
    node = node_of(target, *shapes, dtype=dtype)
    assert Roofline()(node, RAMPS) == pytest.approx(1e-6 + work_s)


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


@pytest.mark.parametrize(
    ("target", "operands", "extra", "out", "num_bytes"),
    [
        # As much of the table as is written, the indices, and what is written.
        (aten.gather.default, ["f1000x50", "i3x50"], {1: 0}, (3, 50), 2 * 600 + 1200),
        (aten.index_select.default, ["f1000x50", "i3"], {1: 0}, (3, 50), 2 * 600 + 24),
        # Of the scores of 5 rows of 70 the loss reads none, to speak of; its gradient writes them all.
        (aten.nll_loss_forward.default, ["f5x70", "i5"], {}, (), 40 + 4),
        (aten.nll_loss_backward.default, ["f1", "f5x70", "i5"], {}, (5, 70), 4 + 40 + 1400),
    ],
)
def test_what_is_looked_up_in_is_not_read(target, operands, extra, out, num_bytes):
    graph = fx.Graph()
    args = []
    for i, text in enumerate(operands):
        args.append(graph.placeholder(f"x{i}"))
        shape = tuple(map(int, text[1:].split("x")))
        args[-1].meta["val"] = torch.empty(
            shape, dtype={"f": torch.float32, "i": torch.int64}[text[0]], device="meta"
        )
    for position, value in extra.items():
        args.insert(position, value)
    node = graph.call_function(target, tuple(args))
    node.meta["val"] = torch.empty(out, device="meta")
    assert op_bytes(node) == num_bytes


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

    # What each reads, then what it writes: parameters, gradients, moments, a source and a target.
    moved = {
        "copy": "s t", "clone": "s t", "accumulate": "st t", "norm": "s", "adamw": "pgmv pmv", "sgd": "pg p",
        "sgd_momentum": "pgm pm",
    }  # fmt: skip
    assert moved.keys() == BUFFER_OPS.keys()
    for what, letters in moved.items():
        num_bytes = len(letters.replace(" ", "")) * 700 * 2
        assert Only().buffer_op_s(what, 700, 2, DEVICE) == pytest.approx(num_bytes / 0.5e9 + 1e-6)
    assert Only().buffer_op_s("adamw", 0, 4, DEVICE) == 0.0


def test_measured_passes_lie_on_the_line_through_their_two_points():
    points = {"copy": ((1000, 2e-3), (5000, 4e-3)), "norm": ((1000, 2e-3), (5000, 1e-3))}
    ops = MeasuredOps({}, points)
    found = [
        ops.buffer_op_s("copy", n, size, DEVICE) for n, size in ((3000, 4), (3000, 2), (9000, 4), (0, 4))
    ]
    assert found == pytest.approx([3e-3, 2.25e-3, 6e-3, 0.0])
    # A larger one that took less was disturbed, or the smaller one was: neither is believed to grow.
    assert ops.buffer_op_s("norm", 9000, 4, DEVICE) == pytest.approx(2e-3)
    assert ops.buffer_op_s("sgd", 700, 4, DEVICE) == pytest.approx(3 * 2800 / 0.5e9 + 1e-6)
