"""The search of ``auto``: never worse than a published strategy, repeats, and says why when nothing fits."""

from __future__ import annotations

import pytest

from trainyard.cost.ops import Roofline
from trainyard.hardware.parse import parse_cluster
from trainyard.job.auto.estimate import estimate
from trainyard.job.auto.probes import Probes
from trainyard.job.auto.space import Point, Sharding
from trainyard.job.plan import PlanError, parse_plan
from trainyard.job.planning import Infeasible, compare, load_model, plan, simulate
from trainyard.job.task import Setting, Task
from trainyard.program.truncate import truncate

CLUSTER = "1x4xV100-32G"


@pytest.fixture(scope="module")
def found():
    return plan(load_model("gpt2", 32), CLUSTER)


def test_is_never_worse_than_a_published_strategy(found):
    names = ["data_parallel", "zero(stage=3)", "gpipe(stages=4)", "megatron(tensor=4,pipeline=1)"]
    for other in compare(load_model("gpt2", 32), CLUSTER, names):
        assert not isinstance(other, Infeasible), other.reason
        assert found.simulation.step_s <= other.simulation.step_s


def test_repeats(found):
    again = plan(load_model("gpt2", 32), CLUSTER)
    assert again.plan.to_text() == found.plan.to_text()


def test_saved_plan_simulates_to_the_same_time(found):
    assert simulate(parse_plan(found.plan.to_text())).step_s == pytest.approx(
        found.simulation.step_s, rel=1e-9
    )


def test_says_how_many_plans_and_what_comes_next(found):
    text = found.plan.explain()
    assert "plans" in text
    assert "Next:" in text
    assert found.runners_up


def test_nothing_fits():
    with pytest.raises(PlanError, match=r"does not fit.*GiB on a device.*as many devices"):
        plan(load_model("gpt3-13b", 8), "1x2xT4", dtype="bfloat16")


def test_batch_that_divides_nowhere():
    with pytest.raises(PlanError, match="3 rows"):
        plan(load_model("vgg-tiny", 3), "8x8xT4")


def test_probes_stand_for_all_blocks():
    """A block of a model cut down to two costs what it costs in the whole model."""
    setting = Setting(Task(load_model("gpt2", 8)), parse_cluster("1x1xA100-80G"))
    sharding = Sharding(1, False, False, 1, 8)
    short, whole = Probes(setting, Roofline()), Probes(setting, Roofline())
    whole.truncated = truncate(setting.task.model, kept=99)
    whole.task = setting.task
    for probes in (short, whole):
        probes.probe([sharding])
    assert short.blocks(sharding, "none") == whole.blocks(sharding, "none")


@pytest.fixture(scope="module")
def gpt2_in_half():
    return Task(load_model("gpt2", 32), "bfloat16")


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_estimate_agrees_with_the_simulation(gpt2_in_half, recompute):
    """Closed form against the simulated task graph, for a pipeline of four with data parallelism."""
    from trainyard.job.auto.build import build
    from trainyard.job.lower.lower import lower
    from trainyard.job.simulate import simulate_plan

    setting = Setting(gpt2_in_half, parse_cluster("1x8xA100-80G"))
    sharding = Sharding(1, False, False, 1, 2)
    point = Point(sharding, 4, 2, 8, "one_f_one_b", 1, recompute, 1)
    probes = Probes(setting, Roofline())
    probes.probe([sharding])
    stages = probes.stages(sharding, recompute, 4)
    assert stages is not None
    guess = estimate(point, stages, setting.cluster, 2)
    chosen = build(setting, guess)
    lowered = lower(setting.task.program(chosen.rows_per_microbatch), chosen)
    simulated = simulate_plan(lowered, setting.cluster)
    assert guess.step_s == pytest.approx(simulated.step_s, rel=0.15)
    assert guess.memory_bytes == pytest.approx(simulated.peak_memory_bytes, rel=0.35)


@pytest.mark.slow
def test_gpt3_on_1024_devices():
    """Against Megatron-LM: 44 to 52 % of peak (arXiv 2104.04473, table 1), 51.4 % (arXiv 2205.05198, table 5)."""
    found = plan(load_model("gpt3-175b", 1536), "128x8xA100-80G", dtype="bfloat16")
    assert 0.44 <= found.simulation.mfu <= 0.60
    assert found.simulation.fits
    assert found.plan.num_ranks == 1024
