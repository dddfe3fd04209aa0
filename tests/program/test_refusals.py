"""What PyTorch would train otherwise is refused by its name, with what to write in its place."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.testing._internal.two_tensor import TwoTensor

from trainyard.program.capture import CaptureError, capture
from trainyard.program.model import Model

WORDS = torch.arange(12).view(4, 3)
X = torch.ones(4, 6)
SPARSE = torch.eye(6).to_sparse()
JAGGED = torch.nested.nested_tensor([X[:1], X[1:]], layout=torch.jagged)
ENDS = torch.tensor([0, 1, 4])


class Packed(nn.Module):
    """An LSTM on packed sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 6, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        packed = pack_padded_sequence(x[:, None].expand(-1, 5, -1), x[:, 0].long(), True, False)
        return self.lstm(packed)[0].data


class With(nn.Module):
    """A linear layer beside a buffer, and what is done with its result."""

    def __init__(self, do: Any, buffer: Tensor = X) -> None:
        super().__init__()
        self.linear, self.do = nn.Linear(6, 6), do
        self.register_buffer("kept", buffer)

    def forward(self, x: Tensor) -> Tensor:
        return self.do(self.linear(x))


def table(layer: type[nn.Module], **options: Any) -> nn.Module:
    return layer(12, 6, **options)


@pytest.mark.parametrize(
    ("module", "x", "why"),
    [
        (table(nn.Embedding, max_norm=1.0), WORDS, "uses an embedding with max_norm.*Leave max_norm out"),
        (table(nn.EmbeddingBag, max_norm=1.0), WORDS, "uses an embedding with max_norm"),
        (table(nn.Embedding, sparse=True), WORDS, "uses an embedding with sparse=True.*Write sparse=False"),
        (table(nn.EmbeddingBag, sparse=True, mode="sum"), WORDS, "uses an embedding with sparse=True"),
        (Packed(), X, r"test_refusals\.py:\d+ `packed = .*packs sequences.*out\.gather.*a mask"),
        (With(lambda y: y, SPARSE), X, "its buffer kept is a sparse tensor"),
        (With(lambda y: torch.sparse.mm(SPARSE, y.T)), X, "works with a sparse tensor"),
        (With(lambda y: torch.sparse.mm(torch.eye(6).to_sparse(), y.T)), X, "works with a sparse tensor"),
        (With(lambda y: y, JAGGED), X, "its buffer kept is a nested tensor.*to_padded_tensor"),
        (With(lambda y: y), JAGGED, "batch.x is a nested tensor.*to_padded_tensor"),
        (
            With(lambda y: torch.nested.nested_tensor_from_jagged(y, ENDS).sum(1)),
            X,
            "works with a nested tensor",
        ),
        (
            With(lambda y: torch.nested.as_nested_tensor([y[:1], y[1:]]).sum()),
            X,
            "works with a nested tensor",
        ),
        (
            With(lambda y: y, TwoTensor(X, X)),
            X,
            "its buffer kept is a TwoTensor.*the tensors that it is made of",
        ),
        (With(lambda y: y), SPARSE, "batch.x is a sparse tensor; a batch holds plain ones"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(module: nn.Module, x: Tensor, why: str) -> None:
    with pytest.raises(CaptureError, match=why):
        capture(Model("m", module, lambda m, b: m(b["x"]).square().mean(), {"x": x}))
