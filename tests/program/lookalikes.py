"""Models whose blocks look alike and are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from test_capture import model_of
from torch import Tensor, nn
from torch.func import functional_call
from torch.overrides import TorchFunctionMode

from trainyard.program.model import Model

Call = Callable[[int, nn.Module, Tensor], Tensor]


class Block(nn.Module):
    """The block that others are variants of; ``scale`` may be changed by whoever calls it."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.linear, self.scale = nn.Linear(6, 6), scale

    def inner(self, x: Tensor) -> Tensor:
        return torch.tanh(self.linear(x)) * self.scale

    def forward(self, x: Tensor) -> Any:
        return self.inner(x)


class Chain(nn.Module):
    """A linear layer and a chain of blocks, which ``call`` calls."""

    def __init__(self, blocks: list[nn.Module], call: Call = lambda i, block, x: block(x)) -> None:
        super().__init__()
        self.before, self.blocks, self.call = nn.Linear(6, 6), nn.ModuleList(blocks), call

    def forward(self, x: Tensor) -> Tensor:
        x = self.before(x)
        for i, block in enumerate(self.blocks):
            x = self.call(i, block, x)
        return x


def chain(block: Callable[[], nn.Module] = Block, **given: Any) -> Chain:
    return Chain([block() for _ in range(4)], **given)


def tied() -> Model:
    made = chain()
    made.blocks[3].linear.weight = made.blocks[2].linear.weight
    return model_of(made)


def shared(inner: nn.Module) -> Model:
    class Adapted(Block):
        def __init__(self) -> None:
            super().__init__()
            self.adapter = inner

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x) + self.adapter(x)

    return model_of(chain(Adapted))


def tied_within() -> Model:
    class Three(nn.Module):
        def __init__(self, first: bool) -> None:
            super().__init__()
            self.p, self.q, self.r = (nn.Linear(6, 6, bias=False) for _ in range(3))
            self.r.weight = self.p.weight if first else self.q.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.r(torch.tanh(self.q(torch.tanh(self.p(x)))))

    return model_of(Chain([Three(i == 2) for i in range(4)]))


def loss_on_an_attribute() -> Model:
    class Remembering(Block):
        aux: Any = 0.0

        def forward(self, x: Tensor) -> Tensor:
            x = self.inner(x)
            self.aux = x.square().mean()
            return x

    def loss(module: Any, batch: Any) -> Tensor:
        return module(batch["x"]).square().mean() + sum(block.aux for block in module.blocks)

    return model_of(chain(Remembering), loss)


def loss_in_a_list() -> Model:
    class Appending(Block):
        def forward(self, x: Tensor, losses: list[Tensor]) -> Tensor:  # type: ignore[override]
            x = self.inner(x)
            losses.append(x.square().mean())
            return x

    def loss(module: Any, batch: Any) -> Tensor:
        losses: list[Tensor] = []
        module.call = lambda i, block, x: block(x, losses)
        return module(batch["x"]).square().mean() + sum(losses)

    return model_of(chain(Appending), loss)


def collected_results(of: Callable[[Tensor], Tensor]) -> Model:
    found: list[Tensor] = []

    class Collecting(Block):
        def forward(self, x: Tensor) -> Tensor:
            x = self.inner(x)
            found.append(of(x))
            return x

    def loss(module: Any, batch: Any) -> Tensor:
        found.clear()
        return module(batch["x"]).square().mean() + sum(x.sum() for x in found)

    return model_of(chain(Collecting), loss)


def half_returned() -> Model:
    found: list[Tensor] = []

    class Halving(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 12)

        def forward(self, x: Tensor) -> Tensor:
            x, other = self.linear(x).chunk(2, 1)
            found.append(other)
            return x

    def loss(module: Any, batch: Any) -> Tensor:
        found.clear()
        return module(batch["x"]).square().mean() + sum(x.sum() for x in found)

    return model_of(chain(Halving), loss)


def set_before_the_call(i: int, block: Any, x: Tensor) -> Tensor:
    block.scale = i + 1.0
    return block(x)


def some_in_evaluation() -> Model:
    class Dropping(Block):
        def __init__(self) -> None:
            super().__init__()
            self.dropout = nn.Dropout(0.3)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(self.dropout(x))

    def loss(module: Any, batch: Any) -> Tensor:
        for block in module.blocks[2:]:
            block.eval()
        return module(batch["x"]).square().mean()

    return model_of(chain(Dropping), loss)


