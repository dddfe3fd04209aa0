"""The optimizer step on one rank's part of the parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from trainyard.job.lower.buckets import Param
from trainyard.job.optimizer import OptimizerConfig
from trainyard.job.optimizer.config import EMA, OWN_STATE
from trainyard.job.optimizer.groups import ParameterGroup
from trainyard.job.optimizer.own import Optimizers, Piece, make_optimizer
from trainyard.job.optimizer.rates import rate_factor
from trainyard.job.run.step.loss_scale import LossScale
from trainyard.job.run.step.own_state import numbers_of, set_group_numbers, state_numbers, tensors_of
from trainyard.job.run.step.segments import Segment, group_segments, parameter_segments
from trainyard.job.run.step.state import RankState


class Optimizer:
    """Updates the float32 parameters of a rank.

    PyTorch's optimizers know ranges of the flat masters: those of each group of parameters, or, for a user's own
    optimizer, of each parameter.

    Parameters
    ----------
    params : descriptions of the parameters, by path.
    updates_in_step : how often a step updates each bucket, by name.
    scales_loss : gradients are those of a multiple of the loss.

    Attributes
    ----------
    segments : of each bucket's master, by name.
    ema : moving average of each bucket's master, by name; none before the first update.
    num_steps : that have changed the parameters.
    described : the user's optimizer, in one line; empty for the others.
    loss_scale : the factor of the loss whose gradients the state has; None if it has those of the loss.
    """

    def __init__(
        self,
        config: OptimizerConfig,
        state: RankState,
        params: Mapping[str, Param],
        updates_in_step: Mapping[str, int],
        scales_loss: bool = False,
    ) -> None:
        self.config, self.state, self.updates_in_step = config, state, updates_in_step
        self.num_steps = 0
        # Updates of each bucket, and of those of this step the mean of the squares of their norms.
        self.num_updates = dict.fromkeys(updates_in_step, 0)
        self.mean_square = torch.zeros((), dtype=torch.float64)
        # Moments that were read from a checkpoint, until an optimizer may keep others.
        self.restored: dict[str, dict[str, torch.Tensor]] = {}
        self.ema: dict[str, torch.Tensor] = {}
        self.segments: dict[str, list[Segment]] = {}
        self.loss_scale = LossScale(state.device) if scales_loss else None
        self.inner = self._built_in(params) if config.make is None else self._own(params)
        for group in self.inner.param_groups:
            group.setdefault("initial_lr", group.get("lr", 1.0))
        self.described = "" if config.make is None else self.inner.described

    def _built_in(self, params: Mapping[str, Param]) -> Optimizers:
        """PyTorch's fused optimizer of the segments of each group."""
        parts: dict[ParameterGroup, list[torch.Tensor]] = {}
        for name, bucket in self.state.buckets.items():
            found = group_segments(self.config, bucket, self.state.shard_index(bucket.bucket), params)
            for group, segments in found.items():
                parts.setdefault(group, []).extend(segment.part for segment in segments)
            self.segments[name] = [segment for segments in found.values() for segment in segments]
        config = self.config
        groups: list[dict[str, Any]] = [
            {"params": members, "lr": config.lr * group.lr_scale, "weight_decay": group.weight_decay}
            for group, members in parts.items()
        ]
        # A rank without trained parameters has one of no elements: PyTorch's optimizers refuse an empty list.
        groups = groups or [{"params": [torch.zeros(0, device=self.state.device)]}]
        if config.name == "adamw":
            return Optimizers(
                lambda _: torch.optim.AdamW(groups, config.lr, config.betas, config.eps, fused=True), []
            )
        return Optimizers(lambda _: torch.optim.SGD(groups, config.lr, config.momentum, fused=True), [])

    def _own(self, params: Mapping[str, Param]) -> Optimizers:
        """The user's optimizer of parameters, or of those parts of them that this rank keeps."""
        pieces: dict[str, list[Piece]] = {}
        for name, bucket in self.state.buckets.items():
            self.segments[name] = parameter_segments(bucket, self.state.shard_index(bucket.bucket))
            for segment in self.segments[name]:
                (path,) = segment.paths
                last = segment.start + segment.last - segment.first
                pieces.setdefault(path, []).append(Piece(segment.start, last, segment.part))
        shapes = {path: param.whole_shape for path, param in params.items() if param.trainable}
        assert self.config.make is not None
        return make_optimizer(self.config.make, shapes, pieces, self.state.device)

    @property
    def learning_rate(self) -> float:
        """The rate of the last update, of the first group of parameters."""
        return float(self.inner.param_groups[0]["lr"])

    # What the routine of the update calls; see ``trainyard.job.lower.update``.

    def squared_norm(self, names: Sequence[str], num_holders: Sequence[int]) -> torch.Tensor:
        """This rank's part of the square of the gradients' norm, [] in float64.

        Parameters
        ----------
        num_holders : ranks that hold the same elements as this one, for each bucket: every element counts once.
        """
        grads = self.state.gradients(names)
        norms = torch.stack(torch._foreach_norm(grads)).cpu() if grads else torch.zeros(0)
        total = torch.zeros((), dtype=torch.float64)
        for norm, holders in zip(norms, num_holders, strict=True):
            total += norm.double() ** 2 / holders
        return total

    def update_parameters(
        self, names: Sequence[str], squared_norm: torch.Tensor, losses: Mapping[str, float]
    ) -> tuple[Mapping[str, float], float, bool]:
        """Clip the gradients and update, unless a loss or the norm is not finite.

        Returns
        -------
        The losses, the norm before clipping, and whether all is finite.
        """
        scale = 1.0 if self.loss_scale is None else self.loss_scale.value
        norm = math.sqrt(float(squared_norm)) / scale
        is_finite = _is_finite(norm, losses)
        if is_finite:
            clips = bool(self.config.clip_norm) and norm > self.config.clip_norm
            self._update(names, scale * (norm + 1e-6) / self.config.clip_norm if clips else scale)
            self.num_steps += 1
        if self.loss_scale is not None:
            self.loss_scale.update(is_finite)
        self.state.reduced.clear()
        return losses, norm, is_finite

    def update_stage(self, names: Sequence[str], squared_norm: torch.Tensor, share: float) -> None:
        """Update by the mean loss of some of the microbatches of a step.

        Parameters
        ----------
        squared_norm : of this rank's part of the gradients.
        share : of the microbatches. The gradients are a part of the mean over all of them.
        """
        self._update(names, share)
        if names:
            self.mean_square += squared_norm / share**2 / self.updates_in_step[names[0]]

    def mean_squared_norm(self) -> torch.Tensor:
        """This rank's part of the mean of the squares of the norms of a step's updates, [] in float64."""
        found, self.mean_square = self.mean_square, torch.zeros_like(self.mean_square)
        return found

    def finish_updates(
        self, mean_squared_norm: torch.Tensor, losses: Mapping[str, float]
    ) -> tuple[Mapping[str, float], float, bool]:
        """After the updates of a step: the losses, the norm of the gradients, and whether all is finite."""
        norm = math.sqrt(float(mean_squared_norm))
        self.num_steps += 1
        return losses, norm, _is_finite(norm, losses)

    def _update(self, names: Sequence[str], divisor: float) -> None:
        """Update with the gradients, divided by a number."""
        self._set_rates(names)
        grads = self.state.gradients(names)
        if self.config.clip_value and grads:
            limit = self.config.clip_value * divisor
            torch._foreach_clamp_max_(grads, limit)
            torch._foreach_clamp_min_(grads, -limit)
        self._divide(grads, divisor)
        for name, grad in zip(names, grads, strict=True):
            for segment in self.segments[name]:
                segment.give(self.state.buckets[name].master, grad)
        self.restored = {}
        self.inner.step()
        for segment in (s for name in names for s in self.segments[name]):
            segment.part.grad = None
        if self.config.ema_decay:
            self._average(names)

    def _average(self, names: Sequence[str]) -> None:
        """Bring the moving averages up to date; the first values are the parameters."""
        masters = {name: self.state.buckets[name].master for name in names}
        known = [name for name in names if name in self.ema]
        if known:
            averages = [self.ema[name] for name in known]
            torch._foreach_lerp_(averages, [masters[name] for name in known], 1 - self.config.ema_decay)
        self.ema |= {name: master.clone() for name, master in masters.items() if name not in self.ema}

    def _divide(self, grads: list[torch.Tensor], divisor: float) -> None:
        """Divide the gradients. The fused kernels do so as they go, so clipping takes no pass of its own."""
        if self.config.make is None:
            scale = torch.tensor(divisor, device=self.state.device) if divisor != 1.0 else None
            for member in self.inner.members:
                member.grad_scale = scale  # type: ignore[attr-defined]
        elif divisor != 1.0 and grads:
            torch._foreach_div_(grads, divisor)

    def _set_rates(self, names: Sequence[str]) -> None:
        """Count an update, and give every group its rate."""
        factor = 1.0
        if names:
            factor = rate_factor(self.config, self.num_updates[names[0]], self.updates_in_step[names[0]])
        for name in names:
            self.num_updates[name] += 1
        if self.config.changes_rate:  # an optimizer may change its rate itself
            for group in self.inner.param_groups:
                group["lr"] = group["initial_lr"] * factor

    def moments(self) -> dict[str, dict[str, torch.Tensor]]:
        """Tensors of a master's size that are kept, by name (``exp_avg``) and bucket; none before the first step."""
        if self.restored:
            return self.restored
        found: dict[str, dict[str, torch.Tensor]] = {EMA: dict(self.ema)} if self.ema else {}
        for name, segments in self.segments.items():
            in_order = sorted(segments, key=lambda segment: segment.first)
            share = self.state.buckets[name].bucket.share
            for field in self.config.optimizer_moments:
                key = field.removeprefix(OWN_STATE)
                states = [self.inner.state_of(segment.part) for segment in in_order]
                if states and all(key in state for state in states):
                    found.setdefault(field, {})[name] = _joined([state[key] for state in states], share)
        return found

    def numbers(self) -> dict[str, Any]:
        """Return the counters of a user's optimizer that this rank knows, and the scale of the loss, for JSON."""
        found: dict[str, Any] = {} if self.config.make is None else numbers_of(self.inner)
        if self.loss_scale is not None:
            found[_LOSS_SCALE] = {"value": self.loss_scale.value, "num_finite": self.loss_scale.num_finite}
        return found

    def tensors(self) -> dict[str, dict[str, torch.Tensor]]:
        """Tensors of whole parameters that the optimizer keeps, by name and path; empty where `moments` are all."""
        return tensors_of(self.inner, self._all_segments()) if self.config.tensors else {}

    def restore(self, num_steps: int, kept: Mapping[str, Any]) -> None:
        """Set the state after ``num_steps`` steps, with moments of zero, which the caller fills in.

        Parameters
        ----------
        kept : what `numbers` returned, of all ranks.
        """
        self.num_steps, self.restored, self.ema = num_steps, {}, {}
        self.num_updates = {name: num_steps * each for name, each in self.updates_in_step.items()}
        if self.loss_scale is not None:
            said = kept[_LOSS_SCALE]
            self.loss_scale.set(float(said["value"]), int(said["num_finite"]))
        if not num_steps:  # as one that is new: there are no moments yet
            return
        for member in self.inner.members:
            member.state.clear()
        types = dict(self.config.moment_types)
        for name, bucket in self.state.buckets.items():
            for field in self.config.moments:
                flat = torch.zeros_like(bucket.master, dtype=getattr(torch, types[field]))
                self.restored.setdefault(field, {})[name] = flat
        self.ema = dict(self.restored.get(EMA, {}))
        for name, segments in self.segments.items():
            for segment in segments:
                self._restore(segment, name, kept)
        if self.config.make is not None:
            set_group_numbers(self.inner, kept)

    def _restore(self, segment: Segment, bucket: str, kept: Mapping[str, Any]) -> None:
        state: dict[str, Any] = {}
        if self.config.name == "adamw":
            state["step"] = torch.tensor(float(self.num_updates[bucket]), device=self.state.device)
        elif self.config.make is not None:
            state = state_numbers(kept, self.inner.group_of(segment.part), self.state.device)
        names = {field: field.removeprefix(OWN_STATE) for field in self.config.optimizer_moments}
        moments = {name: segment.of(self.restored[field][bucket]) for field, name in names.items()}
        if state or moments:
            self.inner.set_state(segment.part, state | moments)

    def restore_tensors(self, tensors: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
        """Set what `tensors` returned; after `restore`."""
        for segment in self._all_segments():
            own = {field: of[segment.paths[0]] for field, of in tensors.items() if segment.paths[0] in of}
            kept = {field.removeprefix(OWN_STATE): t.to(self.state.device) for field, t in own.items()}
            self.inner.set_state(segment.part, self.inner.state_of(segment.part) | kept)

    def _all_segments(self) -> list[Segment]:
        return [segment for segments in self.segments.values() for segment in segments]


_LOSS_SCALE = "loss_scale"


def _joined(parts: Sequence[torch.Tensor], num_elements: int) -> torch.Tensor:
    """Tensors one after the other, flat; a parameter's padding is zero."""
    if len(parts) == 1 and parts[0].numel() == num_elements:
        return parts[0].view(-1)
    flat = parts[0].new_zeros(num_elements)
    whole = torch.cat([part.reshape(-1) for part in parts])
    flat[: whole.numel()] = whole
    return flat


def _is_finite(norm: float, losses: Mapping[str, float]) -> bool:
    watched = [norm, *(x for name, x in losses.items() if name.startswith("loss:"))]
    return all(map(math.isfinite, watched))
