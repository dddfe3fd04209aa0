"""GNMT: a deep LSTM encoder and decoder with attention, for translation.

Every step of every cell is written out, so that the graph holds ordinary matrix products and elementwise ops.

References
----------
Wu et al., "Google's Neural Machine Translation System", arXiv 1609.08144, section 3.
Bahdanau, Cho and Bengio, "Neural Machine Translation by Jointly Learning to Align and Translate", ICLR 2015.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainyard.program.model import Model
from trainyard.zoo.common import scattered, set_init_std

State = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class LSTMConfig:
    """Sizes of a translation network; the defaults are GNMT's.

    Attributes
    ----------
    length : steps of the source and of the target.
    layers : cells of the encoder and of the decoder; the encoder's first reads in both directions.
    """

    vocab: int = 32000
    length: int = 50
    layers: int = 8
    hidden: int = 1024
    dropout: float = 0.2


class Cell(nn.Module):
    """One LSTM step: input [rows, inputs] and state to the next state, each [rows, hidden]."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.gates = nn.Linear(inputs + hidden, 4 * hidden)

    def forward(self, x: Tensor, state: State) -> State:
        i, f, g, o = self.gates(torch.cat((x, state[0]), -1)).chunk(4, -1)
        c = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c


def zero_state(like: Tensor, hidden: int) -> State:
    """The state before the first step, for as many rows as ``like`` has."""
    zeros = like.new_zeros((like.shape[0], hidden))
    return zeros, zeros


class Encoder(nn.Module):
    """Source steps to memory, a list of [rows, hidden]; residual connections from the third cell on."""

    def __init__(self, config: LSTMConfig) -> None:
        super().__init__()
        self.hidden = config.hidden
        self.backward_cell = Cell(config.hidden, config.hidden)
        widths = [config.hidden, 2 * config.hidden] + [config.hidden] * config.layers
        self.cells = nn.ModuleList(Cell(w, config.hidden) for w in widths[: config.layers])
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, steps: list[Tensor]) -> list[Tensor]:
        reverse = self._run(self.backward_cell, steps[::-1])[::-1]
        for depth, cell in enumerate(self.cells):
            outputs = self._run(cell, steps)
            if depth == 0:
                outputs = [torch.cat(pair, -1) for pair in zip(outputs, reverse, strict=True)]
            if depth >= 2:
                outputs = [y + x for y, x in zip(outputs, steps, strict=True)]
            steps = outputs
        return steps

    def _run(self, cell: nn.Module, steps: list[Tensor]) -> list[Tensor]:
        state, outputs = zero_state(steps[0], self.hidden), []
        for x in steps:
            state = cell(self.dropout(x), state)
            outputs.append(state[0])
        return outputs


class Decoder(nn.Module):
    """Target steps and memory to outputs; the first cell's output asks, all cells above read the answer."""

    def __init__(self, config: LSTMConfig) -> None:
        super().__init__()
        self.hidden = config.hidden
        self.cells = nn.ModuleList(Cell(2 * config.hidden, config.hidden) for _ in range(config.layers))
        self.query = nn.Linear(config.hidden, config.hidden, bias=False)
        self.key = nn.Linear(config.hidden, config.hidden, bias=False)
        self.score = nn.Linear(config.hidden, 1, bias=False)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, steps: list[Tensor], memory: Tensor) -> list[Tensor]:
        keys = self.key(memory)
        states = [zero_state(steps[0], self.hidden) for _ in self.cells]
        context, outputs = states[0][0], []
        for x in steps:
            for depth, cell in enumerate(self.cells):
                states[depth] = cell(self.dropout(torch.cat((x, context), -1)), states[depth])
                x = states[depth][0] + x if depth >= 2 else states[depth][0]
                if depth == 0:
                    context = self._attend(x, keys, memory)
            outputs.append(x)
        return outputs

    def _attend(self, x: Tensor, keys: Tensor, memory: Tensor) -> Tensor:
        scores = self.score(torch.tanh(self.query(x).unsqueeze(1) + keys)).squeeze(-1)
        return (F.softmax(scores, -1).unsqueeze(1) @ memory).squeeze(1)


class Translator(nn.Module):
    """Source and target tokens [rows, length] to logits [rows, length, vocab]."""

    def __init__(self, config: LSTMConfig) -> None:
        super().__init__()
        self.source = nn.Embedding(config.vocab, config.hidden)
        self.target = nn.Embedding(config.vocab, config.hidden)
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)
        self.head = nn.Linear(config.hidden, config.vocab)
        # GNMT section 6.3: uniform in [-0.04, 0.04].
        set_init_std(0.04 / 3**0.5, *self.modules())

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory = torch.stack(self.encoder(list(self.source(source).unbind(1))), 1)
        outputs = self.decoder(list(self.target(target).unbind(1)), memory)
        result: Tensor = self.head(torch.stack(outputs, 1))
        return result


def loss(module: nn.Module, batch: Any) -> Tensor:
    """Mean cross-entropy (nats) of the next target tokens."""
    logits = module(batch["source"], batch["target"])
    return F.cross_entropy(logits.flatten(0, 1), batch["next"].flatten())


def build(name: str, config: LSTMConfig, rows: int) -> Model:
    """A translator on ``rows`` pairs of sentences of full length."""
    text = scattered((rows, config.length + 1), config.vocab, salt=1)
    batch = {
        "source": scattered((rows, config.length), config.vocab),
        "target": text[:, :-1].contiguous(),
        "next": text[:, 1:].contiguous(),
    }
    return Model(name, Translator(config), loss, batch)
