"""Small models, each with one thing that lowering could get wrong; a function per module and loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

WIDTH, ROWS = 8, 8


class Net(nn.Module):
    """Two layers, the parameters that a forward pass of the tests may want, and that forward pass."""

    def __init__(self, forward: Callable[[Net, Tensor], Tensor]) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.run = forward

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


def _with(net: Net, **parts: nn.Module | nn.Parameter) -> Net:
    for name, part in parts.items():
        setattr(net, name, part)
    return net


def _matrix() -> nn.Parameter:
    return nn.Parameter(torch.randn(WIDTH, WIDTH) / 3)


def plain(net: Net, x: Tensor) -> Tensor:
    return net.b(torch.tanh(net.a(x)))


def mse(net: nn.Module, batch: Any) -> Tensor:
    return F.mse_loss(net(batch["x"]), batch["y"])


def rewritten_buffer() -> tuple[Net, Any]:
    def forward(net: Net, x: Tensor) -> Tensor:
        k = net.k
        net.k = k * 0.5
        return net.b(net.a(x) * k)

    net = Net(forward)
    net.register_buffer("k", torch.ones(WIDTH))
    return net, mse


def spectral_norm() -> tuple[Net, Any]:
    net = Net(plain)
    net.a = nn.utils.spectral_norm(net.a)
    return net, mse


def one_tensor_twice_reported() -> tuple[Net, Any]:
    def loss(net: nn.Module, batch: Any) -> Any:
        value = mse(net, batch)
        return value, {"ce": value.detach()}

    return Net(plain), loss


def parameter_reported() -> tuple[Net, Any]:
    net = _with(Net(lambda net, x: plain(net, x) * net.scale), scale=nn.Parameter(torch.tensor(1.5)))
    return net, lambda net, batch: (mse(net, batch), {"scale": net.scale})


def gradient_of_a_sum() -> tuple[Net, Any]:
    net = _with(Net(plain), p=nn.Parameter(torch.randn(WIDTH)))
    return net, lambda net, batch: mse(net, batch) + net.p.sum()


def constants() -> tuple[Net, Any]:
    net = Net(lambda net, x: plain(net, x) * torch.tensor([1.0, 2.0] * 4) + net.shift)
    net.shift = torch.arange(8.0)  # neither parameter nor buffer
    return net, mse


def dead_random_op() -> tuple[Net, Any]:
    def forward(net: Net, x: Tensor) -> Tensor:
        torch.rand_like(x)
        return plain(net, x)

    return Net(forward), mse


def tied() -> tuple[Net, Any]:
    net = _with(Net(lambda net, x: torch.tanh(net.b(torch.tanh(x @ net.w))) @ net.w.t()), w=_matrix())
    return net, mse


def two_tied() -> tuple[Net, Any]:
    def forward(net: Net, x: Tensor) -> Tensor:
        return torch.tanh(torch.tanh(torch.tanh(x @ net.w) @ net.v) @ net.v.t()) @ net.w.t()

    return _with(Net(forward), w=_matrix(), v=_matrix()), mse


def tied_view() -> tuple[Net, Any]:
    def forward(net: Net, x: Tensor) -> Tensor:
        w = net.w.t()
        return torch.tanh(net.b(torch.tanh(x @ w))) @ w

    return _with(Net(forward), w=_matrix()), mse


def tied_three_times() -> tuple[Net, Any]:
    def forward(net: Net, x: Tensor) -> Tensor:
        return net.b(torch.tanh(torch.tanh(torch.tanh(x @ net.w) @ net.w) @ net.w) @ net.w)

    return _with(Net(forward), w=_matrix()), mse


def detached_use() -> tuple[Net, Any]:
    net = Net(lambda net, x: torch.tanh(net.b(torch.tanh(x @ net.w))) @ net.w.detach())
    return _with(net, w=_matrix()), mse


def norm_of_another_stage() -> tuple[Net, Any]:
    return Net(plain), lambda net, batch: (mse(net, batch), {"norm": net.a.weight.norm()})


def loss_of_another_stage() -> tuple[Net, Any]:
    def loss(net: Net, batch: Any) -> Any:
        h = net.a(batch["x"])
        extra = (h**2).mean()
        return F.mse_loss(net.b(torch.tanh(h)), batch["y"]) + extra, {"extra": extra}

    return Net(plain), loss


def weights_made_by_another_stage() -> tuple[Net, Any]:
    def forward(net: Net, x: Tensor) -> Tensor:
        w = torch.tanh(net.a.weight)
        return net.b(torch.tanh(x @ (w + net.w)))

    return _with(Net(forward), w=_matrix()), mse


def frozen() -> tuple[Net, Any]:
    net = Net(plain)
    net.a.requires_grad_(False)
    return net, mse


def partly_frozen() -> tuple[Net, Any]:
    """Frozen: a matrix used at both ends, one of integers, a number, and a layer's weight without its bias."""

    def forward(net: Net, x: Tensor) -> Tensor:
        h = torch.tanh(net.a(x @ net.shared) * net.scale)
        return net.b(h @ (net.rounded.float() * net.step)) @ net.shared.T

    rounded = nn.Parameter(torch.randint(-9, 9, (WIDTH, WIDTH), dtype=torch.int8), requires_grad=False)
    scale = nn.Parameter(torch.tensor(0.7), requires_grad=False)
    net = _with(Net(forward), shared=_matrix().requires_grad_(False), rounded=rounded, scale=scale)
    net.register_buffer("step", torch.full((WIDTH,), 0.05))
    net.a.weight.requires_grad_(False)
    return net, mse


