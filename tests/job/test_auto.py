"""The search of ``auto``: never worse than a published strategy, repeats, and says why when nothing fits."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from multiprocessing import get_context
from types import SimpleNamespace

import numpy as np
import pytest
from small_models import batch_norm, count_layers, deviation, wide

from trainyard.hardware.cluster import Cluster
from trainyard.hardware.overhead import NO_OVERHEAD
from trainyard.hardware.parse import parse_cluster
from trainyard.job.auto.estimate import cut_stages, estimate, in_flight, ramp_left
from trainyard.job.auto.forked import map_forked
from trainyard.job.auto.points import estimate_all
from trainyard.job.auto.probes import Probes
from trainyard.job.auto.search import _not_simulated
from trainyard.job.auto.space import SCHEDULES, Point, Sharding
from trainyard.job.catalog import published_strategies
from trainyard.job.model_state import StateBytes
from trainyard.job.plan import DoesNotFitError, Plan, PlanError, parse_plan
from trainyard.job.planning import Infeasible, compare, load_model, make_setting, plan, simulate
from trainyard.job.schedules import dry_run, make_schedule
from trainyard.job.setting import RunnerUp
from trainyard.job.tables import COLUMNS, LayerTable
from trainyard.job.task import Task
from trainyard.program.blocks import block_path
from trainyard.program.model import Model
from trainyard.program.truncate import truncate

CLUSTER = "1x4xV100-32G"

MIXED = StateBytes(2, 4, 12, 2)


def small_memory(num_bytes: int, devices: int = 1) -> Cluster:
    """Devices with so little memory, all of it for tensors."""
    (node,) = parse_cluster(f"1x{devices}xT4").nodes
    small = tuple(replace(d, memory_bytes=num_bytes, overhead=NO_OVERHEAD) for d in node.devices)
    return Cluster("small", (replace(node, devices=small),))


def layers_by_stage(task: Task, chosen: Plan) -> list[int]:
    """How many parts of the module lie in every stage."""
    nodes = [
        n for n in task.program(chosen.rows_per_microbatch).graph.nodes if n.meta.get("phase") == "forward"
    ]
    bounds = [next(i for i, n in enumerate(nodes) if n.meta.get("address") == s) for s in chosen.stage_starts]
    paths = {block_path(n.meta["layer"]): i for i, n in reversed(list(enumerate(nodes))) if n.meta["layer"]}
    counts = Counter(sum(i >= b for b in bounds) for i in paths.values())
    return [counts[stage] for stage in range(len(bounds) + 1)]


@pytest.fixture(scope="module")
def found():
    return plan(wide(64), CLUSTER)


def test_repeats(found):
    again = plan(wide(64), CLUSTER)
    assert again.plan.to_text() == found.plan.to_text()


def test_saved_plan_simulates_to_the_same_time(found):
    saved = parse_plan(found.plan.to_text())
    assert simulate(saved, wide(64)).step_s == pytest.approx(found.simulation.step_s, rel=1e-9)


def test_says_how_many_plans_and_what_comes_next(found):
    text = found.plan.explain()
    assert "plans" in text
    assert "Next:" in text
    assert found.runners_up


def never_worse(model: Model, cluster: Cluster | str) -> None:
    best = plan(model, cluster)
    names = list(published_strategies())
    others = dict(zip(names, compare(model, cluster, names), strict=True))
    step_s = {
        name: other.simulation.step_s
        for name, other in others.items()
        if not isinstance(other, Infeasible) and other.simulation.fits
    }
    assert len(step_s) > 1
    assert best.simulation.step_s <= min(step_s.values()), step_s


def test_is_never_worse_than_a_published_strategy():
    # With many rows a rank takes all of its share at once, as data parallelism does.
    never_worse(wide(4096), "1x2xV100-16G")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "gpt-tiny",
        *(
            pytest.param(n, marks=pytest.mark.long)
            for n in ("resnet-tiny", "dlrm-tiny", "moe-tiny", "gnmt-tiny")
        ),
    ],
)
def test_is_never_worse_than_a_published_strategy_on_the_zoo(name):
    never_worse(load_model(name, 16), CLUSTER)


def test_what_follows_changes_the_plan_that_is_found(found):
    """``auto`` is a strategy as others are: it comes first, and what comes after it changes its plan."""
    composed = plan(wide(64), CLUSTER, "auto + sublinear(segments=2)")
    assert composed.plan.made_by == ("auto", "sublinear(segments=2)")
    assert composed.plan.recomputed > found.plan.recomputed
    assert replace(composed.plan, made_by=("auto",), reasons=(), tensors=found.plan.tensors) == replace(
        found.plan, reasons=()
    )
    assert composed.runners_up == found.runners_up
    assert composed.simulation.step_s > found.simulation.step_s


def test_nothing_is_decided_before():
    with pytest.raises(PlanError, match=r"zero\(stage=1\) decided before it; give auto first"):
        plan(wide(16), "1x2xT4", "zero(stage=1) + auto")


def test_a_process_that_may_have_no_children_searches_by_itself():
    """The fleet asks level 1 in a process that must end with its own."""
    process = get_context("fork").Process(target=lambda: [*map_forked(str, [1, 2])], daemon=True)
    process.start()
    process.join()
    assert process.exitcode == 0


def test_plans_that_leave_devices_idle_can_be_excluded():
    tiny = count_layers(4)
    assert plan(tiny, "1x2xT4", all_devices=True).plan.num_ranks == 2


def test_rows_are_not_cut_into_microbatches_without_need():
    chosen = plan(wide(4096), "1x2xV100-16G").plan
    assert (chosen.mesh.size("data"), chosen.num_microbatches) == (2, 1)


def test_accumulation_keeps_one_microbatch():
    """Where the whole batch does not fit, each microbatch runs backward before the next runs forward."""
    found = plan(wide(4096, width=64), small_memory(4 * 2**20))
    assert found.simulation.fits
    assert found.plan.num_microbatches > 1
    actions = found.plan.schedule.actions[0]
    assert [a.kind for a in actions] == ["F", "B"] * found.plan.num_microbatches


def test_nothing_fits():
    """What is short comes first, then what fits, then what was ruled out."""
    with pytest.raises(DoesNotFitError) as error:
        plan(wide(16), small_memory(10**6, devices=2))
    sentences = str(error.value).removesuffix(".").split(". ")
    assert sentences[:3] == [
        "wide, with 16 rows of 256, does not fit on small: a device needs 2.14 MiB by estimate, and a plan may use "
        "0.954 MiB of its memory: 1.19 MiB are missing",
        "What fits by estimate: 4 nodes like this one",
        "The plan with the least memory: pipeline 1 x data 1 x tensor 2, 16 microbatches of 1",
    ]
    assert sentences[3].startswith(
        "Ruled out: all 88 plans of the search, which need least with tensor 2 (2.14 MiB) to 1 (2.77 MiB); pipeline 1 "
    )
    assert sentences[4].startswith("Published systems that need too much memory: data_parallel, ")
    assert sentences[5].startswith("Left out: 4 plans that cannot run; the first, megatron: ")
    assert len(sentences) == 6


def test_simulated_plans_say_what_is_short():
    """Where plans were simulated, the one that is short of least says what is missing."""
    with pytest.raises(
        DoesNotFitError, match=r"on small: a device needs [\d.]+ MiB, and a plan may .* are missing\. "
    ):
        plan(batch_norm(4096), small_memory(3 * 2**20))


def test_ways_out_fit():
    """What is advised where nothing fits is seen to fit."""
    small = small_memory(10**6, devices=2)
    with pytest.raises(DoesNotFitError, match=r"What fits by estimate: 4 nodes like this one\."):
        plan(wide(16), small)
    assert plan(wide(16), replace(small, nodes=small.nodes * 4)).simulation.fits
    tiny = small_memory(4 * 2**20)
    with pytest.raises(
        DoesNotFitError,
        match=r"by estimate: a batch of 2048 rows; .*: in the loss, all rows at once are needed from the op std on\.",
    ):
        plan(deviation(4096), tiny)
    assert plan(deviation(2048), tiny).simulation.fits


def test_ways_out_that_do_not_fit_are_not_advised():
    with pytest.raises(DoesNotFitError, match="nothing else that was tried would fit"):
        plan(wide(16), small_memory(3 * 10**4, devices=2))


def test_plans_that_were_not_simulated_may_be_faster_and_that_is_said():
    best = SimpleNamespace(simulation=SimpleNamespace(step_s=2.0))
    others = [
        RunnerUp("a", 1.0, 9, True),  # simulated: does not fit
        RunnerUp("b", 1.5, 11, False),  # too large
        RunnerUp("c", 1.8, 9, False),
        RunnerUp("d", 1.9, 9, False),
        RunnerUp("e", 2.0, 9, False),
    ]
    assert _not_simulated(others, best, 10) == (
        "Not simulated: 2 plans that may be faster, by estimate at most 10.0% (c).",
    )
    assert _not_simulated(others[-1:], best, 10) == ()


def test_idle_devices_are_said_first():
    found = plan(count_layers(4), "1x4xT4", "zero(stage=3, degree=2)").plan
    assert found.num_ranks == 2
    assert found.explain().splitlines()[0].endswith("on 2 of the 4 devices of 1x4xT4 (2 idle): 2 data.")
    all_used = plan(count_layers(4), "1x4xT4", "zero(stage=3)").plan
    assert "on 4 ranks of 1x4xT4: 4 data." in all_used.explain()


def test_batch_that_divides_nowhere():
    with pytest.raises(PlanError, match="3 rows"):
        plan(load_model("vgg-tiny", 3), "8x8xT4")


def test_candidates_that_cannot_run_are_left_out_and_counted():
    # Each microbatch by itself: with statistics of the whole batch no rank has a row alone.
    found = plan(batch_norm(), "1x4xT4", all_devices=True, statistics="microbatch")
    assert "which cannot run; the first, 1 rows on a rank" in found.plan.explain()
    assert "Expected more than 1 value per channel" in found.plan.explain()
    assert found.plan.rows_per_microbatch > 1


def test_rows_that_depend_on_each_other_stay_together():
    setting = make_setting(Task(deviation(16)), parse_cluster("1x4xT4"))
    estimates = estimate_all(setting, Probes(setting), 2**40)
    assert {e.point.num_microbatches for e in estimates.points} == {1}
    assert {e.point.pipeline for e in estimates.points} == {1, 2, 4}
    why = "Only plans with one microbatch: in the loss, all rows at once are needed from the op std on."
    assert why in plan(deviation(16), "1x2xT4").plan.explain()


@pytest.mark.parametrize(("layers", "stages", "right"), [(30, 4, [7, 7, 8, 8]), (10, 3, [3, 3, 4])])
def test_stages_of_a_root_sequential_are_even(layers, stages, right):
    model = count_layers(layers)
    setting = make_setting(Task(model), parse_cluster(f"1x{stages}xT4"))
    probes = Probes(setting)
    assert probes.num_blocks == layers
    sharding = Sharding(1, False, False, 1, 8)
    probes.probe([sharding])
    cut = probes.stages(sharding, "none", stages)
    assert cut is not None
    firsts = [int(path) for path in cut.paths]
    assert sorted(b - a for a, b in zip(firsts, [*firsts[1:], layers], strict=True)) == right
    by_gpipe = plan(model, setting.cluster, "gpipe(microbatches=2)").plan
    assert sorted(layers_by_stage(Task(model), by_gpipe)) == right


def test_stages_are_cut_by_memory_where_those_of_equal_time_do_not_fit():
    seconds, elements, none = np.array([1.0, 1.0, 0.1, 0.1]), np.array([1e2, 1e2, 1e4, 1e4]), np.zeros(4)
    layers = LayerTable(
        tuple("0123"), tuple("abcd"), seconds, 2 * seconds, none, none, none, none, elements, elements
    )
    assert cut_stages(layers, 2, MIXED, "time").paths == ("0", "1")
    assert list(cut_stages(layers, 2, MIXED, "memory").elements) == [10_200, 10_000]


@pytest.mark.parametrize(("schedule", "per_rank"), SCHEDULES)
def test_many_microbatches_hold_no_more_than_two_per_rank(schedule, per_rank):
    for ranks, count in ((2, 1), (4, 2), (4, 4), (4, 20), (8, 48)):
        if per_rank == 1 or count % ranks == 0:
            run = dry_run(make_schedule(schedule, ranks, count, per_rank), dict.fromkeys("FBIW", 1.0))
            held = in_flight(schedule, ranks, count, per_rank)
            assert (per_rank * held).tolist() == list(run.peak_awaiting_backward)


def test_costs_between_probes_are_those_of_a_probe():
    setting = make_setting(Task(wide(64)), parse_cluster("1x1xA100-80G"))
    probed, between = Probes(setting), Probes(setting)
    at = {rows: Sharding(1, False, False, 1, rows) for rows in (4, 8, 16)}
    probed.probe([at[8]])
    between.probe([at[4], at[16]])
    exact, guess = probed.layers(at[8], "full"), between.layers(at[8], "full")
    assert exact is not None
    assert guess is not None
    assert list(guess.kept_bytes) == list(exact.kept_bytes)
    assert guess.forward_s == pytest.approx(exact.forward_s, rel=0.05)
    assert guess.backward_s == pytest.approx(exact.backward_s, rel=0.05)


def test_frozen_parameters_have_no_optimizer_state():
    model = wide(16)
    model.module.requires_grad_(False)
    model.module[-2].requires_grad_(True)
    setting = make_setting(Task(model), small_memory(2**40))
    estimates = estimate_all(setting, Probes(setting), 2**40)
    layer_bytes = 4 * (256 * 256 + 256)
    assert min(e.memory_bytes for e in estimates.points) < 10 * layer_bytes


def test_ladders_divide_the_batch():
    setting = make_setting(Task(wide(48)), parse_cluster("1x1xT4"))
    assert Probes(setting).ladder(Sharding(1, False, False, 1, 1), 48) == [1, 4, 16, 48]


def test_probes_stand_for_all_blocks():
    """A block of a model cut down to two costs what it costs in the whole model."""
    setting = make_setting(Task(count_layers(6)), parse_cluster("1x1xA100-80G"))
    sharding = Sharding(1, False, False, 1, 8)
    short, whole = Probes(setting), Probes(setting)
    whole.truncated = truncate(setting.task.model, kept=99)
    whole.short = setting
    for probes in (short, whole):
        probes.probe([sharding])
    assert short.truncated.count == 6
    expanded, right = short.layers(sharding, "none"), whole.layers(sharding, "none")
    assert expanded is not None
    assert right is not None
    assert expanded.paths == right.paths
    assert all(list(getattr(expanded, name)) == list(getattr(right, name)) for name in COLUMNS)


@pytest.fixture(scope="module")
def gpt2_in_half():
    return Task(load_model("gpt2", 32), "bfloat16")


@pytest.mark.slow
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_estimate_agrees_with_the_simulation(gpt2_in_half, recompute):
    """Closed form against the simulated task graph, for a pipeline of four with data parallelism."""
    from trainyard.job.auto.build import build
    from trainyard.job.lower.lower import lower
    from trainyard.job.simulate import simulate_plan

    setting = make_setting(gpt2_in_half, parse_cluster("1x8xA100-80G"))
    sharding = Sharding(1, False, False, 1, 2)
    point = Point(sharding, 4, 2, 8, "one_f_one_b", 1, recompute, 1)
    probes = Probes(setting)
    probes.probe([sharding])
    stages = probes.stages(sharding, recompute, 4)
    assert stages is not None
    guess = estimate(point, stages, setting.cluster, setting.task)
    chosen = build(setting, guess)
    lowered = lower(setting.task.program(chosen.rows_per_microbatch), chosen)
    simulated = simulate_plan(lowered, setting.cluster)
    assert guess.step_s == pytest.approx(simulated.step_s, rel=0.08)
    assert guess.memory_bytes == pytest.approx(simulated.peak_memory_bytes, rel=0.08)


@pytest.mark.slow
def test_gpt3_on_1024_devices():
    """Against Megatron-LM: 44 to 52 % of peak (arXiv 2104.04473, table 1), 51.4 % (arXiv 2205.05198, table 5)."""
    found = plan(load_model("gpt3-175b", 1536), "128x8xA100-80G", dtype="bfloat16")
    assert 0.44 <= found.simulation.mfu <= 0.60
    assert found.simulation.fits
    assert found.plan.num_ranks == 1024


@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 4), (8, 16), (64, 256)])
def test_how_much_of_a_ramp_is_idle_follows_from_the_actions(ranks: int, microbatches: int) -> None:
    """Of 1F1B all; of H1 (p - 1)(F + I - W), arXiv 2401.10241, table 2, where W takes no longer than F."""
    for name, stages_per_rank in (("one_f_one_b", 1), ("interleaved", 2), ("gpipe", 1)):
        assert ramp_left(name, ranks, microbatches, stages_per_rank, 0.25, 0.375) == pytest.approx(1)
    for forward, weights in ((0.35, 0.3), (0.3, 0.3), (0.4, 0.2)):
        left = forward + (1 - forward - weights) - weights
        assert ramp_left("zero_bubble_h1", ranks, microbatches, 1, forward, weights) == pytest.approx(left)
