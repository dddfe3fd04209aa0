"""The optimizer step on one rank's part of the parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from trainyard.job.optimizer import OptimizerConfig
from trainyard.job.run.step.state import RankState


class Optimizer:
    """Updates the float32 parameters of a rank; element by element, so the flat parts need no knowledge of parameters.

    Parameters
    ----------
    updates_in_step : how often a step updates each bucket, by name.

    Attributes
    ----------
    num_steps : that have changed the parameters.
    """

    def __init__(self, config: OptimizerConfig, state: RankState, updates_in_step: Mapping[str, int]) -> None:
        self.config, self.state, self.updates_in_step = config, state, updates_in_step
        self.num_steps = 0
        # Updates of each bucket, and of those of this step the mean of the squares of their norms.
        self.num_updates = dict.fromkeys(updates_in_step, 0)
        self.mean_square = torch.zeros((), dtype=torch.float64)
        # A rank without trained parameters has one of no elements: PyTorch's optimizers refuse an empty list.
        masters = [s.master for s in state.buckets.values()] or [torch.zeros(0, device=state.device)]
        if config.name == "adamw":
            self.inner: torch.optim.Optimizer = torch.optim.AdamW(
                masters, config.lr, config.betas, config.eps, config.weight_decay, fused=True
            )
        else:
            self.inner = torch.optim.SGD(
                masters, config.lr, config.momentum, weight_decay=config.weight_decay, fused=True
            )

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
        for name in names:
            self.num_updates[name] += 1
        num_updates = self.num_updates[names[0]] if names else 0
        warm = min(1.0, num_updates / max(1, self.config.warmup_steps))
        for group in self.inner.param_groups:
            group["lr"] = self.config.lr * warm
        masters = [self.state.buckets[name].master for name in names]
        for master, grad in zip(masters, self.state.gradients(names), strict=True):
            master.grad = grad
        self.inner.step()
        for master in masters:
            master.grad = None

    def moments(self) -> dict[str, dict[str, torch.Tensor]]:
        """The optimizer's tensors of a master's size, by name (``exp_avg``) and bucket; none before the first step."""
        found: dict[str, dict[str, torch.Tensor]] = {}
        for name, state in self.state.buckets.items():
            for key, value in self.inner.state.get(state.master, {}).items():
                if isinstance(value, torch.Tensor) and value.shape == state.master.shape and key != "step":
                    found.setdefault(key, {})[name] = value
        return found

    def restore(self, num_steps: int, moments: tuple[str, ...]) -> None:
        """Set the state after ``num_steps`` steps, with moments of zero, which the caller fills in."""
        self.num_steps = num_steps
        self.num_updates = {name: num_steps * each for name, each in self.updates_in_step.items()}
        self.inner.state.clear()
        if not num_steps:  # as one that is new: there are no moments yet
            return
        for name, state in self.state.buckets.items():
            kept = {key: torch.zeros_like(state.master) for key in moments}
            if self.config.name == "adamw":
                kept["step"] = torch.tensor(float(self.num_updates[name]), device=self.state.device)
            if kept:
                self.inner.state[state.master] = kept


def _is_finite(norm: float, losses: Mapping[str, float]) -> bool:
    watched = [norm, *(x for name, x in losses.items() if name.startswith("loss:"))]
    return all(map(math.isfinite, watched))
