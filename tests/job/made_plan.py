"""Plans by the sizes of the usual axes, for tests that do not go through a strategy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from trainyard.job.plan import Mesh, Plan, Stage, State, Traffic
from trainyard.job.schedule import Schedule
from trainyard.job.strategies.parallel.zero import DIVIDED
from trainyard.program.placement import Placement
from trainyard.program.program import Program


def made_plan(
    program: Program,
    num_rows: int,
    schedule: Schedule,
    *,
    data: int = 1,
    tensor: int = 1,
    starts: Iterable[str] = (),
    placed: Mapping[str, Mapping[str, Placement]] | None = None,
    recompute: Iterable[str] = (),
    zero: int = 0,
    bucket_bytes: int = 25 * 2**20,
    **fields: Any,
) -> Plan:
    """A plan with rows divided over ``data``; ``placed`` by axis, then by name."""
    mesh, rows = Mesh.of(data=data, tensor=tensor), ("data",) if data > 1 else ()
    plan = Plan(
        program.name,
        program.fingerprint,
        "local",
        num_rows,
        schedule,
        tuple(Stage(start, mesh, rows) for start in ("", *starts)),
        state=with_zero(State(rows), zero),
        traffic=Traffic(bucket_bytes),
        **fields,
    )
    for axis, wanted in (placed or {}).items():
        plan = plan.with_placements(axis, wanted)
    return plan.with_recomputed(recompute)


def with_zero(state: State, stage: int) -> State:
    """The state divided as a stage of ZeRO says, where ranks sum gradients."""
    return state.dividing(DIVIDED.get(stage, ()) if state.summed_over else ())


def changed(
    plan: Plan, zero: int = 0, bucket_bytes: int | None = None, recompute: Iterable[str] = ()
) -> Plan:
    """The plan with a stage of ZeRO, buckets of another size, and more that is recomputed."""
    traffic = plan.traffic if bucket_bytes is None else Traffic(bucket_bytes)
    return replace(plan, state=with_zero(plan.state, zero), traffic=traffic).with_recomputed(recompute)
