"""The optimizer step on one rank's part of the parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby

import torch

from trainyard.job.lower.buckets import Bucket, Param
from trainyard.job.optimizer import OptimizerConfig
from trainyard.job.optimizer.groups import ParameterGroup, group_of
from trainyard.job.optimizer.rates import rate_factor
from trainyard.job.run.step.segments import Segment, joined
from trainyard.job.run.step.state import BucketState, RankState


class Optimizer:
    """Updates the float32 parameters of a rank; element by element, so the flat parts need no knowledge of parameters.

    Parameters
    ----------
    params : descriptions of the parameters, by path.
    updates_in_step : how often a step updates each bucket, by name.

    Attributes
    ----------
    segments : of each bucket's master, by name: neighbours that are of one group of parameters.
    num_steps : that have changed the parameters.
    """

    def __init__(
        self,
        config: OptimizerConfig,
        state: RankState,
        params: Mapping[str, Param],
        updates_in_step: Mapping[str, int],
    ) -> None:
        self.config, self.state, self.updates_in_step = config, state, updates_in_step
        self.num_steps = 0
        # Updates of each bucket, and of those of this step the mean of the squares of their norms.
        self.num_updates = dict.fromkeys(updates_in_step, 0)
        self.mean_square = torch.zeros((), dtype=torch.float64)
        self.segments = {
            name: _segments(bucket, state.shard_index(bucket.bucket), _groups(config, bucket.bucket, params))
            for name, bucket in state.buckets.items()
        }
        # A rank without trained parameters has one of no elements: PyTorch's optimizers refuse an empty list.
        parts = (
            {ParameterGroup(1.0, config.weight_decay): [torch.zeros(0, device=state.device)]}
            if not self.segments
            else {}
        )
        for segment in (s for segments in self.segments.values() for s in segments):
            parts.setdefault(segment.group, []).append(segment.part)
        self.inner = _inner(config, parts)

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
        norm = math.sqrt(float(squared_norm))
        is_finite = _is_finite(norm, losses)
        if is_finite:
            clips = bool(self.config.clip_norm) and norm > self.config.clip_norm
            self._update(names, (norm + 1e-6) / self.config.clip_norm if clips else 1.0)
            self.num_steps += 1
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
        # The fused kernels divide by this as they go: clipping takes no pass over the gradients of its own.
        scale = torch.tensor(divisor, device=self.state.device) if divisor != 1.0 else None
        self.inner.grad_scale = scale  # type: ignore[attr-defined]
        self._set_rates(names)
        grads = self.state.gradients(names)
        if self.config.clip_value and grads:
            limit = self.config.clip_value * divisor
            torch._foreach_clamp_max_(grads, limit)
            torch._foreach_clamp_min_(grads, -limit)
        for name, grad in zip(names, grads, strict=True):
            for segment in self.segments[name]:
                segment.give(self.state.buckets[name].master, grad)
        self.inner.step()
        for segment in (s for name in names for s in self.segments[name]):
            segment.part.grad = None

    def _set_rates(self, names: Sequence[str]) -> None:
        """Count an update, and give every group its rate."""
        factor = 1.0
        if names:
            factor = rate_factor(self.config, self.num_updates[names[0]], self.updates_in_step[names[0]])
        for name in names:
            self.num_updates[name] += 1
        for group in self.inner.param_groups:
            group["lr"] = self.config.lr * group["lr_scale"] * factor

    def moments(self) -> dict[str, dict[str, torch.Tensor]]:
        """The optimizer's tensors of a master's size, by name (``exp_avg``) and bucket; none before the first step."""
        found: dict[str, dict[str, torch.Tensor]] = {}
        for name, segments in self.segments.items():
            parts: dict[str, list[torch.Tensor]] = {}
            for segment in segments:
                for key, value in self.inner.state.get(segment.part, {}).items():
                    if (
                        isinstance(value, torch.Tensor)
                        and value.shape == segment.part.shape
                        and key != "step"
                    ):
                        parts.setdefault(key, []).append(value)
            for key, values in parts.items():
                found.setdefault(key, {})[name] = joined(values)
        return found

    def restore(self, num_steps: int, moments: tuple[str, ...]) -> None:
        """Set the state after ``num_steps`` steps, with moments of zero, which the caller fills in."""
        self.num_steps = num_steps
        self.num_updates = {name: num_steps * each for name, each in self.updates_in_step.items()}
        self.inner.state.clear()
        if not num_steps:  # as one that is new: there are no moments yet
            return
        for name, bucket in self.state.buckets.items():
            flats = {key: torch.zeros_like(bucket.master) for key in moments}
            for segment in self.segments[name]:
                kept = {key: flat[segment.first : segment.last] for key, flat in flats.items()}
                if self.config.name == "adamw":
                    kept["step"] = torch.tensor(float(self.num_updates[name]), device=self.state.device)
                if kept:
                    self.inner.state[segment.part] = kept


def _groups(
    config: OptimizerConfig, bucket: Bucket, params: Mapping[str, Param]
) -> list[tuple[ParameterGroup, int]]:
    """The groups of a bucket's parameters and their elements, in order; neighbours of one group are together."""
    of_params = [
        (group_of(config, path, len(params[path].whole_shape)), size)
        for path, size in zip(bucket.paths, bucket.sizes, strict=True)
    ]
    together = groupby(of_params, key=lambda pair: pair[0])
    return [(group, sum(size for _, size in members)) for group, members in together]


def _segments(
    state: BucketState, shard_index: int, groups: Sequence[tuple[ParameterGroup, int]]
) -> list[Segment]:
    """Cut the part of a bucket that this rank keeps where its groups meet; the last group has the padding."""
    share, found, end = state.bucket.share, list[Segment](), 0
    for place, (group, size) in enumerate(groups, 1):
        start, end = end, state.bucket.num_elements if place == len(groups) else end + size
        first, last = (min(max(0, at - shard_index * share), share) for at in (start, end))
        if first < last:
            found.append(Segment.of(state.master, first, last, group))
    return found


def _inner(
    config: OptimizerConfig, parts: Mapping[ParameterGroup, list[torch.Tensor]]
) -> torch.optim.Optimizer:
    """PyTorch's optimizer of some parts of parameters, by their group."""
    groups = [
        {"params": members, "lr_scale": group.lr_scale, "weight_decay": group.weight_decay}
        for group, members in parts.items()
    ]
    if config.name == "adamw":
        return torch.optim.AdamW(groups, config.lr, config.betas, config.eps, fused=True)
    return torch.optim.SGD(groups, config.lr, config.momentum, fused=True)


def _is_finite(norm: float, losses: Mapping[str, float]) -> bool:
    watched = [norm, *(x for name, x in losses.items() if name.startswith("loss:"))]
    return all(map(math.isfinite, watched))
