"""Megatron-LM: tensor-parallel transformer layers, an interleaved pipeline, and how to combine both with data.

Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism",
arXiv 1909.08053; Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using
Megatron-LM", SC 2021, arXiv 2104.04473.

Fidelity: simplified. The cut of attention, MLP, embedding and logits, with a cross entropy that reduces scalars
per token, is exact. (1) A vocabulary that does not divide is left whole instead of padded. (2) The numbers of
ranks follow takeaways 1 and 2 of the second paper with memory counted from the graph; the microbatch size
(takeaway 3), which the paper measures, is a parameter. (3) The scatter/gather transfer between stages
(section 4.1) is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from trainyard.job.balance import even_starts, repeated_blocks
from trainyard.job.model_state import model_state_bytes, num_trained, state_of
from trainyard.job.plan import Plan, PlanError
from trainyard.job.remesh import TENSOR, microbatch_program, with_mesh
from trainyard.job.setting import Setting, Strategy
from trainyard.job.sizes import size_text
from trainyard.job.transformer import logits, lookups, tensor_parallel_regions
from trainyard.program.patterns import shortened
from trainyard.program.placement import Placement, Shard
from trainyard.program.program import Program, tensor_of
from trainyard.reading import count_text


@dataclass(frozen=True)
class Degrees:
    """Sizes of the three axes: tensor (the paper's t), pipeline (p) and data (d)."""

    tensor: int
    pipeline: int
    data: int


def megatron(
    *,
    tensor: int | None = None,
    pipeline: int | None = None,
    data: int | None = None,
    microbatch_rows: int | None = None,
    stages_per_rank: int = 1,
    memory_fraction: float = 0.9,
    overlap: bool = True,
) -> Strategy:
    """Tensor parallelism inside a node, a 1F1B pipeline across nodes, data parallelism with what is left.

    Degrees that are not given are chosen as in section 3 of arXiv 2104.04473: the model-parallel size t * p is
    the smallest with which weights, optimizer state and kept activations fit the device (takeaway 2); of that,
    t is as large as possible up to the devices of a node (takeaway 1); the rest of the devices is data parallel.

    Parameters
    ----------
    tensor, pipeline, data : sizes t, p, d of the axes.
    microbatch_rows : rows b of a microbatch on each data-parallel rank; by default 1, or all if the batch is not split.
    stages_per_rank : chunks v per pipeline rank; above 1 interleaved, with a bubble v times smaller (section 2.2).
    memory_fraction : share of what a plan may use of a device that weights, state and activations may take.
    overlap : whether the gradients of inputs are summed while those of weights are computed; the papers' program waits.

    Returns
    -------
    Strategy
        It raises `PlanError` if the model has nothing to cut that way or does not fit.

    Examples
    --------
    >>> from trainyard import load_model, plan
    >>> plan = plan(load_model("gpt-tiny", 8), "1x4xA100-80G", "megatron(tensor=2, pipeline=2)").plan
    >>> plan.mesh_text, plan.schedule.name
    ('2 pipeline x 2 tensor', 'one_f_one_b')
    >>> str(plan.placements["blocks.*.attention.qkv.weight"]["tensor"])
    'S0/3'
    """

    def strategy(setting: Setting, plan: Plan) -> Plan:
        asked = (tensor, pipeline, data)
        degrees = _degrees(setting, asked, microbatch_rows, stages_per_rank, memory_fraction)
        count = _num_microbatches(setting, degrees.data, _rows(setting, microbatch_rows, degrees.data))
        program = microbatch_program(setting, count, degrees.data)
        plan = with_mesh(
            setting,
            plan,
            data=degrees.data,
            tensor=degrees.tensor,
            pipeline=degrees.pipeline,
            num_microbatches=count,
            schedule="one_f_one_b" if stages_per_rank == 1 else "interleaved",
            num_stages_per_rank=stages_per_rank,
            stage_starts=even_starts(program, degrees.pipeline * stages_per_rank),
        )
        traffic = replace(plan.traffic, overlap=overlap)
        plan = replace(plan, traffic=traffic, reasons=(*plan.reasons, _why(degrees, asked)))
        return _with_tensor_axis(plan, program) if degrees.tensor > 1 else plan

    return strategy


def _with_tensor_axis(plan: Plan, program: Program) -> Plan:
    """The plan with its parameters cut over its tensor axis."""
    cut, why = tensor_placements(program, plan.mesh.size(TENSOR))
    plan = plan.with_placements(TENSOR, shortened(cut, [i.path for i in program.inputs]))
    return replace(plan, reasons=(*plan.reasons, *why))


def tensor_placements(program: Program, num_ranks: int) -> tuple[dict[str, Placement], tuple[str, ...]]:
    """Placements of parameters on the tensor axis (arXiv 1909.08053, section 3), and why.

    Raises
    ------
    PlanError
        If no product can be cut.
    """
    found = tensor_parallel_regions(program, num_ranks)
    if not found:
        raise PlanError(
            f"{program.name} has no matrix products that can be cut by columns and then rows over {num_ranks} "
            "ranks; Megatron's tensor parallelism is for transformers whose heads and MLP widths divide by it. "
            "Use another number of ranks, or data_parallel"
        )
    cut: dict[str, Placement] = {path: p for region in found for path, p in region.placements.items()}
    heads = sum(region.is_attention for region in found)
    why = [f"{heads} attention and {len(found) - heads} other blocks are cut by columns, then rows."]
    for path in sorted({*lookups(program), *logits(program)}):
        rows, width = tensor_of(program.nodes[program.input_of(path).node]).shape
        if rows < width:
            continue
        if rows % num_ranks == 0:
            cut[path] = Shard(0)
        else:
            why.append(
                f"{path} stays whole: its {rows} rows do not divide by {num_ranks}; pad the vocabulary."
            )
    return cut, tuple(why)


def bubble_fraction(num_stages: int, num_microbatches: int, stages_per_rank: int = 1) -> float:
    """Idle time over ideal time, (p - 1) / (v m) (arXiv 2104.04473, section 2.2).

    Examples
    --------
    >>> bubble_fraction(8, 64, stages_per_rank=2)
    0.0546875
    """
    return (num_stages - 1) / (stages_per_rank * num_microbatches)


def _why(degrees: Degrees, asked: tuple[int | None, ...]) -> str:
    origin = "as asked"
    if not all(asked):
        origin = "the smallest model-parallel size that fits, tensor within a node first, data with the rest"
    return f"Tensor {degrees.tensor} x pipeline {degrees.pipeline} x data {degrees.data}: {origin}."


def _rows(setting: Setting, asked: int | None, data: int) -> int:
    """Rows of a microbatch on each data-parallel rank."""
    task = setting.task
    return asked if asked is not None else 1 if task.splits else task.num_rows // max(1, data)


def _num_microbatches(setting: Setting, data: int, microbatch_rows: int) -> int:
    rows = setting.task.num_rows
    if microbatch_rows < 1 or rows % (data * microbatch_rows):
        raise PlanError(
            f"a batch of {count_text(rows, 'row')} cannot be cut into microbatches of "
            f"{count_text(microbatch_rows, 'row')} on {count_text(data, 'data-parallel rank')}; rows must be "
            f"a multiple of {max(1, data * microbatch_rows)}"
        )
    return rows // (data * microbatch_rows)


def _degrees(
    setting: Setting,
    asked: tuple[int | None, ...],
    microbatch_rows: int | None,
    stages_per_rank: int,
    memory_fraction: float,
) -> Degrees:
    """Takeaways 1 and 2 of arXiv 2104.04473."""
    fits = list(_candidates(setting, asked, microbatch_rows, stages_per_rank))
    if not fits:
        raise PlanError(_no_candidate(setting, asked, microbatch_rows))
    if asked[0] is not None and asked[1] is not None:
        return max(fits, key=lambda d: d.data)
    fits.sort(key=lambda d: (d.tensor * d.pipeline, -d.tensor, -d.data))
    room = memory_fraction * min(device.usable_bytes for device in setting.cluster.devices)
    needs = [(_device_bytes(setting, d, microbatch_rows), d) for d in fits]
    for need, degrees in needs:
        if need <= room:
            return degrees
    least, best = min(needs, key=lambda pair: pair[0])
    raise PlanError(
        f"{setting.task.model.name} does not fit {setting.cluster.name}: the best split (tensor {best.tensor} x "
        f"pipeline {best.pipeline} x data {best.data}) needs {size_text(least)} of {size_text(room)} a "
        "device; use more devices or give tensor and pipeline yourself and add a strategy that recomputes"
    )


def _candidates(
    setting: Setting, asked: tuple[int | None, ...], microbatch_rows: int | None, stages_per_rank: int
) -> Iterator[Degrees]:
    cluster, task = setting.cluster, setting.task
    program = task.program(task.num_rows)
    per_node = min(len(node.devices) for node in cluster.nodes)
    num_layers = len(repeated_blocks(program))
    most = len(tensor_parallel_regions(program, 1))
    for t in _sizes(asked[0], per_node):
        if t > 1 and asked[0] is None and len(tensor_parallel_regions(program, t)) < most:
            continue
        for p in _sizes(asked[1], cluster.num_devices // t):
            if p * stages_per_rank > 1 and (not num_layers or num_layers % (p * stages_per_rank)):
                continue
            left = cluster.num_devices // (t * p)
            for d in (left,) if asked[2] is None else (asked[2],):
                rows = max(1, d) * max(1, _rows(setting, microbatch_rows, d))
                if t * p * d > cluster.num_devices or task.num_rows % rows:
                    continue
                count = task.num_rows // rows
                if d >= 1 and (stages_per_rank == 1 or count % p == 0):
                    yield Degrees(t, p, d)


def _sizes(asked: int | None, limit: int) -> tuple[int, ...]:
    if asked is not None:
        return (asked,)
    return tuple(n for n in range(1, limit + 1) if limit % n == 0)


def _no_candidate(setting: Setting, asked: tuple[int | None, ...], microbatch_rows: int | None) -> str:
    named = ", ".join(f"{k}={v}" for k, v in zip(("tensor", "pipeline", "data"), asked, strict=True) if v)
    task = setting.task
    layers = len(repeated_blocks(task.program(task.num_rows)))
    return (
        f"no split of {task.model.name} over the {setting.cluster.num_devices} devices of {setting.cluster.name} "
        f"with {named or 'any sizes'}: the sizes must multiply to at most the devices, pipeline times stages_per_rank "
        f"must divide the {layers} repeated blocks, the {task.num_rows} rows must divide by data times "
        f"microbatch_rows={_rows(setting, microbatch_rows, 1)}, and interleaving "
        "needs microbatches in multiples of pipeline"
    )


def _device_bytes(setting: Setting, degrees: Degrees, microbatch_rows: int | None) -> float:
    """Model state of a rank and the activations of the first stage, which keeps p microbatches of 1/p of the layers."""
    task = setting.task
    rows = _rows(setting, microbatch_rows, degrees.data)
    # A batch that is not split is captured whole, for all data-parallel ranks.
    peers = degrees.data if rows * degrees.data == task.num_rows else 1
    program = task.program(rows * peers)
    share = degrees.tensor * degrees.pipeline
    trained = num_trained(program)
    state = model_state_bytes(
        trained / share,
        state_of(task.weight_types, task.optimizer),
        divided=(),
        num_ranks=degrees.data,
        num_frozen=(program.num_params - trained) / share,
    )
    kept = float(setting.layer_table(rows * peers).kept_bytes.sum())
    return state + kept / (degrees.tensor * peers)