def maximum_reported() -> tuple[Net, Any]:
    def loss(net: nn.Module, batch: Any) -> Any:
        y = net(batch["x"])
        return F.mse_loss(y, batch["y"]), {"max": y.abs().amax((0, 1))}

    return Net(plain), loss


def norm_used_twice() -> tuple[Net, Any]:
    net = Net(lambda net, x: net.norm(net.b(torch.tanh(net.norm(net.a(x))))))
    return _with(net, norm=nn.BatchNorm1d(WIDTH)), mse


def gelu_last() -> tuple[Net, Any]:
    return Net(lambda net, x: F.gelu(plain(net, x))), mse


def layer_norm() -> tuple[Net, Any]:
    net = Net(lambda net, x: net.b(torch.tanh(net.norm(torch.tanh(net.a(x))))))
    return _with(net, norm=nn.LayerNorm(WIDTH)), mse


def table_of_angles() -> tuple[Net, Any]:
    """Rounded to 16 bits, the table gives other angles."""

    def run(net: Net, x: Tensor) -> Tensor:
        return net.b(net.norm(torch.tanh(net.a(x)) * torch.cos(1000 * net.table)))

    net = _with(Net(run), norm=nn.LayerNorm(WIDTH))
    net.register_buffer("table", torch.linspace(0.1, 1.0, WIDTH))
    return net, mse


def view_of_what_travels() -> tuple[Net, Any]:
    """What is sent arrives in another order in memory than the one in which a view of it could be taken."""

    def run(net: Net, x: Tensor) -> Tensor:
        heads = net.a(x).view(-1, 4, WIDTH // 4).transpose(1, 2)
        return net.b(heads.tanh().transpose(1, 2).reshape(-1, WIDTH))

    return Net(run), mse


def one_gradient_of_two() -> tuple[Net, Any]:
    """Two parameters whose gradients are one tensor, and that may lie in other ways than each other."""
    net = Net(lambda net, x: torch.tanh(F.linear(x, net.base + net.delta)))
    return _with(net, base=_matrix(), delta=_matrix()), mse


def batch_norm() -> tuple[Net, Any]:
    """As many features as ranks divide: parts of them are not taken for the whole."""
    net = Net(lambda net, x: net.b(net.norm(torch.tanh(net.a(x)))))
    return _with(net, norm=nn.BatchNorm1d(WIDTH)), mse


def batch_norm_without_momentum() -> tuple[Net, Any]:
    """Its running statistics are the mean over all batches."""
    net = Net(lambda net, x: net.b(net.norm(torch.tanh(net.a(x)))))
    return _with(net, norm=nn.BatchNorm1d(WIDTH, momentum=None)), mse


def ctc() -> tuple[Net, Any]:
    """Each row has eight steps of time, and as many targets as its first input says."""

    def loss(net: Net, batch: Any) -> Tensor:
        scores = (net(batch["x"])[:, None] * net.kept).log_softmax(-1)
        targets = batch["y"].abs().mul(3).long().clamp(1, WIDTH - 1)[:, :4]
        lengths = 1 + batch["x"][:, 0].abs().mul(9).long() % 4
        return F.ctc_loss(scores.transpose(0, 1), targets, torch.full((len(lengths),), 8), lengths)

    return _with(Net(plain), kept=_matrix()), loss


def attention_within_documents() -> tuple[Net, Any]:
    """FlexAttention over four tokens of a row, whose documents the batch says; nearer tokens count more.

    Where it is not captured it is plain attention, as FlexAttention has no gradient on a processor.
    """

    def loss(net: Net, batch: Any) -> Tensor:
        documents, at = (batch["y"][:, :4] > 0.5).cumsum(1), torch.arange(4)

        def mask(row: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return (documents[row, query] == documents[row, key]) & (query >= key)

        def nearer(score: Tensor, _row: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return score + net.near[query - key]

        x = net.a(batch["x"]).view(-1, 1, 4, 2)
        if torch.compiler.is_compiling():
            blocks = create_block_mask(mask, len(x), None, 4, 4, device="cpu")
            x = flex_attention(x, x.sin(), x, block_mask=blocks)
            x = flex_attention(x, x.cos(), x, score_mod=nearer, block_mask=blocks)
        else:
            seen = (documents[:, None, :, None] == documents[:, None, None]) & (at[:, None] >= at)
            added = net.near[at[:, None] - at].masked_fill(~seen, -torch.inf)
            x = F.scaled_dot_product_attention(x, x.sin(), x, seen)
            x = F.scaled_dot_product_attention(x, x.cos(), x, added)
        return F.mse_loss(net.b(x.reshape(-1, WIDTH)), batch["y"])

    return _with(Net(plain), near=nn.Parameter(torch.linspace(1, -1, 4))), loss
