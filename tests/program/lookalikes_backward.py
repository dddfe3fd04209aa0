"""Models whose blocks look alike, and whose backward passes are of their own."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from lookalikes import Block, Chain, chain
from test_capture import model_of
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from trainyard.program.model import Model


def gradient_penalty() -> Model:
    def loss(module: Any, batch: Any) -> Tensor:
        x = batch["x"].clone().requires_grad_()
        found = module(x)
        (grad,) = torch.autograd.grad(found.sum(), x, create_graph=True)
        return found.square().mean() + grad.square().sum()

    return model_of(chain(), loss)


def gradients_of_weights() -> Model:
    def loss(module: Any, batch: Any) -> Tensor:
        found = module(batch["x"]).square().mean()
        weights = [block.linear.weight for block in module.blocks]
        grads = torch.autograd.grad(found, weights, retain_graph=True, allow_unused=True)
        return found * (1 + sum(g.detach().square().sum() for g in grads if g is not None))

    return model_of(chain(), loss)


def hook_on_the_input() -> Model:
    class Hooking(Block):
        def forward(self, x: Tensor) -> Tensor:
            if x.requires_grad:
                x.register_hook(lambda grad: grad * 0.5)
            return self.inner(x) + x

    return model_of(chain(Hooking, call=lambda i, block, x: block(x) + x))


def unused_output() -> Model:
    class Headed(Block):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(6, 1)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            x = self.inner(x)
            return x, (x - x.detach()).norm(dim=-1).sqrt() * self.head(x)[:, 0]

    return model_of(chain(Headed, call=lambda i, block, x: block(x)[0]))


def checkpointed_inside() -> Model:
    class Recomputing(Block):
        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.inner, x, use_reentrant=False)

    return model_of(chain(Recomputing))


def checkpointed_pairs() -> Model:
    class Paired(Chain):
        def forward(self, x: Tensor) -> Tensor:
            def pair(x: Tensor, i: int) -> Tensor:
                return self.blocks[i + 1](torch.sin(self.blocks[i](x)))

            for i in (0, 2):
                x = checkpoint(pair, self.before(x), i, use_reentrant=False)
            return x

    return model_of(Paired([Block() for _ in range(4)]))


class Scaled(torch.autograd.Function):
    """Nothing forward, and another gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, by: float) -> Tensor:  # type: ignore[override]
        ctx.by = by
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return grad * ctx.by, None


def gradient_of_its_own() -> Model:
    """What all blocks read, and the chain sets before each call, matters only to the backward pass."""
    now = SimpleNamespace(layer=0)

    class Scaling(Block):
        def forward(self, x: Tensor) -> Tensor:
            return Scaled.apply(self.inner(x), 1.0 + now.layer)

    def call(i: int, block: nn.Module, x: Tensor) -> Tensor:
        now.layer = i
        return block(x)

    return model_of(chain(Scaling, call=call))


def hook_within() -> Model:
    now = SimpleNamespace(layer=0)

    class Hooking(Block):
        def forward(self, x: Tensor) -> Tensor:
            x, by = self.linear(x), 1.0 + now.layer
            x.register_hook(lambda grad: grad * by)
            return torch.tanh(x)

    def call(i: int, block: nn.Module, x: Tensor) -> Tensor:
        now.layer = i
        return block(x)

    return model_of(chain(Hooking, call=call))


# And how many blocks are replaced.
CASES: dict[str, tuple[Callable[[], Model], int]] = {
    "a gradient penalty": (gradient_penalty, 0),
    "gradients of weights in the loss": (gradients_of_weights, 0),
    "a hook on the input": (hook_on_the_input, 0),
    "an output that is not used": (unused_output, 0),
    "recomputed inside": (checkpointed_inside, 4),
    "recomputed in pairs": (checkpointed_pairs, 4),
    "a gradient of its own": (gradient_of_its_own, 0),
    "a hook within": (hook_within, 0),
}
