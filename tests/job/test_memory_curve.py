"""The memory of every rank of a tiny plan is, at every point of a step, as drawn by hand from the sizes of its values.

The model is two linear layers, each under a tanh. A rank's microbatch has 7 rows: 5 values each between the layers, 2
after them. An op takes a second and a send no time that matters, so the order of all changes is known.
"""

from __future__ import annotations

import pytest
import torch
from made_plan import made_plan
from torch import nn

from trainyard.cost.ops import OpSeconds, is_free
from trainyard.hardware.cluster import Cluster
from trainyard.hardware.local import cluster_of_profile
from trainyard.hardware.parse import parse_cluster
from trainyard.hardware.profile import CollectiveSample, MachineProfile, MatmulSample, MemorySample
from trainyard.job.lower.lower import lower
from trainyard.job.schedules import make_schedule
from trainyard.job.simulate import simulate_plan
from trainyard.job.simulation.result import Simulation
from trainyard.job.task import Task
from trainyard.program.model import Model

ROWS = 7
H, Y, ONE = ROWS * 5 * 4, ROWS * 2 * 4, 4  # bytes between the layers, of the result, and of a number
W1, W2 = 5 * 3 * 4, 2 * 5 * 4
# The last layer holds, beside H and Y that it keeps, at most two values like Y and a number.
LAST = 2 * Y + ONE


class ASecond(OpSeconds):
    """Every op takes a second, and a pass over a buffer an eighth."""

    def __call__(self, node, device):
        return 0.0 if is_free(node) else 1.0

    def buffer_op_s(self, what, num_elements, element_bytes, device):
        return 0.125


def this_machine(num_ranks: int) -> Cluster:
    """Processes that send over gloo, each on a core of its own."""
    samples = (
        CollectiveSample(kind, count, size, 1e-6)
        for kind in ("all_reduce", "all_gather", "reduce_scatter", "send")
        for count in (2, 4)
        for size in (1.0, 1e9)
    )
    product, stream = MatmulSample("float32", 1, 1e9, 1.0), MemorySample(1, 1e9, 1.0)
    profile = MachineProfile("cpu", num_ranks, 2**30, "2", 1e-6, (product,), (stream,), tuple(samples))
    return cluster_of_profile(profile, num_ranks)


