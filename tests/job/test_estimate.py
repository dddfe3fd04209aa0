"""What the search estimates of a point is arithmetic on its unlike stages, its links and its optimizer.

All of it is computed by hand, on devices with round numbers: an op streams 0.5 GB/s, a message takes 1 us and then
1 GB/s. Sizes of messages are rounded to a percent.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from trainyard.hardware.cluster import Cluster, Node
from trainyard.hardware.devices import DeviceSpec, Efficiency
from trainyard.hardware.interconnects import Interconnect
from trainyard.hardware.nodes import switched_node
from trainyard.hardware.overhead import MemoryOverhead
from trainyard.job.auto.estimate import Stages, cut_stages, estimate
from trainyard.job.auto.overhead import overhead_bytes
from trainyard.job.auto.space import Point, Sharding
from trainyard.job.model_state import ParameterTypes, state_of
from trainyard.job.optimizer import OptimizerConfig
from trainyard.job.tables import LayerTable

LAUNCH_S = 3e-6
DEVICE = DeviceSpec(
    "round", 2**40, {"float32": 1e12}, 1e9, 1e-6, Efficiency(0.5, 0.0, 0.5, 0.0), "test", LAUNCH_S,
    overhead=MemoryOverhead(0, 1000, 4, 6, 2, 10, 7, 0.5),
)  # fmt: skip
LINK, NETWORK = Interconnect("switch", 1e9, 1.0, 1e-6, "test"), Interconnect("net", 1e8, 1.0, 1e-6, "test")
CLUSTER = Cluster("round", (Node(switched_node(8, LINK, 1, NETWORK), (DEVICE,) * 8),))


def point(pipeline, data, tensor=1, schedule="one_f_one_b", per_rank=1, zero=0, microbatches=4, expert=False):
    sharding = Sharding(tensor, False, expert, 1, 1)
    return Point(sharding, pipeline, data, microbatches, schedule, per_rank, "none", zero)


@pytest.mark.parametrize(
    ("at", "channels"),
    [
        # Groups of more than two have their 4 channels both ways; a send has 3, in two communicators for each neighbour.
        (point(1, 1), 0),
        (point(1, 3), 8 + 8 + 8),  # of all, along data, and of buckets
        (point(1, 1, tensor=3), 8 + 8),
        (point(2, 1), 4 + 2 * 3),
        (point(3, 1), 8 + 4 * 3),
        (point(2, 1, schedule="interleaved", per_rank=2), 4 + 4 * 3),  # the last sends to the first
        (point(1, 2, expert=True), 4 + (4 + 6) + 4),
        (point(2, 2, tensor=2), 8 + 4 + 4 + 4 + 2 * 3),
    ],
)
def test_groups_of_one_rank_have_no_buffers(at, channels):
    assert overhead_bytes(at, CLUSTER, 200) == 1000 + 10 * channels + 7 + 100


# Seconds, elements and bytes of two stages, the second the slower one and the first the larger one.
MS = 1e-3
TRAINED, FROZEN = np.array([6e6, 4e6]), np.array([1e6, 5e6])
TWO = Stages(
    ("a", "b"), MS * np.array([20.0, 30.0]), MS * np.array([50.0, 45.0]), np.zeros(2), TRAINED + FROZEN, TRAINED,
    np.array([2e6, 5e6]), np.array([3e6, 1e6]), np.array([4e6, 6e6]), 10_000_000,
)  # fmt: skip
MIXED = SimpleNamespace(weight_types=ParameterTypes(1.0, 2.0), optimizer=OptimizerConfig())


def ring_s(rounds, ranks, num_bytes):
    return LAUNCH_S + rounds * (1e-6 + num_bytes / ranks / 1e9)


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_a_step_is_its_slowest_rank_the_ramp_the_traffic_and_the_update(zero):
    found = estimate(point(2, 3, zero=zero), TWO, CLUSTER, MIXED)
    pipeline_s = 4 * 75 * MS + 70 * MS + 2 * (LAUNCH_S + 1e-6 + 1e7 / 1e9)
    # Of the rank that trains most: 24 MB of gradients and 12 MB of weights among three; 45 ms of backward hide the sums.
    scatter_s, gather_s = ring_s(2, 3, 24e6), ring_s(2, 3, 12e6)
    of_all_s = ring_s(2, 3, 2 * float((TRAINED + FROZEN).max()))
    assert 2 * scatter_s < 45 * MS
    traffic_s = {0: 0.0, 1: gather_s, 2: gather_s, 3: 4 * 2 * of_all_s}[zero]
    update_s = 7 * 24e6 / (3 if zero else 1) / 0.5e9
    assert found.step_s == pytest.approx(pipeline_s + traffic_s + update_s, rel=2e-3)


@pytest.mark.parametrize(("zero", "microbatches"), [(0, 1), (1, 1), (2, 4), (3, 4)])
def test_traffic_that_a_short_backward_pass_does_not_hide_is_seen(zero, microbatches):
    short = replace(one_rank(TWO), backward_s=MS * np.array([3.0]))
    found = estimate(point(1, 3, zero=zero), short, CLUSTER, MIXED)
    reduced = 4 * TRAINED.sum()
    seen_s = ring_s(4 if zero == 0 else 2, 3, reduced) - 3 * MS
    gathers = {0: 0, 1: 1, 2: 1, 3: 8}[zero]
    gathered = 2 * (TRAINED + FROZEN if zero == 3 else TRAINED).sum()
    update_s = 7 * reduced / (3 if zero else 1) / 0.5e9
    expected_s = 4 * 53 * MS + microbatches * seen_s + gathers * ring_s(2, 3, gathered) + update_s
    assert found.step_s == pytest.approx(expected_s, rel=4e-3)


def one_rank(stages: Stages) -> Stages:
    """The same in one stage."""
    arrays = {name: v.sum(keepdims=True) for name, v in vars(stages).items() if isinstance(v, np.ndarray)}
    return replace(stages, paths=("a",), **arrays)


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_memory_is_that_of_the_fullest_rank(zero):
    found = estimate(point(2, 3, zero=zero), TWO, CLUSTER, MIXED)
    # Weights of 16 bits, gradients, and the float32 copy with two moments; ZeRO-3 makes weights from the copy.
    parts = [0 if zero == 3 else 2, 4, 12]
    divided = [3 if zero >= 3 else 1, 3 if zero >= 2 else 1, 3 if zero >= 1 else 1]
    per_trained = sum(size / by for size, by in zip(parts, divided, strict=True))
    state = TRAINED * per_trained + FROZEN * 2 / divided[0]
    # 1F1B: the first rank holds two microbatches, the last one.
    comes = np.array([2 * 2e6 + 3e6, 5e6 + 1e6]) + (2 * 2 * np.array([4e6, 6e6]) if zero == 3 else 0)
    channels = 8 + 8 + 8 + 2 * 3
    beside = 1000 + 10 * channels + 7 + int(comes.max() / 2)
    assert found.memory_bytes == int((state + comes + beside).max())
    assert found.mean_memory_bytes == int((state + comes + beside).mean())


def test_of_interleaved_stages_a_rank_has_every_second_one():
    four = Stages(
        tuple("abcd"), MS * np.array([1.0, 2.0, 4.0, 8.0]), MS * np.array([3.0, 5.0, 7.0, 11.0]), np.zeros(4),
        np.array([1e6, 2e6, 3e6, 9e6]), np.array([1e6, 2e6, 3e6, 9e6]), np.array([1e6, 2e6, 4e6, 8e6]),
        np.array([7e6, 5e6, 6e6, 1e6]), np.zeros(4), 1000,
    )  # fmt: skip
    found = estimate(point(2, 1, schedule="interleaved", per_rank=2), four, CLUSTER, MIXED)
    # 15 ms and 26 ms a microbatch; half of the ramp is left.
    step_s = MS * (4 * 26 + 15 / 2) + 2 * (LAUNCH_S + 1e-6 + 1e-6) + 7 * 4 * 11e6 / 0.5e9
    assert found.step_s == pytest.approx(step_s, rel=1e-6)
    # Megatron-LM's order: 2 (p - r - 1) + (v - 1) p warm-up passes and one, of v stages: 5 / 2 and 3 / 2 microbatches.
    comes = np.array([2.5 * 5e6 + 7e6, 1.5 * 10e6 + 5e6])
    beside = 1000 + 10 * (4 + 4 * 3) + 7 + int(comes.max() / 2)
    assert found.memory_bytes == int((np.array([4e6, 11e6]) * 18 + comes + beside).max())


def test_of_the_slowest_rank_the_backward_pass_hides_the_sums():
    """The second rank has 30 ms of work and 2 ms of backward in it; the first one is faster, and mostly backward."""
    stages = replace(TWO, forward_s=MS * np.array([1.0, 28.0]), backward_s=MS * np.array([9.0, 2.0]))
    found = estimate(point(2, 3), stages, CLUSTER, MIXED)
    pipeline_s = 4 * 30 * MS + 10 * MS + 2 * (LAUNCH_S + 1e-6 + 1e7 / 1e9)
    assert found.step_s == pytest.approx(
        pipeline_s + ring_s(4, 3, 24e6) - 2 * MS + 7 * 24e6 / 0.5e9, rel=2e-3
    )


def test_messages_go_where_the_ranks_are():
    """Two nodes of four, and a tenth of the rate between them, which neighbours share."""
    node = Node(switched_node(4, LINK, 1, NETWORK), (DEVICE,) * 4)
    cluster = Cluster("two", (node, node))
    short = replace(one_rank(TWO), backward_s=MS * np.array([3.0]))
    across = estimate(point(1, 2, tensor=4), short, cluster, MIXED)
    # Four groups of two: in each of two rounds half of the gradients of four ranks crosses.
    sum_s = LAUNCH_S + 2 * (1e-6 + 4 * 40e6 / 2 / 1e8)
    assert across.step_s == pytest.approx(4 * 53 * MS + sum_s - 3 * MS + 7 * 40e6 / 0.5e9, rel=4e-3)
    # Pipeline ranks of four: sends cross, sums of gradients stay, of which the backward pass hides all.
    inside = estimate(point(2, 2, tensor=2), TWO, cluster, MIXED)
    send_s = LAUNCH_S + 1e-6 + 1e7 / 1e8
    assert inside.step_s == pytest.approx(4 * 75 * MS + 70 * MS + 2 * send_s + 7 * 24e6 / 0.5e9, rel=2e-3)


def test_stages_have_sums_and_maxima_of_their_layers():
    each = np.array([5.0, 1.0, 2.0, 7.0, 8.0])
    layers = LayerTable(tuple("vwxyz"), tuple("abcde"), each, 2 * each, 3 * each, 4 * each, 5 * each, 6 * each,
                        7 * each, 8 * each)  # fmt: skip
    cut = cut_stages(layers, 3, state_of(MIXED.weight_types, MIXED.optimizer))
    # Of 23 in three parts, the slowest is least as 8, 7 and 8. The border values are those of x and y.
    assert cut.paths == ("v", "y", "z")
    sums, largest = np.array([8.0, 7.0, 8.0]), np.array([5.0, 7.0, 8.0])
    assert (list(cut.forward_s), list(cut.backward_s)) == (list(sums), list(2 * sums))
    assert (list(cut.recompute_s), list(cut.kept_bytes)) == (list(3 * sums), list(4 * sums))
    assert (list(cut.elements), list(cut.trained)) == (list(7 * sums), list(8 * sums))
    assert (list(cut.working_bytes), list(cut.widest_elements)) == (list(6 * largest), list(7 * largest))
    assert cut.output_bytes == 5 * 7
