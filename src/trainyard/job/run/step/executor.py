"""Executor: runs one rank's part of a plan, action by action."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import fx

from trainyard.job.lower.calls import Call, Delivery, is_handed_over
from trainyard.job.lower.in_place import apply_writes
from trainyard.job.lower.lower import Lowered
from trainyard.job.lower.segment import Slot
from trainyard.job.lower.update import graph_module
from trainyard.job.plan import MICROBATCH, PIPELINE
from trainyard.job.run.step.messages import StageMessages
from trainyard.job.run.step.on_device import on_device
from trainyard.job.run.step.recorder import StepRecorder
from trainyard.job.run.step.state import Values, local_part
from trainyard.job.run.step.step_result import StepResult
from trainyard.job.run.step.train_state import TrainState, slots_of
from trainyard.job.schedule import Action
from trainyard.program.placement import Partial, Placement
from trainyard.program.program import tensor_of
from trainyard.program.spmd import UNBOUND, bind

_OPS = {op.__name__ for op in UNBOUND}


class Executor:
    """One rank.

    Parameters
    ----------
    lowered : the plan and the optimizer, applied.
    rank : of this process; the process group is initialised if there is more than one.
    values : whole initial values of parameters and buffers by path.
    recorder : of the ops of steps; None does without.
    train_state : the parameters, buffers and optimizer of the rank, of an executor for batches of another length (see
        `lower_at_length`); None makes them of ``values``.
    """

    def __init__(
        self,
        lowered: Lowered,
        rank: int,
        values: Values,
        device: torch.device,
        seed: int = 0,
        recorder: StepRecorder | None = None,
        train_state: TrainState | None = None,
    ) -> None:
        self.recorder = recorder
        plan, lowered = lowered.plan, lowered.for_rank(rank)
        self.lowered, self.plan, self.device, self.seed = lowered, plan, device, seed
        self.train_state = kept = train_state or TrainState(lowered, rank, values, device)
        self.groups, self.state, self.optimizer = kept.groups, kept.state, kept.optimizer
        self.params, self.buffers, self.constants = kept.params, kept.buffers, kept.constants
        self.exact, self.unused = kept.exact, kept.unused
        self.messages = StageMessages(lowered, self.groups, device)
        self.stages = lowered.stages_of(self.groups.index(PIPELINE))
        self.calls = lowered.calls[self.groups.index(PIPELINE)]
        self.own_totals = lowered.totals[self.groups.index(PIPELINE)]
        self.dtypes = {i.path: tensor_of(lowered.program.nodes[i.node]).dtype for i in lowered.program.inputs}
        self.made = self._made()
        self.functions = {
            (s.stage, kind): self._runnable(seg.graph_module, f"{s.stage}{kind}")
            for s in self.stages
            for kind, seg in s.segments.items()
        }
        self._bind_updates()
        # Parameters that were updated since, and are needed still, by stage and version; and the present call's.
        self.older: dict[tuple[int, int], dict[str, torch.Tensor]] = {}
        self.version = (0, 0)
        self.microbatch = 0
        self.sums: dict[str, torch.Tensor] = {}
        self.totals: dict[str, torch.Tensor] = {}
        if self.own_totals is not None:
            self.compute_totals = self._runnable(self.own_totals.graph_module, "totals")
        self.values: dict[tuple[int, str, int], torch.Tensor] = {}
        self.summing_losses: tuple[tuple[str, ...], torch.Tensor, dist.Work | None] | None = None
        self.whole = {i.path for i in lowered.program.inputs if i.whole}
        self.not_kept = {
            (s.stage, kind): set(segment.outputs) - s.kept[kind]
            for s in self.stages
            for kind, segment in s.segments.items()
        }
        self.freed = {(s.stage, kind): names for s in self.stages for kind, names in s.freed.items()}

    def _bind_updates(self) -> None:
        """The functions of the end of a step, of a checkpoint that was read, and of updates between the actions."""

        def function(graph: fx.Graph, name: str) -> Callable[[], Any]:
            return self._recorded(bind(graph_module(graph), self), name)

        end = self.lowered.updates[self.groups.index(PIPELINE)]
        self.update = {name: function(graph, name) for name, graph in end.routines.items()}
        self.restored = function(end.restored, "restored")
        kinds = {call.update for call in self.calls if call.action.kind == "U"}
        self.stage_updates = {
            kind: function(self.lowered.stage_updates[kind], f"{kind.stage}U") for kind in kinds
        }

    def _recorded(self, bound: fx.GraphModule, routine: str) -> Callable[..., Any]:
        """The function of a graph, whose ops are recorded if they are to be."""
        if self.recorder is not None:
            self.recorder.watch(bound, routine)
        bound.recompile()
        return bound.forward

    def _runnable(self, graph_module: fx.GraphModule, routine: str) -> Callable[[list[Any]], Any]:
        """The function of a graph, without the layers of calls that a module has."""
        bound = on_device(bind(graph_module, self), self.device)
        apply_writes(bound, lambda bucket, place: self.state.buckets[bucket].grad_views[place])
        return self._recorded(bound, routine)

    def _made(self) -> dict[str, torch.Tensor]:
        """Return this rank's parts of tensors that the model makes itself, constants of the graph, by path."""
        constants, groups = self.lowered.program.constants, self.groups
        slots = slots_of(self.lowered, groups.index(PIPELINE))
        paths = [slot.name for slot in slots if slot.kind == "constant"]
        return {p: local_part(constants[p], self.placements(p), groups).to(self.device) for p in paths}

    def placements(self, path: str) -> Mapping[str, Placement]:
        """Return the placement of an input other than the batch, the same in all stages of this rank."""
        return self.lowered.inputs[self.stages[0].stage if self.stages else 0][path]

    # What lowered graphs call.

    def __getattr__(self, name: str) -> Any:
        """An op of lowered graphs, of the part that runs it."""
        if name in ("groups", "messages", "state", "optimizer") or name not in _OPS:
            raise AttributeError(name)
        parts = (self.groups, self.messages, self.state, self.optimizer)
        return next(getattr(part, name) for part in parts if hasattr(part, name))

    def axis_offset(self, axis: str, scale: int) -> int:
        """This rank's index on an axis of the mesh, or the number of the microbatch, times ``scale``."""
        return self.microbatch * scale if axis == MICROBATCH else self.groups.axis_offset(axis, scale)

    def step(self, batch: Mapping[str, torch.Tensor], step: int, keep_buffers: bool = False) -> StepResult:
        """Run one training step.

        Parameters
        ----------
        batch : the tensors of the whole batch (all microbatches, all ranks) by path; this rank takes its rows.
        step : its number, for the dropout masks.
        keep_buffers : of a step that is not finite, put buffers back to what they were.
        """
        before = dict(self.buffers) if keep_buffers else None
        began_s, waited_s = time.perf_counter(), self.groups.waited_s
        loss_scale = None if self.optimizer.loss_scale is None else self.optimizer.loss_scale.value
        if self.recorder is not None:
            self.recorder.begin_step()
        self.forward_backward(batch, step)
        middle_s, then_waited_s = time.perf_counter(), self.groups.waited_s
        if self.recorder is not None:
            self.recorder.begin("update")
        self.update["gradients"]()
        losses, norm, is_finite = self.update["parameters"]()
        if is_finite:
            self.update["weights"]()
        elif before is not None:
            self.buffers |= before
        wait_s = self.groups.waited_s - waited_s
        forward_backward_s = middle_s - began_s - (then_waited_s - waited_s)
        update_s = time.perf_counter() - began_s - forward_backward_s - wait_s
        return StepResult(losses, norm, is_finite, forward_backward_s, wait_s, update_s, loss_scale)

    def forward_backward(self, batch: Mapping[str, torch.Tensor], step: int) -> None:
        """All actions of a step; this rank's gradients are left in the state, and its losses in ``sums``.

        Its last messages may be under way still: who does not go on with the update waits for them (`wait_sends`).
        """
        self.sums = {}
        self._compute_totals(batch, torch.tensor([self.seed, step, 0]))
        for call in self.calls:
            self._run(call, batch, step)
        self.values.clear()

    def _run(self, call: Call, batch: Mapping[str, torch.Tensor], step: int) -> None:
        """One call, and the messages that belong to it."""
        if self.recorder is not None:
            self.recorder.begin(str(call.action))
        for delivery in call.posts:
            self.messages.post(delivery)
        for delivery in call.receives:
            transfer = self.lowered.transfers[delivery.transfer]
            self.values[transfer.target, transfer.value, delivery.microbatch] = self.messages.receive(
                delivery
            )
        self.messages.let_go(call.arrived)
        if self.recorder is not None and call.receives:
            self.recorder.tick("", "receive")
        self.version = call.action.stage, call.weights.version
        self.state.num_microbatches = call.weights.num_own
        if call.action.kind == "U":
            self.stage_updates[call.update]()
        else:
            self._run_pass(call.action, batch, step)
            if call.weights.is_last:
                del self.older[self.version]
        for delivery in call.sends:
            self._send(delivery)
        if self.recorder is not None and call.sends:
            self.recorder.tick("", "send")
        for name in self.not_kept.get((call.action.stage, call.action.kind), ()):
            del self.values[call.action.stage, name, call.action.microbatch]

    def _run_pass(self, action: Action, batch: Mapping[str, torch.Tensor], step: int) -> None:
        self.microbatch = action.microbatch
        rows = self.plan.rows_per_microbatch
        first = action.microbatch * rows
        part = {p: value if p in self.whole else value[first : first + rows] for p, value in batch.items()}
        # Where the batch was split the position of its rows is part of the graph.
        rng = torch.tensor([self.seed, step, first if self.lowered.program.is_separate else 0])
        self._compute(action, part, rng)

    def _compute(self, action: Action, batch: Mapping[str, torch.Tensor], rng: torch.Tensor) -> None:
        segment = self.lowered.stages[action.stage].segments[action.kind]
        params = self.params | self.older[self.version] if self.version in self.older else self.params
        arguments: list[Any] = []
        for slot in segment.inputs:
            if slot.kind == "value":
                arguments.append(self.values[action.stage, slot.name, action.microbatch])
            elif slot.kind == "param":
                arguments.append(params[slot.name])
            else:
                arguments.append(self._input(slot, batch, rng, action.stage))
        # The graph empties the list of its arguments, so each is let go of within, after its last use.
        for name in self.freed[action.stage, action.kind]:
            del self.values[action.stage, name, action.microbatch]
        outputs = self.functions[action.stage, action.kind](arguments)
        made = dict(zip(segment.outputs, outputs, strict=True))
        del outputs
        for name, value in made.items():
            self.values[action.stage, name, action.microbatch] = value
        for name, result in segment.results:
            if result.startswith("buffer:"):
                self.buffers[result.removeprefix("buffer:")] = made[name]
            else:
                self.sums[result] = self.sums.get(result, 0) + made[name].float()

    def _input(
        self, slot: Slot, batch: Mapping[str, torch.Tensor], rng: torch.Tensor, stage: int
    ) -> torch.Tensor:
        """Return the value of a placeholder that no segment has made."""
        held = {
            "param": self.params,
            "buffer": self.buffers,
            "constant": self.made,
            "total": self.totals,
        }.get(slot.kind)
        if held is not None:
            return held[slot.name]
        if slot.kind == "loss_scale":
            assert self.optimizer.loss_scale is not None
            return self.optimizer.loss_scale.tensor
        return self._batch_part(slot.name, batch, stage) if slot.kind == "batch" else rng

    def _compute_totals(self, batch: Mapping[str, torch.Tensor], rng: torch.Tensor) -> None:
        """Before the first microbatch: what all of them need of the whole batch."""
        segment = self.own_totals
        if segment is not None:
            own = segment.stage
            found = self.compute_totals([self._input(slot, batch, rng, own) for slot in segment.inputs])
            made = dict(zip(segment.outputs, found, strict=True))
            self.totals = {path: made[name] for name, path in segment.results}

    def _batch_part(self, path: str, batch: Mapping[str, torch.Tensor], stage: int) -> torch.Tensor:
        part = local_part(batch[path], self.lowered.inputs[stage][path], self.groups)
        return part.to(self.device, self.dtypes[path])

    def _send(self, delivery: Delivery) -> None:
        """Send a value, or hand it over to another stage of this rank."""
        transfer = self.lowered.transfers[delivery.transfer]
        value = self.values[transfer.source, transfer.value, delivery.microbatch]
        if is_handed_over(self.plan.schedule, transfer):
            self.values[transfer.target, transfer.value, delivery.microbatch] = value
        else:
            self.messages.send(delivery, value)

    # What the routines of the update call; see ``trainyard.job.lower.update``.

    def keep_weights(self, names: Sequence[str]) -> None:
        """Keep the weights of microbatches in flight; the next ones are made in a copy."""
        paths = [path for name in names for path in self.state.buckets[name].bucket.paths]
        self.older[self.version] = {path: self.params[path] for path in paths}
        self.state.move_weights(names)
        self.params |= self.state.param_views(names)

    def start_losses(self, names: tuple[str, ...]) -> None:
        """Start to average over microbatches and ranks what some stages computed."""
        totals = torch.zeros(len(names), dtype=torch.float64)
        for i, name in enumerate(names):
            if name in self.sums:
                totals[i] = self.sums[name].double().cpu() * self._weight(self.lowered.results[name])
        totals = totals.to(self.device)
        work = dist.all_reduce(totals, async_op=True) if self.plan.num_ranks > 1 else None
        self.summing_losses = names, totals, work

    def wait_losses(self) -> dict[str, float]:
        """The losses and metrics of the whole batch, by name."""
        assert self.summing_losses is not None
        names, totals, work = self.summing_losses
        if work is not None:
            self.groups.finish(work)
        return dict(zip(names, totals.tolist(), strict=True))

    def sum_over_ranks(self, x: torch.Tensor) -> torch.Tensor:
        """A number of every rank, summed; on the CPU."""
        shared = x.to(self.device)
        self.groups.finish(dist.all_reduce(shared, async_op=True))
        return shared.cpu()

    def _weight(self, placements: Mapping[str, Placement]) -> float:
        """A rank's share in a sum over all ranks: whole for terms of a sum, a part for copies and averages."""
        weight = 1.0
        for axis in self.groups.mesh.axes:
            placement = placements.get(axis)
            if placement == Partial("avg"):
                share = self.groups.shares[axis]
                weight *= share.held / share.of
            elif not (isinstance(placement, Partial) and placement.reduction == "sum"):
                weight /= self.groups.size(axis)
        return weight
