"""Modules whose own code divides work among devices, compiles it or reads a counter: run as one device runs them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import SyncBatchNorm, _BatchNorm

from trainyard.program.tracing.flex_attention import flex_attention_uncompiled

_PLAIN_BATCH_NORM = _BatchNorm.forward


@contextmanager
def on_one_device() -> Iterator[None]:
    """Within it, modules of PyTorch compute what they compute on one device, by tensor ops alone.

    ``nn.DataParallel`` runs its module, ``nn.SyncBatchNorm`` is a batch norm, and what ``torch.compile`` made runs
    uncompiled. A batch norm with ``momentum=None`` counts its batches by tensor ops.
    """
    with ExitStack() as stack:
        stack.enter_context(patch.object(nn.DataParallel, "forward", _module_alone))
        for norm in (_BatchNorm, SyncBatchNorm):
            stack.enter_context(patch.object(norm, "forward", _batch_norm))
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(flex_attention_uncompiled())
        yield


def _module_alone(self: nn.DataParallel[Any], *args: Any, **kwargs: Any) -> Any:
    return self.module(*args, **kwargs)


def _batch_norm(self: _BatchNorm, x: Tensor) -> Tensor:
    """Normalise by the batch; the running statistics of a norm without momentum are the mean over all batches."""
    count = self.num_batches_tracked
    averages = self.training and self.track_running_stats and self.momentum is None
    if not averages or count is None or self.running_mean is None or self.running_var is None:
        return _PLAIN_BATCH_NORM(self, x)
    self._check_input_dim(x)
    count.add_(1)
    mean, variance = torch.zeros_like(self.running_mean), torch.zeros_like(self.running_var)
    y = F.batch_norm(x, mean, variance, self.weight, self.bias, training=True, momentum=1.0, eps=self.eps)
    share = 1.0 / count.to(mean.dtype)
    for running, batch in ((self.running_mean, mean), (self.running_var, variance)):
        running.mul_(1.0 - share).add_(batch * share)
    return y