class Given(Block):
    """A block that is given a function."""

    def forward(self, x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:  # type: ignore[override]
        return function(self.inner(x))


def given_a_function() -> Model:
    return model_of(chain(Given, call=lambda i, block, x: block(x, lambda t: t * (i + 1))))


def within_autocast() -> Model:
    def loss(module: Any, batch: Any) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = module(batch["x"])
        return found.float().square().mean()

    return model_of(chain(), loss)


def some_within_autocast(i: int, block: Any, x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=i % 2 == 1):
        return block(x).float()


class Doubling(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        return found * 2.0 if func is torch.tanh else found


def within_a_function_mode() -> Model:
    def loss(module: Any, batch: Any) -> Tensor:
        with Doubling():
            return module(batch["x"]).square().mean()

    return model_of(chain(), loss)


def computed_weights() -> Model:
    class Generated(Chain):
        def __init__(self) -> None:
            super().__init__([Block() for _ in range(4)])
            self.generator = nn.Parameter(torch.zeros(4, 6, 6))

        def forward(self, x: Tensor) -> Tensor:
            for weight, block in zip(self.generator, self.blocks, strict=True):
                x = functional_call(block, {"linear.weight": weight}, (self.before(x),))
            return x

    return model_of(Generated())


def reassigned_buffer() -> Model:
    class Averaging(Block):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(6))

        def forward(self, x: Tensor) -> Tensor:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
            return self.inner(x) + self.mean

    return model_of(chain(Averaging))


def one_argument_twice() -> Model:
    class Skipping(Block):
        def forward(self, x: Tensor, skip: Tensor) -> Tensor:  # type: ignore[override]
            return self.inner(x) + 2 * skip * x

    class Alternating(Chain):
        def forward(self, x: Tensor) -> Tensor:
            skip = x = self.before(x)
            for i, block in enumerate(self.blocks):
                skip = x if i % 2 else skip
                x = block(x, skip)
            return x

    return model_of(Alternating([Skipping() for _ in range(4)]))


def input_is_returned() -> Model:
    class Passing(Block):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.linear(x.detach() * 2.0), x

    def call(i: int, block: nn.Module, x: Tensor) -> Tensor:
        kept = x.sum()
        found, same = block(x)
        same += 1.0
        return found + same + kept

    return model_of(chain(Passing, call=call))


def table_on_first_use() -> Model:
    class Caching(Block):
        table: Any = None

        def forward(self, x: Tensor) -> Tensor:
            if self.table is None:
                self.table = torch.cos(torch.arange(6, dtype=x.dtype))
            return self.inner(x) * self.table

    return model_of(chain(Caching))


def sliced_output() -> Model:
    class Slicing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 12)

        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(self.linear(x))[:, :6]

    return model_of(chain(Slicing), lambda m, batch: m(batch["x"]).flatten().square().mean())


def holds_itself() -> Model:
    class Knotted(Block):
        def __init__(self) -> None:
            super().__init__()
            self.options: dict[str, Any] = {}
            self.options["self"] = self.options

    return model_of(chain(Knotted))


# And how many blocks are replaced.
CASES: dict[str, tuple[Callable[[], Model], int]] = {
    "alike": (lambda: model_of(chain()), 4),
    "tied to one another": (tied, 2),
    "with a layer in common": (lambda: shared(nn.Linear(6, 6)), 0),
    "with BatchNorm in common": (lambda: shared(nn.BatchNorm1d(6)), 0),
    "tied within in another way": (tied_within, 3),
    "a loss as attribute": (loss_on_an_attribute, 0),
    "a loss in a list": (loss_in_a_list, 0),
    "results collected on the side": (lambda: collected_results(lambda x: x), 0),
    "views of results collected": (lambda: collected_results(lambda x: x.view(-1)), 0),
    "half of a result collected": (half_returned, 0),
    "an attribute set before the call": (lambda: model_of(chain(call=set_before_the_call)), 1),
    "in evaluation": (some_in_evaluation, 2),
    "given a function": (given_a_function, 0),
    "zero and minus zero": (lambda: model_of(Chain([Block(-0.0 if i else 0.0) for i in range(4)])), 3),
    "within autocast": (within_autocast, 0),
    "some within autocast": (lambda: model_of(chain(call=some_within_autocast)), 2),
    "within a function mode": (within_a_function_mode, 0),
    "on computed weights": (computed_weights, 0),
    "a buffer that is assigned": (reassigned_buffer, 0),
    "one tensor as two arguments": (one_argument_twice, 3),
    "the input returned": (input_is_returned, 0),
    "a table made on first use": (table_on_first_use, 0),
    "an output that is a slice": (sliced_output, 0),
    "over rows": (lambda: model_of(chain(call=lambda i, block, x: torch.vmap(block)(x))), 0),
    "an attribute that holds itself": (holds_itself, 4),
}