def simulated(schedule, stages, microbatches, data=1, zero=0, recompute=(), over_gloo=False) -> Simulation:
    net = nn.Sequential(nn.Linear(3, 5, bias=False), nn.Tanh(), nn.Linear(5, 2, bias=False), nn.Tanh())
    rows = ROWS * microbatches * data
    loss = lambda m, batch: m(batch["x"]).square().sum() / len(batch["x"])  # noqa: E731
    program = Task(Model("two", net, loss, {"x": torch.randn(rows, 3)})).program(rows // microbatches)
    plan = made_plan(
        program, rows, make_schedule(schedule, stages, microbatches, 1), data=data, zero=zero,
        starts=("2:mm",) * (stages - 1), recompute=recompute,
    )  # fmt: skip
    gpus = parse_cluster(f"1x{stages * data}xA100-80G")
    cluster = this_machine(stages * data) if over_gloo else gpus
    return simulate_plan(lower(program, plan), cluster, ASecond())


def curve(found: Simulation, rank: int) -> list[int]:
    """Every level of a step beside what is held all the time."""
    used = found.timeline.memory_curve(rank)[1] - found.timeline.graph.device_base_bytes[rank]
    return used.tolist()


# What the first of two stages makes in a forward pass: the product and its tanh, of which it keeps the second.
F, KEPT = 2 * H, H
# Its backward pass: the gradient that arrived, the tanh, and the gradient of the product.
B = 3 * H
ONE_F_ONE_B_LAST = [
    0, H + LAST, H + Y,  # F0
    H + Y + H + LAST, 2 * H,  # B0; what F1 receives has room; the gradient is on its way
    2 * H + LAST, H + LAST, H + Y,  # F1, while the gradient leaves
    H + Y + H + LAST, 2 * H,  # B1
    2 * H + LAST, H + LAST, H + Y,  # F2
    H + Y + LAST, H, 0,  # B2
]  # fmt: skip
PIPELINES = {
    "1F1B": ("one_f_one_b", 3, (), [
        0, F, KEPT,  # F0
        KEPT + H + F, 2 * KEPT + H,  # F1, and room for the gradient of B0
        KEPT + B, KEPT,  # B0
        KEPT + H + F, 2 * KEPT + H,  # F2, and room for B1
        KEPT + H + B, KEPT + H,  # B1, and room for B2
        B, 0,
    ], ONE_F_ONE_B_LAST),
    "GPipe": ("gpipe", 2, (), [
        0, F, KEPT, KEPT + H + F, 2 * KEPT + H,  # F0, F1
        KEPT + H + B, KEPT + H, B, 0,  # B0, B1
    ], [
        0, H + H + LAST, H + H + Y,  # F0, and room for F1
        H + Y + H + LAST, 2 * (H + Y),  # F1
        2 * (H + Y) + LAST, H + Y + H,  # B0
        H + Y + H + LAST, H + Y + LAST, H, 0,  # B1, while the gradient of B0 leaves
    ]),
    # Nothing of the first stage is kept: in the backward pass it is made again beside the gradient that arrived.
    "1F1B, recomputed": ("one_f_one_b", 3, ("0:*", "1:*"), [
        0, F, H,  # F0; its result is on its way
        H + H + F, H + F, H + H, H,  # F1 while it leaves, and room for B0
        B, 0,  # B0
        H + F, H + H, H,  # F2, and room for B1
        H + B, H, B, 0,  # B1, and room for B2
    ], ONE_F_ONE_B_LAST),
    # The first stage has no gradient to send on: all of its backward pass is that of the weights.
    "zero-bubble": ("zero_bubble_h1", 3, (), [
        0, F, KEPT, KEPT + F, 2 * KEPT,  # F0, F1
        2 * KEPT + H, KEPT + B, KEPT,  # room for the gradient of W0; W0
        KEPT + F, 2 * KEPT,  # F2
        2 * KEPT + H, KEPT + B, KEPT,  # W1
        KEPT + H, B, 0,  # W2
    ], [
        0, H + LAST, H + Y,  # F0
        # I0 makes the gradient beside that of the result, which it keeps for W0 in place of the result.
        H + Y + H + H, H + Y + H + H,  # room for F1
        H + Y + 2 * H + LAST, H + Y + H + LAST, 2 * (H + Y),  # F1, while the gradient leaves
        2 * (H + Y) + H, 2 * (H + Y) + H,  # I1
        2 * (H + Y) + 2 * H + W2, 2 * (H + Y) + H + W2, H + Y + H,  # W0, and room for F2
        H + Y + H + LAST, 2 * (H + Y),  # F2
        2 * (H + Y) + H, 2 * (H + Y) + H,  # I2
        2 * (H + Y) + H + W2, 2 * (H + Y) + W2, H + Y,  # W1
        H + Y + W2, 0,  # W2
    ]),
}  # fmt: skip


@pytest.mark.parametrize("name", PIPELINES)
def test_every_point_of_a_pipeline_is_as_drawn(name):
    schedule, microbatches, recompute, *drawn = PIPELINES[name]
    found = simulated(schedule, 2, microbatches, recompute=recompute)
    assert [curve(found, rank) for rank in range(2)] == drawn


# One stage: both layers in a pass. Backward, the gradient of the second weight waits for that of the first.
ALL, STEP = H + Y, H + H + H + W2
# 25 weights on three ranks: 27 with padding, of which a rank has 9.
WHOLE, SHARE = 27 * 4, 9 * 4
PASSES = [0, F, ALL, ALL + F, 2 * ALL, ALL + STEP, ALL, STEP]
# With gradients cut: a flat copy of all of them and the part of this rank, of the last two microbatches.
SENT = WHOLE + SHARE
ZERO = {
    0: (2, 100, 100, 200, [*PASSES, 0]),
    # The part of the sum until the update; then the part of the weights that is gathered.
    1: (2, WHOLE, WHOLE, 2 * SHARE, [*PASSES, SHARE, 0, SHARE, 0]),
    2: (3, WHOLE, SHARE, 2 * SHARE, [
        0, F, ALL, ALL + F, 2 * ALL, 2 * ALL + F, 3 * ALL,
        2 * ALL + STEP, 2 * ALL + W1 + W2, 2 * ALL + W1 + W2 + SENT, 2 * ALL + SENT,
        ALL + SENT + STEP, ALL + SENT + W1 + W2, ALL + SENT + W1 + W2 + SENT, ALL + 2 * SENT,
        # The third waits until the first has been sent, and takes its place.
        2 * SENT + STEP, 2 * SENT + W1 + W2, SENT + W1 + W2 + SENT, 2 * SENT, 0,
        SHARE, 0,
    ]),
    # Weights are gathered for the forward pass, and again in the backward pass where the second layer needs its own.
    3: (2, SHARE, SHARE, 2 * SHARE, [
        0, WHOLE, WHOLE + F, ALL, ALL + WHOLE, ALL + WHOLE + F, 2 * ALL,
        2 * ALL + LAST, 2 * ALL + W2, 2 * ALL + W2 + WHOLE, 2 * ALL + W2 + WHOLE + H,
        ALL + W1 + W2, ALL + W1 + W2 + SENT, ALL + SENT,
        SENT + ALL + LAST, SENT + ALL + W2, SENT + ALL + W2 + WHOLE, SENT + ALL + W2 + WHOLE + H,
        SENT + W1 + W2, SENT + W1 + W2 + SENT, 2 * SENT, 0,
    ]),
}  # fmt: skip


@pytest.mark.parametrize("stage", ZERO)
def test_every_point_of_each_stage_of_zero_is_as_drawn(stage):
    microbatches, *held, drawn = ZERO[stage]
    found = simulated("gpipe", 1, microbatches, data=3, zero=stage)
    assert [found.memory[0][kind] for kind in ("parameters", "gradients", "optimizer")] == held
    assert curve(found, 0) == drawn
    assert sum(held) + max(drawn) == found.tensor_bytes[0]


def test_the_part_of_a_sum_is_held_until_the_update_has_read_it():
    """Of its norm and its update, an eighth of a second each."""
    found = simulated("gpipe", 1, 2, data=3, zero=1)
    times_s = found.timeline.memory_curve(0)[0]
    made, let_go = times_s[len(PASSES)], times_s[len(PASSES) + 1]
    assert let_go - made == pytest.approx(0.25, abs=1e-3)


def test_every_point_of_a_pipeline_with_divided_optimizers_is_as_drawn():
    """Two stages on two ranks each, which divide 15 weights, 16 with padding, and 10."""
    found = simulated("one_f_one_b", 2, 3, data=2, zero=1)
    first, last = 8 * 4, 5 * 4
    assert curve(found, 0) == [*PIPELINES["1F1B"][3][:-1], first, 0, first, 0]
    assert curve(found, 1) == [
        *ONE_F_ONE_B_LAST[:-2],
        # The sum of gradients is on its way while the last gradient of the values is made.
        Y + last, H + Y + last, H + last, last, 0, last, 0,
    ]  # fmt: skip


def test_gloo_holds_a_copy_of_what_it_reduces_and_gathers():
    found = simulated("gpipe", 1, 2, data=3, zero=1, over_gloo=True)
    update = [SHARE + WHOLE, SHARE, 0, SHARE + WHOLE, SHARE, 0]
    assert curve(found, 0) == [*PASSES, *update]


def test_what_gloo_sends_is_held_until_its_receiver_has_answered():
    """The gradient of B0 answers to F0 and F1, which the last stage takes before it."""
    found = simulated("gpipe", 2, 2, recompute=("0:*", "1:*"), over_gloo=True)
    assert curve(found, 0) == [
        0, F, H, H + H + F, 3 * H,  # F0, F1, whose results stay; room for the gradient of B0
        B + H, H, B, 0,  # B0, and room for B1
    ]  # fmt: skip
