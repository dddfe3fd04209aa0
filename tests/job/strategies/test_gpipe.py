"""GPipe (arXiv 1811.06965): the bubble, balanced partitions, and what is kept between the passes."""

import itertools

import pytest
from counting import planned, small_gpt
from hypothesis import given
from hypothesis import strategies as st

from trainyard.job.balance import balanced_cuts
from trainyard.job.schedules import dry_run, make_schedule
from trainyard.job.strategies.parallel.gpipe import bubble_fraction


@pytest.mark.parametrize(("stages", "microbatches"), [(2, 1), (4, 4), (4, 16), (8, 32)])
def test_bubble(stages: int, microbatches: int) -> None:
    # Section 2.3: O((K - 1) / (M + K - 1)), whatever the ratio of backward to forward.
    for backward_s in (1.0, 2.0, 3.0):
        run = dry_run(make_schedule("gpipe", stages, microbatches), {"F": 1.0, "B": backward_s})
        busy_s = microbatches * (1.0 + backward_s)
        assert 1 - busy_s / run.makespan_s == pytest.approx(bubble_fraction(stages, microbatches))


def test_bubble_is_negligible_at_four_times_as_many_microbatches() -> None:
    # Section 2.3: "negligible when M >= 4 x K".
    assert all(bubble_fraction(k, 4 * k) < 0.2 for k in range(2, 65))
    assert bubble_fraction(8, 8) > 0.4


def test_only_partition_inputs_are_kept() -> None:
    _, lowered = planned(small_gpt(4, rows=8), "gpipe(stages=2, microbatches=4)", "1x2xA100-80G")
    for stage in lowered.stages:
        forward, backward = stage.segments["F"], stage.segments["B"]
        kept = {s.name for s in backward.inputs if s.kind == "value"}
        assert not kept & set(forward.outputs), "a value made inside the partition is kept"
    first, second = lowered.stages
    entering = {s.name for s in second.segments["F"].inputs if s.kind == "value"}
    # Section 2.3: "only stores output activations at the partition boundaries".
    assert len(entering) == 1
    assert entering <= {s.name for s in second.segments["B"].inputs}
    assert not [s for s in first.segments["F"].inputs if s.kind == "value"]


def test_partitions_are_balanced() -> None:
    plan, _ = planned(small_gpt(8, rows=4), "gpipe(stages=4, microbatches=2)", "1x4xA100-80G")
    # Eight equal layers and a small output layer: the last stage starts no later than an even split.
    assert plan.stage_starts == tuple(f"blocks.{i}.norm_1:native_layer_norm" for i in (2, 4, 6))


@given(st.lists(st.integers(1, 20), min_size=1, max_size=9), st.data())
def test_cuts_are_optimal(costs: list[int], data: st.DataObject) -> None:
    parts = data.draw(st.integers(1, len(costs)))

    def worst(cuts: tuple[int, ...]) -> int:
        bounds = (0, *cuts, len(costs))
        return max(sum(costs[a:b]) for a, b in itertools.pairwise(bounds))

    best = min(worst(c) for c in itertools.combinations(range(1, len(costs)), parts - 1))
    assert worst(balanced_cuts(costs, parts)) == best
