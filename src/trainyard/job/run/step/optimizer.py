"""The optimizer step on one rank's part of the parameters."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.distributed as dist

from trainyard.job.run.step.mesh import Mesh
from trainyard.job.run.step.state import State


@dataclass(frozen=True)
class OptimizerConfig:
    """How parameters are updated.

    Attributes
    ----------
    name : ``adamw`` (arXiv 1711.05101) or ``sgd``.
    lr : learning rate after warm-up.
    warmup_steps : steps over which the rate grows linearly.
    betas, eps : of AdamW.
    momentum : of SGD.
    weight_decay : decoupled for AdamW.
    clip_norm : the gradient's global norm is cut to this; 0 leaves it.
    """

    name: Literal["adamw", "sgd"] = "adamw"
    lr: float = 1e-3
    warmup_steps: int = 0
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip_norm: float = 0.0

    def __post_init__(self) -> None:
        if self.name not in ("adamw", "sgd"):
            raise ValueError(f"unknown optimizer {self.name!r}; the known ones are adamw and sgd")
        if self.lr < 0 or self.clip_norm < 0 or self.warmup_steps < 0:
            raise ValueError("lr, clip_norm and warmup_steps cannot be negative")

    @property
    def moments(self) -> tuple[str, ...]:
        """What PyTorch's optimizer keeps of a parameter's shape."""
        if self.name == "adamw":
            return ("exp_avg", "exp_avg_sq")
        return ("momentum_buffer",) if self.momentum else ()


class Optimizer:
    """Updates the masters of a State; element by element, so the flat parts need no knowledge of parameters."""

    def __init__(self, config: OptimizerConfig, state: State, mesh: Mesh) -> None:
        self.config, self.state, self.mesh = config, state, mesh
        self.num_steps = 0
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

    def step(self, grads: list[torch.Tensor], norm: float) -> None:
        """Update.

        Parameters
        ----------
        norm : of the gradients on all ranks, before clipping.
        """
        # The fused kernels divide by this as they go: clipping takes no pass over the gradients of its own.
        clips = bool(self.config.clip_norm) and norm > self.config.clip_norm
        scale = (
            torch.tensor((norm + 1e-6) / self.config.clip_norm, device=self.state.device) if clips else None
        )
        self.inner.grad_scale = scale  # type: ignore[attr-defined]
        self.num_steps += 1
        warm = min(1.0, self.num_steps / max(1, self.config.warmup_steps))
        for group in self.inner.param_groups:
            group["lr"] = self.config.lr * warm
        for state, grad in zip(self.state.buckets.values(), grads, strict=True):
            state.master.grad = grad
        self.inner.step()
        for state in self.state.buckets.values():
            state.master.grad = None

    def moments(self) -> dict[str, dict[str, torch.Tensor]]:
        """The optimizer's tensors of a master's size, by name (``exp_avg``) and bucket; none before the first step."""
        found: dict[str, dict[str, torch.Tensor]] = {}
        for name, state in self.state.buckets.items():
            for key, value in self.inner.state.get(state.master, {}).items():
                if isinstance(value, torch.Tensor) and value.shape == state.master.shape and key != "step":
                    found.setdefault(key, {})[name] = value
        return found

    def restore(self, num_steps: int, moments: tuple[str, ...]) -> None:
        """As after ``num_steps`` steps, with moments of zero, which the caller fills in."""
        self.num_steps = num_steps
        self.inner.state.clear()
        if not num_steps:  # as one that is new: there are no moments yet
            return
        for state in self.state.buckets.values():
            kept = {key: torch.zeros_like(state.master) for key in moments}
            if self.config.name == "adamw":
                kept["step"] = torch.tensor(float(num_steps), device=self.state.device)
            if kept:
                self.inner.state[state.master] = kept

    def global_norm(self, grads: list[torch.Tensor]) -> float:
        """The norm of the gradients on all ranks; every element counts once, however many hold it. Collective."""
        total, num_ranks = torch.zeros((), dtype=torch.float64), self.mesh.plan.num_ranks
        every_rank_has_all = True
        for state, grad in zip(self.state.buckets.values(), grads, strict=True):
            bucket = state.bucket
            copies = bucket.num_copies * (
                self.mesh.plan.data if bucket.reduced and bucket.num_shards == 1 else 1
            )
            every_rank_has_all &= copies == num_ranks
            total += torch.linalg.vector_norm(grad).double().cpu() ** 2 / copies
        if every_rank_has_all and self.mesh.plan.pipeline == 1:
            total *= num_ranks
        elif num_ranks > 1:
            shared = total.to(self.state.device)
            dist.all_reduce(shared)
            total = shared.cpu()
        return math.sqrt(float(total))
