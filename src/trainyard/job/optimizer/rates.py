"""The learning rate of an update: a pure function of its number, so that a resumed run goes on exactly."""

from __future__ import annotations

import math

from trainyard.job.optimizer.config import OptimizerConfig

__all__ = ["rate_factor"]

_WSD_DECAY_SHARE = 0.1


def rate_factor(config: OptimizerConfig, update: int, updates_in_step: int = 1) -> float:
    """Return the rate of an update as a share of its whole rate.

    With T for ``lr_steps``, W for ``warmup_steps``, D for ``decay_steps`` and p the progress from 0 to 1 after warm-up:

    - during warm-up (``update < W``) it is ``(update + 1) / W``;
    - ``constant``: 1;
    - ``linear``: 1 - p, with ``p = (update - W) / (T - W)``;
    - ``cosine`` (arXiv 1608.03983, without restarts): (1 + cos(pi p)) / 2, with the same p;
    - ``wsd`` (warm-up, stable, decay; arXiv 2404.06395, with a linear decay): 1 - p, with ``p = (update - T + D) / D``.

    The falling ones go from 1 to ``min_lr_factor``, not to 0, and stay there after T.

    Parameters
    ----------
    update : updates before this one.
    updates_in_step : of a stage that its schedule updates several times in a step. A step of a falling rate is as
        many updates.

    Examples
    --------
    >>> cosine = OptimizerConfig(lr_schedule="cosine", warmup_steps=2, lr_steps=6, min_lr_factor=0.1)
    >>> [round(rate_factor(cosine, update), 3) for update in range(7)]
    [0.5, 1.0, 1.0, 0.868, 0.55, 0.232, 0.1]
    """
    if update < config.warmup_steps:
        return (update + 1) / config.warmup_steps
    if callable(config.lr_schedule):
        return float(config.lr_schedule(update // updates_in_step))
    if not config.has_falling_rate:
        return 1.0
    last = config.lr_steps * updates_in_step
    first = config.warmup_steps
    if config.lr_schedule == "wsd":
        decay_steps = config.decay_steps or max(1, round(_WSD_DECAY_SHARE * config.lr_steps))
        first = max(first, last - decay_steps * updates_in_step)
    progress = min(1.0, max(0, update - first) / max(1, last - first)) if update < last else 1.0
    left = (1.0 + math.cos(math.pi * progress)) / 2.0 if config.lr_schedule == "cosine" else 1.0 - progress
    return config.min_lr_factor + (1.0 - config.min_lr_factor) * left
