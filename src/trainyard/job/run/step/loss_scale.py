"""Loss scale: the factor of the loss in float16, without which small gradients would be zero.

The rule is that of PyTorch's GradScaler: the factor is halved after a step whose gradients are not finite, of which the
update is left out, and doubled after 2,000 steps in a row whose gradients are finite.

References
----------
Micikevicius et al., "Mixed Precision Training", ICLR 2018, section 3.2; the rule and its numbers are those of
``torch.amp.GradScaler``.
"""

from __future__ import annotations

import torch

__all__ = ["LossScale"]

_FIRST = 2.0**16
_GROWTH_INTERVAL = 2000


class LossScale:
    """The present factor of the loss.

    Attributes
    ----------
    value : the factor.
    num_finite : steps in a row whose gradients were finite, since the factor last changed.
    tensor : the factor for the backward pass, [] in float32.
    """

    def __init__(self, device: torch.device) -> None:
        self.value, self.num_finite = _FIRST, 0
        self.tensor = torch.tensor(_FIRST, device=device)

    def update(self, is_finite: bool) -> None:
        """Change the factor as the gradients of a step ask for."""
        self.num_finite = self.num_finite + 1 if is_finite else 0
        if not is_finite:
            self.set(self.value / 2, 0)
        elif self.num_finite == _GROWTH_INTERVAL:
            self.set(self.value * 2, 0)

    def set(self, value: float, num_finite: int) -> None:
        """Take a factor, and the number of finite steps since it changed, such as those of a checkpoint."""
        self.value, self.num_finite = value, num_finite
        self.tensor.fill_(value)
