"""Matrix products with weights that oneDNN put in an order of its own: about twice as fast on CPUs for few rows."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

__all__ = ["PackedLinear", "pack_linear_layers"]


class PackedLinear(nn.Module):
    """`torch.nn.Linear` for inference, with the weight in an order of its own.

    Parameters
    ----------
    linear : whose weight and bias it takes; on a CPU.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bias = linear.bias
        # No buffer: what oneDNN packed has no shape in memory that a module could move or save.
        self._packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), None)

    @property
    def weight(self) -> Tensor:
        """A copy of the weight as `torch.nn.Linear` has it, for modules that read the weight itself."""
        found: Tensor = self._packed.to_dense()
        return found

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, "none", [], "")
        return found


def pack_linear_layers(model: nn.Module) -> None:
    """Replace the linear layers of a model; where oneDNN or the type of weights does not allow it, nothing changes."""
    if not torch.backends.mkldnn.is_available():
        return
    dtypes = {torch.float32}
    if torch.ops.mkldnn._is_mkldnn_bf16_supported():  # needs more than AVX2
        dtypes.add(torch.bfloat16)
    # Nothing here keeps a layer that was replaced, so that its memory is free before the next one is packed.
    packed: WeakKeyDictionary[nn.Module, PackedLinear] = WeakKeyDictionary()
    for parent in [each for each in model.modules() if type(each) is not nn.Linear]:
        for name in [name for name, _ in parent.named_children()]:
            child = getattr(parent, name)
            if type(child) is nn.Linear and child.weight.dtype in dtypes:
                if child not in packed:
                    packed[child] = PackedLinear(child)
                setattr(parent, name, packed[child])
