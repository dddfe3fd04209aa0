"""How a model is split over the devices that serve it, as a plan of level 1 with forward passes only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary

from trainyard.job.balance import repeated_blocks
from trainyard.job.lower.resolve import resolve
from trainyard.job.lower.shard import Sharded, shard
from trainyard.job.plan import Mesh, Plan, PlanError, Stage
from trainyard.job.remesh import TENSOR
from trainyard.job.schedule import Action, Schedule
from trainyard.job.strategies.parallel.megatron import tensor_placements
from trainyard.job.transformer import FUSED_ATTENTION, tensor_parallel_regions, weights_of
from trainyard.program.algebra.rules import tensor_args
from trainyard.program.grouped_product import GROUPED_PRODUCT
from trainyard.program.patterns import shortened
from trainyard.program.placement import REPLICATE, Placement, Shard
from trainyard.program.program import Program
from trainyard.program.propagate import Axis
from trainyard.serve.errors import ServeError

__all__ = ["split_plan", "tensor_shards", "with_stages", "with_whole_experts"]


def split_plan(
    program: Program,
    cluster: str = "",
    *,
    tensor_parallel: int = 1,
    pipeline_stages: int = 1,
    dtype: str = "bfloat16",
) -> Plan:
    """Layers in stages of equal number, and in each stage products cut by columns and then by rows.

    It is for serving: what trains refuses a schedule without backward passes.

    Parameters
    ----------
    program : forward passes of a transformer.
    cluster : name of the cluster whose first devices serve it.
    tensor_parallel : devices of a stage.
    pipeline_stages : stages, each on devices of its own.
    dtype : of the products.

    Raises
    ------
    ServeError
        If the model cannot be split so.

    References
    ----------
    Shoeybi et al., Megatron-LM, arXiv 1909.08053, section 3.
    """
    plan = Plan(
        program.name,
        program.fingerprint,
        cluster,
        program.num_rows,
        _forward_only(1),
        (Stage(mesh=Mesh.of(**{TENSOR: tensor_parallel})),),
        dtype=dtype,
        made_by=("megatron",),
    )
    plan = with_stages(plan, _starts(program, pipeline_stages))
    if tensor_parallel == 1:
        return plan
    cut = _tensor_placements(program, tensor_parallel)
    return plan.with_placements(TENSOR, shortened(cut, [entry.path for entry in program.inputs]))


def with_stages(plan: Plan, starts: Sequence[str]) -> Plan:
    """A `split_plan` with other stages, on as many devices each.

    Parameters
    ----------
    starts : addresses of the ops with which the stages but the first begin.
    """
    return replace(
        plan,
        schedule=_forward_only(len(starts) + 1),
        stages=tuple(Stage(start, plan.mesh) for start in ("", *starts)),
    )


def with_whole_experts(program: Program, plan: Plan) -> Plan:
    """A `split_plan` in which each device of a stage holds whole experts, instead of a slice of every expert.

    It says where the weights lie. Level 1 has no op that sends tokens to the experts of served mixtures, so the time of a
    step does not follow from this plan (see `trainyard.serve.costs.step_graph`).
    """
    weights = weights_of(program)
    experts = {
        weights[tensor_args(node)[2]]: Shard(0)
        for node in program.graph.nodes
        if node.target is GROUPED_PRODUCT
    }
    if plan.mesh.size(TENSOR) == 1:
        return plan
    placed = resolve(program, plan).placed_along(TENSOR) | experts
    paths = [entry.path for entry in program.inputs]
    return replace(plan, placements={}).with_placements(TENSOR, shortened(placed, paths))


def tensor_shards(program: Program, plan: Plan) -> Sharded:
    """A program as one device of a stage runs it, if the stage had all layers.

    Raises
    ------
    PlanError
        If the plan names what the program does not have.
    """
    wanted = resolve(program, plan).placed_along(TENSOR)
    wanted = {entry.path: REPLICATE for entry in program.inputs} | wanted
    axis = Axis(TENSOR, plan.mesh.size(TENSOR))
    known, key = _known_shards.setdefault(program, {}), (axis.size, frozenset(wanted.items()))
    if key not in known:
        known[key] = shard(program, axis, wanted, sums_before_sending=True)
    return known[key]


# Plans that differ in their stages only are cut alike on the tensor axis. Whoever has the result only reads it.
_known_shards: WeakKeyDictionary[Program, dict[tuple[int, frozenset[tuple[str, Placement]]], Sharded]] = (
    WeakKeyDictionary()
)


def _forward_only(num_stages: int) -> Schedule:
    return Schedule(
        "forward_only", num_stages, 1, tuple((Action("F", stage, 0),) for stage in range(num_stages))
    )


def _starts(program: Program, num_stages: int) -> tuple[str, ...]:
    if num_stages == 1:
        return ()
    layers = repeated_blocks(program)
    if num_stages > len(layers):
        raise ServeError(
            f"{num_stages} stages of {program.name}, which has {len(layers)} layers; use as many stages or fewer"
        )
    return tuple(layers[stage * len(layers) // num_stages].first for stage in range(1, num_stages))


def _tensor_placements(program: Program, num_devices: int) -> dict[str, Placement]:
    try:
        placements, _ = tensor_placements(program, num_devices)
    except PlanError as error:
        raise ServeError(
            f"{program.name} cannot be served in {num_devices} shards: neither its heads nor the widths of its products "
            "divide by that; use another number"
        ) from error
    num_attention = sum(node.target in FUSED_ATTENTION for node in program.graph.nodes)
    cut = sum(region.is_attention for region in tensor_parallel_regions(program, num_devices))
    if cut < num_attention:
        raise ServeError(
            f"{program.name} cannot be served in {num_devices} shards: its heads of keys and values do not divide by "
            "that; use a smaller number"
        )
    return placements
