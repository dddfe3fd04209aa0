"""What every strategy must satisfy, whatever it decides."""

import copy
import re

import pytest
from cases import CASES, MODELS, ROWS, Case, params, plan_of, task

from trainyard.hardware.overhead import NO_OVERHEAD
from trainyard.job.catalog import CATALOG, parse_strategies
from trainyard.job.lower.lower import lower
from trainyard.job.lower.verify import verify
from trainyard.job.plan import PlanError, parse_plan
from trainyard.job.planning import make_setting
from trainyard.job.schedules import check
from trainyard.job.setting import apply, first_plan

ADVICE = re.compile(r"\b(use|give|put|needs|must)\b", re.IGNORECASE)


@pytest.mark.parametrize("case", params(CASES))
def test_plan_is_valid_or_refused_with_advice(case: Case) -> None:
    refusal = None
    try:
        setting, plan = plan_of(case.strategies, case.model, case.cluster)
    except PlanError as error:
        refusal = str(error)
    if refusal is not None:
        assert not case.is_feasible, (
            f"{case.strategies} refuses {case.model} that has all it needs: {refusal}"
        )
        assert ADVICE.search(refusal), f"no advice in: {refusal}"
        return
    # Valid in itself, and the same after a journey through text.
    check(plan.schedule)
    again = parse_plan(plan.to_text())
    assert again == plan
    # Within what was given.
    assert plan.num_rows == ROWS
    assert plan.num_ranks <= setting.cluster.num_devices
    assert plan.model == case.model
    # It can be run.
    lowered = lower(setting.task.program(plan.rows_per_microbatch), plan)
    verify(lowered)
    assert len(lowered.stages) == plan.schedule.num_stages
    assert all(stage.segments["F"].outputs for stage in lowered.stages)
    # It says what it does, and who decided.
    assert plan.made_by[-1].startswith(case.entry.name)
    assert plan.reasons
    assert plan.reasons[-1] in plan.explain()


@pytest.mark.parametrize("case", params(c for c in CASES if c.model == "moe-tiny" and c.is_feasible))
def test_strategy_is_pure(case: Case) -> None:
    setting, plan = plan_of(case.strategies, case.model, case.cluster)
    before = first_plan(setting)
    kept = copy.deepcopy(before)
    nodes = [(n.name, n.args) for n in setting.task.program(ROWS).graph.nodes]
    _, second = plan_of(case.strategies, case.model, case.cluster)
    assert second == plan
    assert second.to_text() == plan.to_text()
    strategy = parse_strategies(case.strategies)[0][1]
    strategy(setting, before)
    assert before == kept
    assert [(n.name, n.args) for n in setting.task.program(ROWS).graph.nodes] == nodes


@pytest.mark.parametrize("model", MODELS)
def test_feasible_somewhere(model: str) -> None:
    # A strategy that refuses everything would pass the test above on models that lack what it needs.
    feasible = {c.entry.name for c in CASES if c.model == model and c.is_feasible}
    assert {"data_parallel", "zero", "gpipe", "sublinear"} <= feasible


@pytest.mark.parametrize("entry", CATALOG, ids=lambda e: e.name)
def test_each_entry_has_a_model(entry) -> None:
    assert any(c.is_feasible for c in CASES if c.entry == entry)


@pytest.mark.parametrize(
    ("strategies", "cluster", "said"),
    [
        ("data_parallel(degree=3)", "1x4xA100-80G", "multiple of 3"),
        ("data_parallel(degree=8)", "1x4xA100-80G", "use 1 to 4"),
        ("data_parallel + gpipe", "1x4xA100-80G", "smaller degree"),
        ("zero", "1x1xA100-80G", "only one"),
        ("gpipe(stages=4)", "1x4xA100-80G", "at most 3 stages"),
        ("gpipe(stages=2, microbatches=3)", "1x2xA100-80G", "divides 8"),
        ("megatron(tensor=3)", "1x4xA100-80G", "no matrix products|no split"),
        ("megatron(pipeline=4)", "1x4xA100-80G", "must divide the 2 repeated blocks"),
        ("megatron(tensor=2, microbatch_rows=3)", "1x2xA100-80G", "microbatch_rows=3"),
        ("sequence_parallel", "1x2xA100-80G", "put megatron before it"),
        ("expert_parallel", "1x2xA100-80G", "needs a mixture"),
        ("sublinear(segments=99)", "1x1xA100-80G", "use at most"),
    ],
)
def test_infeasible_asks_are_refused_with_advice(strategies: str, cluster: str, said: str) -> None:
    with pytest.raises(PlanError, match=said):
        plan_of(strategies, "gpt-tiny", cluster)


def test_memory_that_does_not_suffice_is_refused() -> None:
    from dataclasses import replace

    from trainyard.hardware.parse import parse_cluster

    cluster = parse_cluster("1x2xA100-80G")
    small = tuple(replace(d, memory_bytes=2**17, overhead=NO_OVERHEAD) for d in cluster.nodes[0].devices)
    tight = replace(cluster, nodes=(replace(cluster.nodes[0], devices=small),))
    with pytest.raises(PlanError, match="does not fit"):
        apply(parse_strategies("megatron"), make_setting(task("gpt-tiny"), tight))
