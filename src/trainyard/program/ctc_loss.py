"""The CTC loss as ops of fixed shape, whatever the lengths in the batch.

PyTorch's op computes as many states as the longest target of the batch has. Here there are as many as its row of
targets could have.

References
----------
Graves et al., "Connectionist Temporal Classification", ICML 2006.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["CTC_LOSS", "CTC_LOSS_BACKWARD", "ctc_loss", "ctc_loss_backward"]

aten = torch.ops.aten

_GIVEN = "Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths"
torch.library.define(
    "trainyard::ctc_loss",
    f"({_GIVEN}, int blank, bool zero_infinity) -> (Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)
torch.library.define(
    "trainyard::ctc_loss_backward",
    f"(Tensor grad, {_GIVEN}, Tensor losses, Tensor log_alpha, int blank, bool zero_infinity) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)

CTC_LOSS = torch.ops.trainyard.ctc_loss.default
CTC_LOSS_BACKWARD = torch.ops.trainyard.ctc_loss_backward.default

Lengths = Tensor | Sequence[int]


def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Lengths,
    target_lengths: Lengths,
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[Tensor, Tensor]:
    """Compute the loss of every row, and what the gradient needs.

    Parameters
    ----------
    log_probs : [time, rows, classes].
    targets : int64 [rows, most targets], or the targets of all rows one after the other.
    input_lengths, target_lengths : of every row.

    Returns
    -------
    Losses [rows], and the logarithms of alpha [rows, time, states].
    """
    given = _padded(log_probs, targets, input_lengths, target_lengths)
    losses, log_alpha = CTC_LOSS(log_probs, *given, blank, zero_infinity)
    return losses, log_alpha


def ctc_loss_backward(
    grad: Tensor,
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Lengths,
    target_lengths: Lengths,
    losses: Tensor,
    log_alpha: Tensor,
    blank: int,
    zero_infinity: bool = False,
) -> Tensor:
    """Compute the gradient of ``log_probs`` from that of the losses; arguments as of `ctc_loss`."""
    given = _padded(log_probs, targets, input_lengths, target_lengths)
    result: Tensor = CTC_LOSS_BACKWARD(grad, log_probs, *given, losses, log_alpha, blank, zero_infinity)
    return result


def _padded(
    log_probs: Tensor, targets: Tensor, input_lengths: Lengths, target_lengths: Lengths
) -> tuple[Tensor, Tensor, Tensor]:
    """Targets with a row for every row of the batch, and lengths as tensors."""
    inputs, lengths = (
        given if isinstance(given, Tensor) else torch.tensor(list(given), dtype=torch.int64)
        for given in (input_lengths, target_lengths)
    )
    if targets.dim() == 2:
        return targets, inputs, lengths
    # No more targets than there is time can be aligned, so a row of one more says as much as all that are longer.
    most = min(targets.shape[0], log_probs.shape[0] + 1)
    begins = lengths.cumsum(0) - lengths
    places = begins.unsqueeze(1) + torch.arange(most, device=targets.device)
    return targets[places.clamp(max=targets.shape[0] - 1)], inputs, lengths.clamp(max=most)


def _forward(
    log_probs: Tensor, targets: Tensor, inputs: Tensor, lengths: Tensor, blank: int, zero_infinity: bool
) -> tuple[Tensor, Tensor]:
    losses, log_alpha = aten._ctc_loss.Tensor(log_probs, targets, inputs, lengths, blank, zero_infinity)
    time, states = log_alpha.shape[1], 2 * targets.shape[1] + 1
    log_alpha = F.pad(log_alpha, (0, states - log_alpha.shape[2]))
    # PyTorch leaves unwritten what is behind the end of a row.
    is_before = torch.arange(time, device=inputs.device) < inputs.unsqueeze(1)
    is_reached = torch.arange(states, device=lengths.device) <= 2 * lengths.unsqueeze(1)
    is_written = is_before.unsqueeze(2) & is_reached.unsqueeze(1)
    return losses, log_alpha.masked_fill(~is_written.to(log_alpha.device), -math.inf)


def _backward(
    grad: Tensor,
    log_probs: Tensor,
    targets: Tensor,
    inputs: Tensor,
    lengths: Tensor,
    losses: Tensor,
    log_alpha: Tensor,
    blank: int,
    zero_infinity: bool,
) -> Tensor:
    states = 2 * int(lengths.max()) + 1
    result: Tensor = aten._ctc_loss_backward.Tensor(
        grad,
        log_probs,
        targets,
        inputs,
        lengths,
        losses,
        log_alpha[..., :states].contiguous(),
        blank,
        zero_infinity,
    )
    return result


@torch.library.register_fake("trainyard::ctc_loss")
def _fake(log_probs: Tensor, targets: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    time, rows, _classes = log_probs.shape
    return log_probs.new_empty(rows), log_probs.new_empty(rows, time, 2 * targets.shape[1] + 1)


@torch.library.register_fake("trainyard::ctc_loss_backward")
def _fake_backward(_grad: Tensor, log_probs: Tensor, *_: object) -> Tensor:
    return torch.empty_like(log_probs, memory_format=torch.contiguous_format)


for _device in ("cpu", "cuda"):
    torch.library.impl("trainyard::ctc_loss", _device, _forward)
    torch.library.impl("trainyard::ctc_loss_backward", _device, _backward)
