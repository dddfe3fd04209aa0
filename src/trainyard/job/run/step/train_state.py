"""Train state: the parameters, buffers and optimizer of one rank, which executors of several lengths share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch

from trainyard.job.lower.lower import Lowered
from trainyard.job.lower.segment import Slot
from trainyard.job.lower.stage_program import StageProgram
from trainyard.job.plan import PIPELINE
from trainyard.job.run.step.optimizer import Optimizer
from trainyard.job.run.step.process_groups import make_groups
from trainyard.job.run.step.state import RankState, Values, local_part
from trainyard.program.program import tensor_of

__all__ = ["TrainState", "slots_of"]


class TrainState:
    """All that one rank keeps from step to step.

    Parameters
    ----------
    lowered : the plan and the optimizer, applied, for the rank.
    values : whole initial values of parameters and buffers by path.

    Attributes
    ----------
    groups : process groups of the rank.
    state, optimizer : trained parameters, and frozen ones that are divided.
    params : parameters that are not gathered on use, by path.
    buffers : by path.
    constants : paths of parameters that are neither trained nor divided.
    exact : values of constants and of buffers that no step writes, before they were rounded to the plan's precision, on
        the CPU. A checkpoint has these, because it may be read in another precision.
    unused : parameters and buffers that no stage needs, whole: rank 0 keeps them, so that checkpoints have all of the
        model.
    """

    def __init__(self, lowered: Lowered, rank: int, values: Values, device: torch.device) -> None:
        self.groups = make_groups(lowered, rank, device)
        stages = lowered.stages_of(self.groups.index(PIPELINE))
        trained = tuple(b for s in stages for b in s.buckets)
        frozen = tuple(b for s in stages for b in s.frozen)
        params, num_microbatches = lowered.params, lowered.plan.num_microbatches
        self.state = RankState(trained, frozen, params, self.groups, values, device, num_microbatches)
        self.params = self.state.param_views()
        self.constants: set[str] = set()
        self.exact: dict[str, torch.Tensor] = {}
        self.buffers: dict[str, torch.Tensor] = {}
        self._add_constants(lowered, stages, values)
        self.unused = _unused(lowered, values) if rank == 0 else {}
        self.optimizer = self._optimizer(lowered)

    def _optimizer(self, lowered: Lowered) -> Optimizer:
        calls = lowered.calls[self.groups.index(PIPELINE)]
        num_updates = Counter(call.action.stage for call in calls if call.action.kind == "U")
        updates_in_step = {name: num_updates[b.bucket.stage] or 1 for name, b in self.state.buckets.items()}
        scales_loss = any(entry.kind == "loss_scale" for entry in lowered.program.inputs)
        return Optimizer(lowered.optimizer, self.state, lowered.params, updates_in_step, scales_loss)

    def _add_constants(self, lowered: Lowered, stages: Sequence[StageProgram], values: Values) -> None:
        """Add buffers, and parameters that are neither trained nor in buckets."""
        results = {name for stage in stages for seg in stage.segments.values() for _, name in seg.results}
        dtypes = {i.path: tensor_of(lowered.program.nodes[i.node]).dtype for i in lowered.program.inputs}
        placements = lowered.inputs[stages[0].stage if stages else 0]
        for slot in slots_of(lowered, self.groups.index(PIPELINE)):
            if slot.kind in ("buffer", "param") and slot.name not in self.params | self.buffers:
                whole = local_part(values(slot.name), placements[slot.name], self.groups)
                part = whole.to(dtypes[slot.name])
                if part.dtype != whole.dtype and f"buffer:{slot.name}" not in results:
                    self.exact[slot.name] = whole.detach()
                (self.params if slot.kind == "param" else self.buffers)[slot.name] = part.to(
                    self.state.device
                )
                if slot.kind == "param":
                    self.constants.add(slot.name)


def slots_of(lowered: Lowered, pipeline_rank: int) -> list[Slot]:
    """Return the inputs of all segments of a pipeline rank."""
    segments = [seg for stage in lowered.stages_of(pipeline_rank) for seg in stage.segments.values()]
    segments += [own] if (own := lowered.totals[pipeline_rank]) is not None else []
    return [slot for segment in segments for slot in segment.inputs]


def _unused(lowered: Lowered, values: Values) -> dict[tuple[str, str], torch.Tensor]:
    segments = [seg for stage in lowered.stages for seg in stage.segments.values()]
    segments += [segment for segment in lowered.totals if segment is not None]
    buckets = [b for stage in lowered.stages for b in (*stage.buckets, *stage.frozen)]
    needed = {slot.name for seg in segments for slot in seg.inputs} | {p for b in buckets for p in b.paths}
    entries = [i for i in lowered.program.inputs if i.kind in ("param", "buffer")]
    return {(i.kind, i.path): values(i.path) for i in entries if i.path not in needed}
