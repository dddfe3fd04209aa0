"""One training run in processes under a plan, beside the same run in plain eager PyTorch."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from made_plan import made_plan
from one_step import summed
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from trainyard.job.lower.lower import Lowered, lower
from trainyard.job.lower.verify import verify
from trainyard.job.optimizer import OptimizerConfig
from trainyard.job.plan import Plan, parse_plan
from trainyard.job.run.processes.fork_server import run_ranks
from trainyard.job.run.step.executor import Executor
from trainyard.job.schedules import make_schedule
from trainyard.job.task import Task
from trainyard.processes import ProcessLimits
from trainyard.program.addresses import address
from trainyard.program.model import Model
from trainyard.program.placement import Placement, Shard, parse_placement
from trainyard.program.program import Program
from trainyard.program.random.positional import PositionalDraws
from trainyard.zoo.registry import build

SEED = 3
STEPS = 5

# Placements of parameters by a pattern of their paths; the rest is left to propagation.
_MEGATRON = {
    r"qkv\.": "S0/3",
    r"attention\.[qkv]\.": "S0",
    r"\.(up|gate)\.": "S0",
    r"(out|down)\.weight": "S1",
}
_BY_HEAD = {r"(head\.weight|head\.bias)": "S0"}
STYLES: dict[str, dict[str, str]] = {
    "": {},
    "megatron": _MEGATRON,
    "sequence": _MEGATRON,
    "vocabulary": {**_MEGATRON, r"^tokens\.weight|^bias$": "S0", **_BY_HEAD},
    "head": _BY_HEAD,
    "experts": {r"experts\.(up|down)": "S0"},
    "columns": {r"(up|down|out|top.*|bottom.*|gates|query|key|convolution)\.weight": "S0", r"qkv\.": "S0/3"},
    "rows": {r"(up|out|qkv|gates|convolution|q|k|v)\.weight": "S1"},
    "embedding columns": {r"^(tokens|source|target|tables\.\d)\.weight": "S1"},
    "embedding rows": {r"^(tokens|source|target|tables\.[01])\.weight": "S0"},
}


@dataclass(frozen=True)
class Cell:
    """A model and a plan for it; every field but the first is the plan's.

    Attributes
    ----------
    tensor_style, data_style : of ``STYLES``, by mesh axis.
    recompute : every forward op but additions.
    clip_norm, dtype : of the training run; with another dtype than float32 the reference is float32 still.
    """

    model: str
    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    schedule: str = "gpipe"
    per_rank: int = 1
    microbatches: int = 1
    zero: int = 0
    tensor_style: str = "megatron"
    data_style: str = ""
    recompute: bool = False
    rows: int = 8
    dtype: str = "float32"
    clip_norm: float = 0.0
    bucket_bytes: int = 20_000

    def __str__(self) -> str:
        default = Cell("")
        named = {k: v for k, v in vars(self).items() if k != "model" and v != getattr(default, k)}
        return " ".join([self.model, *(f"{k}={v}" for k, v in named.items())])

    @property
    def num_ranks(self) -> int:
        return self.data * self.tensor * self.pipeline

    @property
    def optimizer(self) -> OptimizerConfig:
        """SGD: AdamW divides by the gradient's size and so blows up the rounding of one that is zero exactly,
        such as the bias of attention's keys, which shifts all scores of a query alike."""
        return OptimizerConfig("sgd", lr=0.05, momentum=0.9, weight_decay=0.1, clip_norm=self.clip_norm)


@dataclass
class Run:
    """What a training run leaves: after one backward pass, and after ``STEPS`` steps."""

    grads: dict[str, Tensor]
    params: dict[str, Tensor]
    buffers: dict[str, Tensor]
    losses: list[dict[str, float]]
    norms: list[float]


