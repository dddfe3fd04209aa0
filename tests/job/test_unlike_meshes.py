"""Stages on unlike meshes: more ranks for one than for another, or other axes."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial

import pytest
from allocated import over_gloo
from asynchronous import batch_of, model
from captured import tiny
from one_block import MEGATRON
from one_block import task as llama
from steps_on_ranks import allocated, check_steps

from trainyard.hardware.parse import parse_cluster
from trainyard.job.lower.lower import Lowered, lower
from trainyard.job.lower.verify import verify
from trainyard.job.plan import Mesh, Plan, PlanError, Stage, State, parse_plan
from trainyard.job.run.processes.fork_server import run_ranks
from trainyard.job.schedules import make_schedule
from trainyard.job.simulate import simulate_plan
from trainyard.job.task import Task
from trainyard.program.batch import batch_rows
from trainyard.program.placement import PARTIAL
from trainyard.program.spmd import keep_on_first, start_all_reduce

WIDTH = 256
LAYERS = ("2:addmm", "4:addmm", "6:addmm")
HALF = "blocks.0.norm_2:pow"
ALONE, ROWS_BY_2, ROWS_BY_3 = Mesh(), Mesh.of(data=2), Mesh.of(data=3)
COLUMNS, BOTH = Mesh.of(tensor=2), Mesh.of(data=2, tensor=2)

MESHES: dict[str, tuple[str, tuple[Mesh, ...], State]] = {
    "3 + 1": ("layers", (ROWS_BY_3, ALONE), State(("data",))),
    "1 + 3": ("layers", (ALONE, ROWS_BY_3), State(("data",))),
    "2 + 1 + 1, all divided": (
        "layers",
        (ROWS_BY_2, ALONE, ALONE),
        State(("data",)).dividing(("optimizer", "gradients", "parameters")),
    ),
    "rows, then columns": ("llama", (ROWS_BY_2, COLUMNS), State(("data",))),
    "columns, then rows": ("llama", (COLUMNS, ROWS_BY_2), State(("data",)).dividing(("optimizer",))),
}
"""The model, the mesh of each stage, and who keeps the state: each on four ranks."""


@cache
def task(name: str) -> Task:
    return llama() if name == "llama" else Task(model(WIDTH))


def plan_of(name: str) -> Plan:
    trained, meshes, state = MESHES[name]
    return made(trained, meshes, state)


def made(trained: str, meshes: tuple[Mesh, ...], state: State) -> Plan:
    """A plan with rows divided over ``data``, and blocks as Megatron divides them over ``tensor``."""
    own = task(trained).model
    num_rows = batch_rows(own.batch, own.whole)
    program = task(trained).program(num_rows // 2)
    starts = ("", HALF) if trained == "llama" else ("", *LAYERS[-len(meshes) + 1 :])
    stages = tuple(
        Stage(start, mesh, tuple(axis for axis in mesh.axes if axis == "data"))
        for start, mesh in zip(starts, meshes, strict=True)
    )
    schedule = make_schedule("one_f_one_b", len(meshes), 2)
    plan = Plan(program.name, program.fingerprint, "ranks", num_rows, schedule, stages, state=state)
    return plan.with_placements("tensor", MEGATRON) if COLUMNS in meshes else plan


def lowered_of(trained: str, plan: Plan) -> Lowered:
    return lower(task(trained).program(plan.rows_per_microbatch), plan)


def test_four_processes_compute_what_one_device_does() -> None:
    check_steps(4, [(partial(task, MESHES[name][0]), plan_of(name)) for name in MESHES])


def memory_plan() -> Plan:
    """Two ranks of one kind of device, and one of another."""
    return made("layers", (ROWS_BY_2, ALONE), State(("data",)))


def _allocated(rank: int) -> int:
    batches = [batch_of(step, WIDTH) for step in range(2)]
    return allocated(rank, lowered_of("layers", memory_plan()), task("layers").model, batches)


def test_memory_is_what_three_processes_allocate() -> None:
    simulation = simulate_plan(lowered_of("layers", memory_plan()), over_gloo("1x2xA100-80G+1x1xT4"))
    found = run_ranks(3, _allocated)
    expected = [simulation.tensor_bytes[0], simulation.tensor_bytes[0], simulation.tensor_bytes[1]]
    assert found == pytest.approx(expected, rel=1e-4)


def test_it_is_written_explained_and_takes_the_time_of_its_devices() -> None:
    plan = memory_plan()
    assert parse_plan(plan.to_text()) == plan
    assert "2 data + 1 device" in plan.explain()
    lowered = lowered_of("layers", plan)
    mixed, alike = (
        simulate_plan(lowered, parse_cluster(f"1x2xA100-80G+1x1x{kind}")) for kind in ("T4", "A100-80G")
    )
    assert mixed.work_s[0] == alike.work_s[0]
    assert mixed.work_s[1] > alike.work_s[1]


def test_what_stages_share_needs_one_mesh() -> None:
    tied = Task(tiny("gpt", 4))
    program = tied.program(2)
    stages = (Stage("", ROWS_BY_2, ("data",)), Stage("blocks.1.norm_1:native_layer_norm", ALONE))
    plan = Plan(program.name, program.fingerprint, "ranks", 4, make_schedule("gpipe", 2, 2), stages)
    with pytest.raises(
        PlanError, match=r"is used in stages 0 on 2 data and 1 on 1 device; give these stages one"
    ):
        lower(program, replace(plan, state=State(("data",))))


def test_terms_of_a_sum_are_summed_in_the_pass_that_makes_them() -> None:
    """The backward pass of tanh needs its result as well, in the stage that it leaves as terms of a sum."""
    plan = replace(memory_plan(), state=State())
    stages = (Stage("", ROWS_BY_2), Stage("2:addmm", ALONE))
    lowered = lowered_of("layers", replace(plan, stages=stages).with_placements("data", {"1:tanh": PARTIAL}))
    verify(lowered)
    (sum_forward,) = (n for n in lowered.stages[0].segments["F"].graph.nodes if n.target is start_all_reduce)
    assert sum_forward.all_input_nodes[0].target is keep_on_first
