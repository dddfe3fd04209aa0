"""Executor: runs one rank's part of a plan, action by action."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import fx

from trainyard.job.lower.lower import Lowered, Transfer
from trainyard.job.plan import DATA, PIPELINE, TENSOR
from trainyard.job.run.mesh import Mesh
from trainyard.job.run.on_device import on_device
from trainyard.job.run.optimizer import Optimizer, OptimizerConfig
from trainyard.job.run.reuse import reuse_operands
from trainyard.job.run.state import State, Values, local_part
from trainyard.job.schedule import Action, Kind
from trainyard.program.placement import Partial, Placement
from trainyard.program.spmd import bind


@dataclass(frozen=True)
class StepResult:
    """What one step reports: the loss and metrics, averaged over the batch, and the gradient's global norm."""

    losses: Mapping[str, float]
    grad_norm: float


class Executor:
    """One rank.

    Parameters
    ----------
    lowered : the plan, applied.
    rank : of this process; the process group is initialised if there is more than one.
    values : whole initial values of parameters and buffers by path.
    """

    def __init__(
        self,
        lowered: Lowered,
        rank: int,
        values: Values,
        optimizer: OptimizerConfig,
        device: torch.device,
        seed: int = 0,
    ) -> None:
        plan = lowered.plan
        self.lowered, self.plan, self.device, self.seed = lowered, plan, device, seed
        shared = frozenset(p.stages for p in lowered.params.values() if len(p.stages) > 1 and p.trainable)
        self.mesh = Mesh(plan, rank, shared)
        mine = set(plan.schedule.stages_of(self.mesh.index(PIPELINE)))
        self.stages = [s for s in lowered.stages if s.stage in mine]
        self.actions = plan.schedule.actions[self.mesh.index(PIPELINE)]
        self.state = State(
            tuple(b for s in self.stages for b in s.buckets),
            lowered.params,
            self.mesh,
            values,
            getattr(torch, plan.dtype),
            device,
            plan.zero_stage,
            plan.num_microbatches,
        )
        self.params = self.state.param_views()
        self._add_constants(values)
        self.optimizer = Optimizer(optimizer, self.state, self.mesh)
        self.calls = {
            (s.stage, kind): self._runnable(seg.graph_module)
            for s in self.stages
            for kind, seg in s.segments.items()
        }
        self.values: dict[tuple[int, str, int], torch.Tensor] = {}
        self.sending: list[tuple[dist.Work, torch.Tensor]] = []
        self.receiving: dict[tuple[str, int, int], tuple[dist.Work, torch.Tensor]] = {}
        self._index_transfers()

    def _runnable(self, graph_module: fx.GraphModule) -> Callable[[list[Any]], Any]:
        """The function of a graph, without the layers of calls that a module has."""
        bound = on_device(bind(graph_module, self), self.device)
        if self.device.type == "cpu":
            reuse_operands(bound.graph)
            bound.recompile()
        return bound.forward

    def _add_constants(self, values: Values) -> None:
        """Buffers, and parameters that are not trained (``constants``)."""
        self.constants: set[str] = set()
        self.buffers: dict[str, torch.Tensor] = {}
        dtype = getattr(torch, self.plan.dtype)
        for stage in self.stages:
            for slot in (s for seg in stage.segments.values() for s in seg.inputs):
                if slot.kind in ("buffer", "param") and slot.name not in self.params | self.buffers:
                    part = local_part(values(slot.name), self.lowered.inputs[slot.name], self.mesh)
                    part = part.to(dtype) if part.is_floating_point() else part
                    (self.params if slot.kind == "param" else self.buffers)[slot.name] = part.to(self.device)
                    if slot.kind == "param":
                        self.constants.add(slot.name)

    def _index_transfers(self) -> None:
        """Which values go from and to which actions; ``kept`` are those that a stage's later segments take."""
        self.kept = {
            s.stage: {slot.name for seg in s.segments.values() for slot in seg.inputs if slot.kind == "value"}
            for s in self.stages
        }
        self.handed_over: dict[tuple[int, Kind], list[Transfer]] = {}
        self.sends: dict[tuple[int, Kind], list[tuple[int, Transfer]]] = {}
        self.receives: dict[tuple[int, Kind], list[tuple[int, Transfer]]] = {}
        for tag, transfer in enumerate(self.lowered.transfers):
            if self.plan.schedule.rank_of(transfer.source) == self.plan.schedule.rank_of(transfer.target):
                self.handed_over.setdefault((transfer.source, transfer.after), []).append(transfer)
                continue
            self.sends.setdefault((transfer.source, transfer.after), []).append((tag, transfer))
            self.receives.setdefault((transfer.target, transfer.before), []).append((tag, transfer))

    # What lowered graphs call beside the mesh's collectives.

    def __getattr__(self, name: str) -> Any:
        if name in ("axis_offset", "all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
            return getattr(self.mesh, name)
        if name in ("accumulate_grads", "gather_params"):
            return getattr(self.state, name)
        raise AttributeError(name)

    def step(self, batch: Mapping[str, torch.Tensor], step: int) -> StepResult:
        """Run one training step.

        Parameters
        ----------
        batch : the tensors of the whole batch (all microbatches, all ranks) by path; this rank takes its rows.
        step : its number, for the dropout masks.
        """
        sums = self.forward_backward(batch, step)
        grads = self.state.finish_gradients()
        norm = self.optimizer.step(grads)
        self.state.publish_weights()
        return StepResult(self._reduce_losses(sums), norm)

    def forward_backward(self, batch: Mapping[str, torch.Tensor], step: int) -> dict[str, torch.Tensor]:
        """All actions of a step; gradients are left in the state, sums of the losses are returned."""
        sums: dict[str, torch.Tensor] = {}
        rows = self.plan.rows_per_microbatch
        for i, action in enumerate(self.actions):
            for ahead in self.actions[i : i + 2]:
                self._post_receives(ahead)
            self._collect_receives(action)
            first = action.microbatch * rows
            inputs = {path: value[first : first + rows] for path, value in batch.items()}
            rng = torch.tensor([self.seed, step, first])
            self._run(action, inputs, rng, sums)
        for work, _ in self.sending:
            work.wait()
        self.sending.clear()
        self.values.clear()
        return sums

    def _run(
        self, action: Action, batch: dict[str, torch.Tensor], rng: torch.Tensor, sums: dict[str, torch.Tensor]
    ) -> None:
        segment = self.lowered.stages[action.stage].segments[action.kind]
        arguments: list[Any] = []
        for slot in segment.inputs:
            if slot.kind == "value":
                arguments.append(self.values[action.stage, slot.name, action.microbatch])
            elif slot.kind == "param":
                arguments.append(self.params[slot.name])
            elif slot.kind == "buffer":
                arguments.append(self.buffers[slot.name])
            elif slot.kind == "batch":
                arguments.append(self._batch_part(slot.name, batch))
            else:
                arguments.append(rng)
        if action.kind in ("B", "W"):
            for name in self.kept[action.stage]:
                self.values.pop((action.stage, name, action.microbatch), None)
        outputs = self.calls[action.stage, action.kind](arguments)
        for name, value in zip(segment.outputs, outputs, strict=True):
            result = segment.results.get(name)
            if result is None or name in self.kept[action.stage]:
                self.values[action.stage, name, action.microbatch] = value
            if result is None:
                continue
            if result.startswith("buffer:"):
                self.buffers[result.removeprefix("buffer:")] = value
            else:
                sums[result] = sums.get(result, 0) + value.float()
        self._post_sends(action)
        for name in segment.outputs:
            if name not in self.kept[action.stage]:
                self.values.pop((action.stage, name, action.microbatch), None)

    def _batch_part(self, path: str, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return local_part(batch[path], self.lowered.inputs[path], self.mesh).to(self.device)

    def _post_receives(self, action: Action) -> None:
        for tag, transfer in self.receives.get((action.stage, action.kind), ()):
            key = (transfer.value, transfer.target, action.microbatch)
            if key not in self.receiving:
                buffer = torch.empty(transfer.shape, dtype=getattr(torch, transfer.dtype), device=self.device)
                peer = self.mesh.peer(transfer.source)
                work = dist.irecv(buffer, peer, tag=self._tag(tag, action.microbatch))
                assert work is not None
                self.receiving[key] = (work, buffer)

    def _collect_receives(self, action: Action) -> None:
        for _, transfer in self.receives.get((action.stage, action.kind), ()):
            work, buffer = self.receiving.pop((transfer.value, transfer.target, action.microbatch))
            work.wait()
            self.values[transfer.target, transfer.value, action.microbatch] = buffer

    def _post_sends(self, action: Action) -> None:
        for transfer in self.handed_over.get((action.stage, action.kind), ()):
            value = self.values[transfer.source, transfer.value, action.microbatch]
            self.values[transfer.target, transfer.value, action.microbatch] = value
        self.sending = [(w, t) for w, t in self.sending if not w.is_completed()]
        for tag, transfer in self.sends.get((action.stage, action.kind), ()):
            value = self.values[transfer.source, transfer.value, action.microbatch].contiguous()
            work = dist.isend(value, self.mesh.peer(transfer.target), tag=self._tag(tag, action.microbatch))
            assert work is not None
            self.sending.append((work, value))
            self.mesh.sent_bytes += value.numel() * value.element_size()

    def _tag(self, transfer: int, microbatch: int) -> int:
        return transfer * self.plan.num_microbatches + microbatch

    def _reduce_losses(self, sums: dict[str, torch.Tensor]) -> dict[str, float]:
        """Averages over microbatches and ranks of what some stages computed."""
        names = sorted(self.lowered.results)
        names = [n for n in names if not n.startswith("buffer:")]
        totals = torch.zeros(len(names), dtype=torch.float64)
        for i, name in enumerate(names):
            if name in sums:
                totals[i] = sums[name].double().cpu() * self._weight(self.lowered.results[name])
        if self.plan.num_ranks > 1:
            totals = totals.to(self.device)
            dist.all_reduce(totals)
        return {n: float(t) / self.plan.num_microbatches for n, t in zip(names, totals, strict=True)}

    def _weight(self, placements: Mapping[str, Placement]) -> float:
        """A rank's share in a sum over all ranks: whole for terms of a sum, a part for copies and averages."""
        weight = 1.0
        for axis in (DATA, TENSOR):
            placement = placements.get(axis)
            if not (isinstance(placement, Partial) and placement.reduction == "sum"):
                weight /= self.mesh.size(axis)
        return weight