def make_plan(cell: Cell, program: Program) -> Plan:
    """The cell's plan."""
    num_stages = cell.pipeline * cell.per_rank
    forward = [n for n in program.graph.nodes if n.op == "call_function" and n.meta["phase"] == "forward"]
    starts = tuple(address(forward[len(forward) * i // num_stages]) for i in range(1, num_stages))
    styles = {"data": (cell.data, cell.data_style), "tensor": (cell.tensor, cell.tensor_style)}
    again = frozenset(address(n) for n in forward if n.target is not torch.ops.aten.add.Tensor)
    return made_plan(
        program,
        cell.rows,
        make_schedule(cell.schedule, cell.pipeline, cell.microbatches, cell.per_rank),
        data=cell.data,
        tensor=cell.tensor,
        starts=starts,
        placed={axis: _styled(style, program) for axis, (size, style) in styles.items() if size > 1},
        recompute=again if cell.recompute else (),
        zero=cell.zero,
        bucket_bytes=cell.bucket_bytes,
        dtype=cell.dtype,
    )


def _styled(style: str, program: Program) -> dict[str, Placement]:
    found: dict[str, Placement] = {}
    for entry in program.params:
        for pattern, placement in STYLES[style].items():
            if re.search(pattern, entry.path):
                shard = parse_placement(placement)
                assert isinstance(shard, Shard)
                # All axes of these tests have two or four ranks; a head of one output cannot be cut.
                if program.nodes[entry.node].meta["val"].shape[shard.dim] % (4 * shard.blocks) == 0:
                    found[entry.path] = shard
                break
    if style == "sequence":
        # Between the tensor-parallel parts, positions are shared out (arXiv 2205.05198).
        found |= {address(n): Shard(1) for n in program.graph.nodes if _in_residual_stream(n)}
    return found


def _in_residual_stream(node: torch.fx.Node) -> bool:
    return (
        node.op == "call_function"
        and node.meta["phase"] == "forward"
        and node.target is torch.ops.aten.add.Tensor
        and node.meta["val"].dim() == 3
        and node.meta["layer"].count(".") == 1
    )


def initial_values(module: nn.Module) -> dict[str, Tensor]:
    """Random parameters that keep activations of about unit size; buffers as they are."""
    generator = torch.Generator().manual_seed(5)
    values: dict[str, Tensor] = {}
    for name, p in module.named_parameters():
        scale = 0.2 if p.dim() < 2 else (p[0].numel() if p.dim() != 3 else p.shape[1]) ** -0.5
        offset = 1.0 if p.dim() < 2 and name.endswith("weight") else 0.0
        values[name] = torch.randn(p.shape, generator=generator) * scale + offset
    return values | {n: b.clone() for n, b in module.named_buffers()}


def _by_path(batch: Any) -> dict[str, Tensor]:
    return {f"batch.{key}": value for key, value in batch.items()}


@cache
def task_of(model: str, rows: int, dtype: str) -> Task:
    """A model of the zoo, captured once in a process."""
    return Task(build(model, rows), dtype, "microbatch")


def train_rank(rank: int, plan_text: str, optimizer: OptimizerConfig) -> Any:
    """What every process does; the program is captured again from the model's name."""
    plan = parse_plan(plan_text)
    task = task_of(plan.model, plan.num_rows, plan.dtype)
    executor = Executor(
        lower(task.program(plan.rows_per_microbatch), plan, optimizer),
        rank,
        initial_values(task.model.module).__getitem__,
        torch.device("cpu"),
        seed=SEED,
    )
    buffers = dict(executor.buffers)
    batch = _by_path(task.model.batch)
    executor.forward_backward(batch, 0)
    state = executor.state
    _, grads = summed(executor)
    executor.buffers = buffers
    results = [executor.step(batch, step) for step in range(STEPS)]
    params = state.local_tensors({n: s.master for n, s in state.buckets.items()})
    # As NumPy arrays, which are sent by value.
    parts = pytree.tree_map(lambda t: t.float().numpy(), (grads, params, executor.buffers))
    return executor.groups.coordinate, parts, results


def _train_all(rank: int, work: list[tuple[str, OptimizerConfig]]) -> list[Any]:
    return [train_rank(rank, text, optimizer) for text, optimizer in work]


def run_plans(cells: Sequence[Cell]) -> list[Run]:
    """Train under the plans of cells of equally many ranks, in one process per rank, and put the parts together."""
    plans = [_plan_of(cell) for cell in cells]
    work = [(plan.to_text(), cell.optimizer) for plan, cell in zip(plans, cells, strict=True)]
    by_rank = run_ranks(plans[0].num_ranks, _train_all, work, limits=ProcessLimits(120 + 60 * len(cells)))
    return [_run_of(plan, answers) for plan, answers in zip(plans, zip(*by_rank, strict=True), strict=True)]


def _plan_of(cell: Cell) -> Plan:
    task = task_of(cell.model, cell.rows, cell.dtype)
    plan = make_plan(cell, task.program(cell.rows // cell.microbatches))
    return replace(plan, statistics=task.statistics_in(cell.microbatches))


def _run_of(plan: Plan, answers: Sequence[Any]) -> Run:
    program = task_of(plan.model, plan.num_rows, plan.dtype).program(plan.rows_per_microbatch)
    lowered = lower(program, plan)
    verify(lowered)
    parts = {plan.rank_at(where): pytree.tree_map(torch.from_numpy, found) for where, found, _ in answers}
    results = answers[0][2]
    for _, _, others in answers:
        assert others == results, "ranks report different losses or norms"
    return Run(
        {path: _whole(lowered, parts, 0, path) for path in _trained(program)},
        {path: _whole(lowered, parts, 1, path) for path in _trained(program)},
        {path: _whole(lowered, parts, 2, path) for path in _written_buffers(program)},
        [dict(r.losses) for r in results],
        [r.grad_norm for r in results],
    )


def _trained(program: Program) -> list[str]:
    return [o.path for o in program.outputs if o.kind == "grad"]


def _written_buffers(program: Program) -> list[str]:
    return [o.path for o in program.outputs if o.kind == "buffer"]


def _whole(lowered: Lowered, parts: Mapping[Any, Any], which: int, path: str) -> Tensor:
    """A tensor from its parts; every rank that holds the same part must hold the same numbers."""
    plan = lowered.plan
    placements = lowered.inputs[0][path]
    found = []
    for pipeline in range(plan.pipeline):
        of_ranks = [parts[rank][which].get(path) for rank in plan.ranks(pipeline)]
        for axis, size in reversed(plan.mesh.sizes):
            groups = [of_ranks[i : i + size] for i in range(0, len(of_ranks), size)]
            of_ranks = [None if g[0] is None else _join(g, placements.get(axis)) for g in groups]
        if of_ranks[0] is not None:
            found += of_ranks
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=0, atol=0, msg=f"stages disagree on {path}")
    return found[0]


def _join(parts: list[Tensor], placement: Placement | None) -> Tensor:
    if isinstance(placement, Shard):
        cut = [p.unflatten(placement.dim, (placement.blocks, -1)) for p in parts]
        return torch.cat(cut, placement.dim + 1).flatten(placement.dim, placement.dim + 1)
    for other in parts[1:]:
        torch.testing.assert_close(other, parts[0], rtol=1e-6, atol=1e-7)
    return parts[0]


@cache
def run_eager(model_name: str, rows: int, microbatches: int, optimizer: OptimizerConfig) -> Run:
    """The reference: eager PyTorch, one process; the mean over microbatches that are computed by themselves."""
    model = build(model_name, rows)
    module = model.module
    values = initial_values(module)
    with torch.no_grad():
        for name, p in module.named_parameters():
            p.copy_(values[name])
    inner = torch.optim.SGD(
        module.parameters(), optimizer.lr, optimizer.momentum, weight_decay=optimizer.weight_decay
    )
    kept = {n: b.clone() for n, b in module.named_buffers()}
    _forward_backward(model, rows, microbatches, 0)
    grads = {n: p.grad.clone() for n, p in module.named_parameters() if p.grad is not None}
    for name, buffer in module.named_buffers():
        buffer.copy_(kept[name])
    losses, norms = [], []
    for step in range(STEPS):
        losses.append(_forward_backward(model, rows, microbatches, step))
        limit = optimizer.clip_norm or float("inf")
        norms.append(float(torch.nn.utils.clip_grad_norm_(module.parameters(), limit)))
        inner.step()
    params = {n: p.detach().clone() for n, p in module.named_parameters()}
    return Run(grads, params, {n: b.clone().float() for n, b in module.named_buffers()}, losses, norms)


def _forward_backward(model: Model, rows: int, microbatches: int, step: int) -> dict[str, float]:
    model.module.zero_grad()
    size = rows // microbatches
    sums: dict[str, float] = {}
    for first in range(0, rows, size):
        part = {name: value[first : first + size] for name, value in model.batch.items()}
        with PositionalDraws(torch.tensor([SEED, step, first]), size):
            result = model.loss(model.module, part)
            loss, metrics = result if isinstance(result, tuple) else (result, {})
            (loss / microbatches).backward()
        named = {"loss:loss": loss.detach(), **{f"metric:{k}": m.detach() for k, m in metrics.items()}}
        sums = {k: sums.get(k, 0.0) + float(v) / microbatches for k, v in named.items()}
    return sums


def worst(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> tuple[float, str]:
    """The largest relative difference of a tensor (in the Euclidean norm), and its name.

    A tensor much smaller than the others is compared with a twentieth of their mean size per element: what is
    zero in exact arithmetic (the bias of attention's keys) is only rounding on either side.
    """
    count = sum(t.numel() for t in wanted.values())
    mean = sum(float(t.double().square().sum()) for t in wanted.values()) / max(1, count)
    answer = (0.0, "")
    for name, right in wanted.items():
        floor = 0.05 * (mean * right.numel()) ** 0.5
        difference = float((found[name].double() - right.double()).norm())
        answer = max(answer, (difference / max(float(right.double().norm()), floor, 1e-30), name))
    return answer


def differences(cells: Sequence[Cell]) -> dict[str, dict[str, tuple[float, str]]]:
    """How far the runs of plans are from the eager ones: by cell and kind, the largest relative difference and where."""
    return {str(cell): _differences(cell, run) for cell, run in zip(cells, run_plans(cells), strict=True)}


def _differences(cell: Cell, found: Run) -> dict[str, tuple[float, str]]:
    alone = task_of(cell.model, cell.rows, cell.dtype).program(cell.rows // cell.microbatches).is_separate
    wanted = run_eager(cell.model, cell.rows, cell.microbatches if alone else 1, cell.optimizer)

    def scalars(run: Run) -> dict[str, Tensor]:
        named = {f"{k} {i}": v for i, losses in enumerate(run.losses) for k, v in losses.items()}
        return {k: torch.tensor(v) for k, v in named.items()}

    return {
        "losses": worst(scalars(found), scalars(wanted)),
        "norms": worst({"all": torch.tensor(found.norms)}, {"all": torch.tensor(wanted.norms)}),
        "grads": worst(found.grads, wanted.grads),
        "params": worst(found.params, wanted.params),
        "buffers": worst(found.buffers, {k: wanted.buffers[k] for k in found.buffers}),
    }
