"""A model for every row of the table of refusals in docs/exact.md, by what the refusal says."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.utils.rnn import pack_padded_sequence

import trainyard
from trainyard.program.model import Model

X = torch.linspace(-1, 1, 24).view(4, 6)
WORDS = torch.arange(12).view(4, 3)
SPARSE = torch.eye(6).to_sparse()
KEPT = nn.Parameter(torch.ones(6))


class Net(nn.Module):
    """A linear layer, what may be kept beside it, and what is done with its result."""

    def __init__(self, do: Callable[[Any, Tensor], Any] = lambda net, y: y, **beside: Any) -> None:
        super().__init__()
        self.linear, self.do = nn.Linear(6, 6), do
        for name, value in beside.items():
            if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
                self.register_buffer(name, value)
            else:
                setattr(self, name, value)

    def forward(self, x: Tensor) -> Any:
        return self.do(self, self.linear(x))


def model(module: nn.Module, x: Any = X, loss: Any = None, **rest: Any) -> Model:
    batch = {"x": x, **rest.pop("beside", {})}
    return Model("m", module, loss or (lambda m, b: m(b["x"]).square().mean()), batch, **rest)


def doing(do: Callable[[Any, Tensor], Any], **beside: Any) -> Callable[[], Model]:
    return lambda: model(Net(do, **beside))


def losing(loss: Callable[[Tensor], Any]) -> Callable[[], Model]:
    return lambda: model(Net(), loss=lambda m, b: loss(m(b["x"])))


def packed(_: Any, y: Tensor) -> Tensor:
    return pack_padded_sequence(y[:, None], y[:, 0].long(), True, False).data


def by_blocks(_: Any, y: Tensor) -> Tensor:
    listed = torch.ones(1, 1, 2, dtype=torch.int32), torch.zeros(1, 1, 2, 2, dtype=torch.int32)
    mask = BlockMask.from_kv_blocks(*listed, BLOCK_SIZE=2, seq_lengths=(4, 4))
    return flex_attention(y[None, None], y[None, None], y[None, None], block_mask=mask)


def nested(_: Any, y: Tensor) -> Tensor:
    return torch.nested.as_nested_tensor([y[:1], y[1:]], layout=torch.jagged).values()


def with_hook() -> Model:
    net = Net()
    net.linear.weight.register_hook(lambda grad: grad * 2)
    return model(net)


def writes_parameter(net: Any, y: Tensor) -> Tensor:
    with torch.no_grad():
        net.linear.bias.mul_(0.5)
    return y


def grows(net: Any, y: Tensor) -> Tensor:
    net.seen = torch.cat([net.seen, net.seen])
    return y


def counts(net: Any, y: Tensor) -> Tensor:
    net.calls += 1
    return y * net.calls


def by_closure() -> Model:
    net = Net()
    weight = net.linear.weight
    net.do = lambda _, y: y @ weight
    return model(net)


def seeded(_: Any, y: Tensor) -> Tensor:
    torch.manual_seed(3)
    return y


class DrawsBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor) -> Tensor:
        return y.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad + torch.rand_like(grad)


def declared(
    name: str, compute: Callable[[Tensor], Tensor], shape: Callable[[Tensor], Tensor] = lambda x: x
) -> Callable[[], Model]:
    """With an op of its own, of which it is said that every row is computed by itself."""

    @torch.library.custom_op(f"refused::{name}", mutates_args=())
    def op(x: Tensor) -> Tensor:
        return compute(x)

    op.register_fake(lambda x: torch.empty_like(shape(x)))
    trainyard.rows(op)
    return doing(lambda net, y: y.square().mean() + op(y.detach()).mean())


class DistributedDataParallel(Net):
    """What is refused is known by its name: PyTorch's own needs a process group."""


REFUSED: dict[str, Callable[[], Model]] = {
    "decides by a tensor's value": doing(lambda net, y: y if y.sum() > 0 else -y),
    "packs sequences": doing(packed),
    "works with a nested tensor": doing(nested),
    "works with a sparse tensor": doing(lambda net, y: torch.sparse.mm(SPARSE, y.T)),
    "a batch holds plain ones": lambda: model(Net(), SPARSE),
    "Only plain ones can be divided": doing(lambda net, y: y, kept=SPARSE),
    "holds graphs of its own": doing(lambda net, y: torch.cond(y.sum() > 0, torch.sin, torch.cos, (y,))),
    "blocks were listed by hand": doing(by_blocks),
    "uses an embedding with max_norm": lambda: model(nn.Embedding(12, 6, max_norm=1.0), WORDS),
    "uses an embedding with sparse=True": lambda: model(nn.Embedding(12, 6, sparse=True), WORDS),
    "exchanges gradients between processes by itself": lambda: model(
        nn.Sequential(DistributedDataParallel())
    ),
    "is a script": lambda: model(nn.Sequential(torch.jit.trace(nn.Linear(6, 6), X))),
    "has no shape yet": lambda: model(nn.LazyLinear(6)),
    "is of float64": lambda: model(nn.Linear(6, 6).double(), X.double()),
    "overflow, or are zero": lambda: model(nn.Linear(6, 6).half(), X.half()),
    "is complex": doing(lambda net, y: y * net.c.real, c=nn.Parameter(torch.ones(6, dtype=torch.complex64))),
    "has hooks on its gradient": with_hook,
    "it writes to its parameter": doing(writes_parameter),
    "all steps must find it alike": doing(grows, seen=torch.ones(2)),
    "its second step computes something else": doing(counts, calls=0),
    "is neither a parameter or buffer of the module": doing(lambda net, y: y * KEPT),
    "by another reference": by_closure,
    "draws random numbers of Python or NumPy": doing(lambda net, y: y * random.random()),
    "it seeds PyTorch's random numbers": doing(seeded),
    "from a generator of its own": doing(
        lambda net, y: y + torch.rand(6, generator=torch.Generator().manual_seed(1))
    ),
    "cannot be drawn by position": doing(lambda net, y: y + torch.poisson(y.detach().abs())),
    "draws random numbers in the backward pass": doing(lambda net, y: DrawsBackward.apply(y)),
    "must be a scalar tensor": losing(lambda y: 1.0),
    "must be a scalar that depends on a parameter": losing(lambda y: y),
    "must be a scalar tensor, given": losing(lambda y: (y.mean(), {"rows": y})),
    "a batch holds tensors only": lambda: model(Net(), beside={"name": "a"}),
    "must have the same number of rows": lambda: model(Net(), beside={"edges": WORDS[:2]}),
    "which the batch does not have": lambda: model(Net(), whole=("edges",)),
    "is another one for 4 rows at once": declared("summed", lambda x: x - x.sum()),
    "fails on 4 rows or on a part of them": declared(
        "failing", lambda x: x.view(2, -1, 6).flatten(0, 1).clone()
    ),
    "must have equally many rows": declared("flat", lambda x: x[1:].clone(), lambda x: x[1:]),
    "PyTorch says": doing(lambda net, y: y @ torch.ones(5, 5)),
}
