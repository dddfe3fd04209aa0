"""A Llama block whose plan says how every op runs along every axis of a mesh of three, on four processes."""

from __future__ import annotations

import operator
from dataclasses import replace
from functools import cache

import pytest
import yaml
from drawn_losses import with_terms
from one_block import MEGATRON, ROWS, drawn_choices, task
from steps_on_ranks import check_steps

from trainyard.hardware.parse import parse_cluster
from trainyard.job.lower.axes import shard_whole
from trainyard.job.lower.lower import all_choices, lower
from trainyard.job.lower.verify import verify
from trainyard.job.plan import Axes, Mesh, Plan, PlanError, Stage, State, parse_plan
from trainyard.job.schedules import make_schedule
from trainyard.job.simulate import simulate_plan
from trainyard.job.task import Task
from trainyard.program.placement import OpChoice, Placement, Shard, parse_op_choice
from trainyard.report.routines import choices_text

MESHES = {
    "2 x 2 x 1": Mesh.of(data=2, tensor=2, context=1),
    "2 x 1 x 2": Mesh.of(data=2, tensor=1, context=2),
}
PAIR = Mesh.of(data=2)
SEQUENCE: dict[str, Placement] = {"tokens:embedding": Shard(1), "blocks.*:add*": Shard(1)}
PLANS = [(mesh, kind) for mesh in MESHES for kind in ("completed", "drawn")]


def open_plan(mesh: Mesh) -> Plan:
    """Rows along ``data``, blocks cut as Megatron does along ``tensor``, and nothing said of ops."""
    program = task().program(ROWS)
    schedule, stage = make_schedule("one_f_one_b", 1, 1), Stage("", mesh, ("data",))
    plan = Plan(
        program.name, program.fingerprint, "4 ranks", ROWS, schedule, (stage,), state=State(("data",))
    )
    return plan.with_placements("tensor", MEGATRON)


@cache
def plan_of(mesh_text: str, kind: str) -> Plan:
    """A plan with a choice for every op along every axis."""
    mesh, program = MESHES[mesh_text], task().program(ROWS)
    plan = open_plan(mesh)
    if kind == "completed":
        return replace(plan, choices=all_choices(program, plan.with_placements("context", SEQUENCE)))
    return replace(plan, choices=_drawn(plan))


def _drawn(plan: Plan) -> dict[str, dict[str, OpChoice]]:
    """Along each axis for all ops that there are then: collectives of the axes before are among them."""
    program, found = task().program(ROWS), dict[str, dict[str, OpChoice]]()
    (stage,), sizes = plan.stages, plan.mesh.sizes
    for i, (axis, size) in enumerate(sizes):
        before = program
        if i:
            outer = replace(
                plan, stages=(replace(stage, mesh=Mesh(sizes[:i])),), choices=found, placements={}
            )
            outer = replace(outer, placements=_along(plan, [name for name, _ in sizes[:i]]))
            before = shard_whole(program, outer)
        for name, choice in drawn_choices(before, size, seed=i).items():
            found.setdefault(name, {})[axis] = choice
    return found


def _along(plan: Plan, axes: list[str]) -> dict[str, dict[str, Placement]]:
    return {
        name: {axis: p for axis, p in wanted.items() if axis in axes}
        for name, wanted in plan.placements.items()
    }


@pytest.mark.parametrize(("mesh", "kind"), PLANS)
def test_nothing_is_left_to_propagation(mesh: str, kind: str) -> None:
    plan, program = plan_of(mesh, kind), task().program(ROWS)
    decided, axes = all_choices(program, plan), [n for n, size in MESHES[mesh].sizes if size > 1]
    assert decided == {
        name: own
        for name, said in plan.choices.items()
        if (own := {a: c for a, c in said.items() if a in axes})
    }
    assert len(axes) == 2
    assert all("data" in own for name, own in decided.items() if name in program.addresses.nodes)


def test_the_choices_of_stages_are_told_together_and_given_back() -> None:
    program, plan = task().program(ROWS), open_plan(MESHES["2 x 2 x 1"])
    cut = (plan.stages[0], replace(plan.stages[0], start="blocks.0.norm_2:pow"))
    plan = replace(plan, schedule=make_schedule("gpipe", 2, 1), stages=cut)
    choices = all_choices(program, plan)
    assert program.addresses.nodes.keys() - choices.keys() == {
        name for name, node in program.addresses.nodes.items() if node.target is operator.getitem
    }
    again = replace(plan, choices=choices)
    assert all_choices(program, again) == choices
    verify(lower(program, again))
    with pytest.raises(PlanError, match=r"choices on axis 'data': 'blocks.7:mul' is no op of the model"):
        lower(
            program, replace(plan, choices={**choices, "blocks.7:mul": {"data": parse_op_choice("R R -> R")}})
        )


@pytest.mark.parametrize("rows", [(("data",), ()), ((), ("data",))], ids=str)
@pytest.mark.parametrize("name", ["token mean", "smoothed labels"])
def test_choices_change_nothing_where_one_stage_divides_rows(name: str, rows: tuple[Axes, Axes]) -> None:
    """Stages make views of their own of one value, and totals are of all rows: neither runs as the other's do."""
    trained = Task(with_terms((name,), len(name)).model)
    program = trained.program(trained.num_rows // 2)
    stages = tuple(
        Stage(*stage, own) for stage, own in zip((("", PAIR), ("head:t", PAIR)), rows, strict=True)
    )
    schedule, state = make_schedule("gpipe", 2, 2), State(("data",))
    plan = Plan(program.name, program.fingerprint, "", trained.num_rows, schedule, stages, state=state)
    chosen = replace(plan, choices=all_choices(program, plan))
    sent = [
        simulate_plan(lower(program, p), parse_cluster("1x4xA100-80G")).sent_bytes for p in (plan, chosen)
    ]
    assert sent[0] == sent[1]
    assert any(lower(program, chosen).totals)


@pytest.mark.parametrize(("mesh", "kind"), PLANS)
def test_it_is_read_back_explained_verified_and_simulated(mesh: str, kind: str) -> None:
    plan = plan_of(mesh, kind)
    assert parse_plan(plan.to_text()) == plan
    again = replace(plan, choices={}).to_text() + choices_text(plan.choices)
    assert parse_plan(again) == plan
    assert "The plan says how ops run along data" in plan.explain()
    assert "Same loss as one device." in plan.explain()
    lowered = lower(task().program(ROWS), plan)
    verify(lowered)
    assert simulate_plan(lowered, parse_cluster("1x4xA100-80G")).step_s > 0


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"blocks.0.up:mm": {"tensor": "S0 S0"}}, r"'S0 S0' is no choice of an op"),
        ({"blocks.0.up:mm": {"width": "R R -> R"}}, r"'blocks.0.up:mm' has a choice on width; the mesh has data, tensor"),
        ({"blocks.0.up:mm": {"tensor": "S0 S0 -> R"}}, r"axis 'tensor': blocks.0.up:mm cannot run as S0 S0 -> R on 2"),
        ({"blocks.1.up:mm": {"data": "R R -> R"}}, r"choices on axis 'data': 'blocks.1.up:mm' is no op of the model"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(said: dict[str, dict[str, str]], why: str) -> None:
    text = open_plan(MESHES["2 x 2 x 1"]).to_text() + yaml.safe_dump({"choices": said})
    with pytest.raises(PlanError, match=why):
        lower(task().program(ROWS), parse_plan(text))


@pytest.mark.slow
def test_four_processes_compute_what_one_device_does() -> None:
    check_steps(4, [(task, plan_of(*names)) for names in PLANS])
