"""An op registered with torch.library whose rows are declared, so that the batch is split at it.

trainyard plan examples/exact_own_op.py --cluster 1x2xT4 --strategies gpipe
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import trainyard

ROWS = 32


@trainyard.rows(shared=["slope"])
@torch.library.custom_op("example::gate", mutates_args=())
def gate(x: Tensor, slope: Tensor) -> Tensor:
    """A kernel of one's own would be called here."""
    return x * torch.sigmoid(x * slope)


@gate.register_fake
def _(x: Tensor, slope: Tensor) -> Tensor:
    return torch.empty_like(x)


def backward(ctx: object, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Of PyTorch's own ops, whose rows are known; a kernel here would be declared, too."""
    x, slope = ctx.saved_tensors
    opened = torch.sigmoid(x * slope)
    inner = grad * x * opened * (1 - opened)
    return grad * opened + inner * slope, (inner * x).sum(0)


gate.register_autograd(backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))


class Gated(nn.Module):
    """Two layers with the gate between them."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out, self.slope = nn.Linear(16, 64), nn.Linear(64, 8), nn.Parameter(torch.ones(64))

    def forward(self, x: Tensor) -> Tensor:
        return self.out(gate(self.inner(x), self.slope))


def data(step: int) -> dict[str, Tensor]:
    """The batch of a step."""
    drawn = torch.Generator().manual_seed(step)
    return {"x": torch.randn(ROWS, 16, generator=drawn), "y": torch.randint(0, 8, (ROWS,), generator=drawn)}


def model() -> tuple[nn.Module, object, dict[str, Tensor]]:
    """The network, its loss and an example batch."""
    torch.manual_seed(0)
    return Gated(), lambda module, batch: F.cross_entropy(module(batch["x"]), batch["y"]), data(0)
