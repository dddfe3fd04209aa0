"""Runs of tiny language models as one rank in the test's own process, and the tokens that their modules choose."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from trainyard.job.optimizer import OptimizerConfig
from trainyard.job.plan import Plan
from trainyard.job.planning import load_model
from trainyard.job.run.checkpoint.folders import read_whole
from trainyard.job.run.checkpoint.same_run import PARAMS
from trainyard.job.run.checkpoint.saved import path_of
from trainyard.job.run.config import TrainConfig, WorkerInput
from trainyard.job.run.processes.worker import prepare, train_rank
from trainyard.job.run.step.data import FunctionData
from trainyard.job.schedules import make_schedule
from trainyard.job.task import Task
from trainyard.zoo.registry import build

STEPS, ROWS = 2, 4
LLAMA = {
    "model_type": "qwen2",
    "vocab_size": 300,
    "max_position_embeddings": 64,
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "tie_word_embeddings": True,
}
FILE = """
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

class Wrapped(nn.Module):
    def __init__(self):
        super().__init__()
        self.lm = GPT2LMHeadModel(GPT2Config(vocab_size=257, n_positions=64, n_embd=64, n_layer=2, n_head=4))

    def forward(self, tokens):
        return self.lm(tokens, use_cache=False).logits

def loss(module, batch):
    logits = module(batch["tokens"])
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch["tokens"][:, 1:].flatten())

def model():
    return Wrapped(), loss, {"tokens": torch.zeros(4, 16, dtype=torch.int64)}
"""


def trained(spec: str, folder: Path) -> Path:
    """Train a model for some steps; return its checkpoint."""
    torch.manual_seed(0)
    model = load_model(spec, None if spec.endswith(".py") else ROWS)
    task = Task(model)
    rows = task.num_rows
    schedule = make_schedule("one_f_one_b", 1, 1)
    plan = Plan(spec, task.program(rows).fingerprint, "local", rows, schedule)
    length = model.batch["tokens"].shape[1]

    def data(step: int) -> dict[str, Tensor]:
        drawn = torch.randint(0, 120, (rows, length + 1), generator=torch.Generator().manual_seed(step))
        found = {"tokens": drawn[:, :-1]}
        return found if len(model.batch) == 1 else found | {"targets": drawn[:, 1:]}

    config = TrainConfig(STEPS, optimizer=OptimizerConfig(lr=0.02, ema_decay=0.5), checkpoint=folder)
    work = WorkerInput(model, plan, FunctionData(data), config)
    assert [*train_rank(work, prepare(work, task), 0, torch.device("cpu"), False)]
    return path_of(folder, STEPS)


def trained_module(spec: str, checkpoint: Path, field: str = PARAMS) -> nn.Module:
    """The module of a run, with what its checkpoint has: its parameters, or their moving average."""
    module = (load_model(spec) if spec.endswith(".py") else build(spec, ROWS)).module
    module.load_state_dict(read_whole(checkpoint, field), strict=False)
    return module.eval()


def greedy_tokens(module: nn.Module, prompt: tuple[int, ...], num: int) -> list[int]:
    """The likeliest tokens after a prompt, each by a forward pass of the module over all before it."""
    tokens = list(prompt)
    with torch.no_grad():
        for _ in range(num):
            tokens.append(int(module(torch.tensor([tokens]))[0, -1].argmax()))
    return tokens[len(prompt) :]
