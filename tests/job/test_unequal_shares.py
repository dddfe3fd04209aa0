"""Ranks of one mesh that hold unequal shares of the rows of every microbatch."""

from dataclasses import replace
from functools import cache, partial

import pytest
from allocated import over_gloo
from asynchronous import batch_of, model
from one_block import MEGATRON
from one_block import task as llama
from steps_on_ranks import allocated, check_steps

from trainyard.hardware.parse import parse_cluster
from trainyard.job.lower.lower import Lowered, lower
from trainyard.job.optimizer import OptimizerConfig
from trainyard.job.plan import Mesh, Plan, PlanError, Stage, State, parse_plan
from trainyard.job.run.processes.fork_server import run_ranks
from trainyard.job.schedules import make_schedule
from trainyard.job.simulate import simulate_plan
from trainyard.job.task import Task
from trainyard.program.batch import batch_rows
from trainyard.program.placement import Shard

WIDTH = 256
SHARES, ALONE = Mesh.of(data=(3, 1)), Mesh()
PLACE = "1x1xA100-80G+1x1xT4+1x1xA100-80G"
SGD = OptimizerConfig("sgd", lr=0.1, momentum=0.9)
ALL = ("optimizer", "gradients", "parameters")

PLANS: dict[str, tuple[str, tuple[Mesh, ...], State, int]] = {
    "2 + 1": ("layers", (SHARES, ALONE), State(("data",)), 3),
    "1 + 2, all divided": ("layers", (ALONE, SHARES), State(("data",)).dividing(ALL), 3),
    "unlike shares": ("layers", (Mesh.of(data=(1, 2)), ALONE), State(), 2),
    "no pipeline": ("llama", (Mesh.of(data=(1, 1, 2)),), State(("data",)).dividing(("optimizer",)), 1),
    "and columns": ("llama", (Mesh.of(data=(3, 1), tensor=2),), State(("data",)), 1),
}
"""The model, the mesh of each stage, who keeps the state, and microbatches: on three ranks, and the last on four."""


@cache
def task(name: str) -> Task:
    return llama() if name == "llama" else Task(model(WIDTH))


def plan_of(name: str) -> Plan:
    trained, meshes, state, count = PLANS[name]
    own = task(trained).model
    num_rows = batch_rows(own.batch, own.whole)
    program = task(trained).program(num_rows // count)
    stages = tuple(
        Stage(start, mesh, ("data",) if mesh.axes else ())
        for start, mesh in zip(("", "4:addmm")[: len(meshes)], meshes, strict=True)
    )
    schedule = make_schedule("one_f_one_b", len(meshes), count)
    plan = Plan(program.name, program.fingerprint, "ranks", num_rows, schedule, stages, state=state)
    return plan.with_placements("tensor", MEGATRON) if "tensor" in stages[0].mesh.axes else plan


def lowered_of(name: str) -> Lowered:
    plan = plan_of(name)
    return lower(task(PLANS[name][0]).program(plan.rows_per_microbatch), plan, SGD)


@pytest.mark.parametrize("num_ranks", [3, 4])
def test_processes_compute_what_one_device_does(num_ranks: int) -> None:
    plans = [(partial(task, PLANS[name][0]), plan_of(name)) for name in PLANS]
    check_steps(num_ranks, [(of, plan) for of, plan in plans if plan.num_ranks == num_ranks])


def _allocated(rank: int) -> int:
    batches = [batch_of(step, WIDTH) for step in range(2)]
    return allocated(rank, lowered_of("2 + 1"), task("layers").model, batches)


def test_memory_is_what_each_share_allocates() -> None:
    lowered, place = lowered_of("2 + 1"), over_gloo(PLACE)
    found = run_ranks(3, _allocated)
    of_rank = [simulate_plan(lowered.for_rank(rank), place).tensor_bytes for rank in range(3)]
    assert found == pytest.approx([of_rank[0][0], of_rank[1][0], of_rank[2][1]], rel=1e-4)
    assert found[0] > found[1]


def test_it_is_written_explained_and_takes_as_long_as_the_slowest_share() -> None:
    plan, lowered = plan_of("2 + 1"), lowered_of("2 + 1")
    assert "{mesh: {data: [3, 1]}, rows: [data]}" in plan.to_text()
    assert parse_plan(plan.to_text()) == plan
    assert "2 data (3:1) + 1 device" in plan.explain()
    assert "(1 or 3 or 4 on each rank)" in plan.explain()
    mixed, alike, swapped = (
        simulate_plan(lowered, parse_cluster(place))
        for place in (PLACE, "1x3xA100-80G", "1x1xT4+1x2xA100-80G")
    )
    assert alike.work_s[0] <= mixed.work_s[0] < swapped.work_s[0]


def test_a_plan_fits_if_it_fits_every_share() -> None:
    """Memory that a quarter of the rows needs is on one device, and that of three quarters on the other."""
    lowered = lowered_of("2 + 1")
    of_share = [simulate_plan(lowered.for_rank(rank), parse_cluster("1x3xA100-80G")) for rank in (0, 1)]
    cluster = parse_cluster("1x3xA100-80G")
    (node,) = cluster.nodes
    for short in (None, 0, 1):
        devices = list(node.devices)
        for rank in (0, 1):
            needed = of_share[rank].peak_bytes[0] - (rank == short)
            devices[rank] = replace(devices[rank], memory_bytes=needed + devices[rank].overhead.driver_bytes)
        found = simulate_plan(lowered, replace(cluster, nodes=(replace(node, devices=tuple(devices)),)))
        assert found.fits == (short is None)
        assert max(found.shortage_bytes) == (short is not None)
        assert [(share.parts, share.peak_bytes) for share in found.shares] == [
            (f"{count} of 4 parts along data", of_share[rank].peak_bytes[0])
            for rank, count in ((0, 3), (1, 1))
        ]


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (
            "{data: [3, 0]}, rows: [data]",
            "got [3, 0], allowed is the number of its ranks, from 1 to 131,072, or a list",
        ),
        (
            "{data: []}, rows: [data]",
            "a list of the parts of the rows that each of several ranks holds, 1 or more",
        ),
        (
            "{data: [3]}, rows: [data]",
            "a list of the parts of the rows that each of several ranks holds, 1 or more",
        ),
        ("{data: '3:1'}, rows: [data]", "holds, 1 or more, such as [3, 1]"),
        (
            "{data: [3, 1]}",
            "shares, and rows are divided over no axis; shares are of rows: name data in rows",
        ),
        ("{data: [3, 2]}, rows: [data]", "rows must be a multiple of 15"),
    ],
)
def test_what_is_no_share_is_refused(wrong: str, why: str) -> None:
    text = plan_of("2 + 1").to_text().replace("{data: [3, 1]}, rows: [data]", wrong)
    with pytest.raises(PlanError, match=why.replace("[", r"\[")):
        parse_plan(text)


def test_only_rows_are_in_unequal_shares() -> None:
    program = task("layers").program(4)
    placed = plan_of("2 + 1").with_placements("data", {"0.weight": Shard(0)})
    with pytest.raises(
        PlanError, match="unequal shares of rows, and parameters are whole on such an axis; leave it out"
    ):
        lower(program, placed)
    gathered = plan_of("2 + 1").with_placements("data", {"1:tanh": Shard(1)})
    with pytest.raises(PlanError, match="between ranks that hold unequal shares, where rows stay"):
        lower(program, gathered)


def test_equal_shares_are_none() -> None:
    assert Mesh.of(data=(2, 2)) == Mesh.of(data=2)
    assert Mesh.of(data=(6, 2)) == SHARES
