"""Five lines train, evaluate, export and reload a model of transformers, with the numbers of its own Trainer."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import trainyard as ty
from trainyard.cli.main import main

transformers = pytest.importorskip(
    "transformers", reason="needs transformers: pip install 'trainyard-ml[server]'"
)

ROWS, LENGTH, STEPS = 4, 12, 6
CONFIG = transformers.GPT2Config(
    vocab_size=32, n_positions=16, n_embd=16, n_layer=2, n_head=2,
    resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
)  # fmt: skip


class Tokens(Dataset[dict[str, Tensor]]):
    """Rows of random tokens, which are also the labels, but for the first one, which nothing predicts.

    The Trainer divides the loss by the number of labels. It would count the first one, too.
    """

    def __init__(self, num_rows: int, seed: int) -> None:
        self._rows = torch.randint(32, (num_rows, LENGTH), generator=torch.Generator().manual_seed(seed))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        labels = self._rows[row].clone()
        labels[0] = -100
        return {"input_ids": self._rows[row], "labels": labels}


TRAINED_ON, HELD_OUT = Tokens(ROWS * STEPS, 1), Tokens(2 * ROWS, 2)


def loss(module: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return module(**batch).loss


def built() -> Any:
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(CONFIG)


def theirs(folder: Path) -> tuple[list[float], float, dict[str, Tensor]]:
    """Losses of the steps, loss on the held-out set and state dict by the Trainer of transformers."""
    losses = []

    class Noting(transformers.Trainer):
        def compute_loss(self, model: nn.Module, *args: Any, **more: Any) -> Any:
            found = super().compute_loss(model, *args, **more)
            if model.training:
                losses.append(float(found.detach()))
            return found

    arguments = transformers.TrainingArguments(
        str(folder), max_steps=STEPS, per_device_train_batch_size=ROWS, per_device_eval_batch_size=ROWS,
        learning_rate=0.01, weight_decay=0.1, max_grad_norm=0.5, train_sampling_strategy="sequential",
        report_to="none", save_strategy="no", disable_tqdm=True, use_cpu=True,
    )  # fmt: skip
    trainer = Noting(built(), arguments, train_dataset=TRAINED_ON, eval_dataset=HELD_OUT)
    trainer.train()
    return losses, trainer.evaluate()["eval_loss"], trainer.model.state_dict()


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("accelerate") is None, reason="needs accelerate: pip install 'trainyard-ml[dev]'"
)
@pytest.mark.parametrize("processes", [1, 2])
def test_losses_and_weights_are_those_of_its_trainer(processes: int, tmp_path: Path) -> None:
    optimizer = ty.OptimizerConfig(
        lr=0.01, weight_decay=0.1, no_decay=("1d",), lr_schedule="linear", clip_norm=0.5
    )
    data = DataLoader(TRAINED_ON, ROWS)
    held_out = ty.Evaluation(HELD_OUT)

    model = ty.Model("gpt2", built(), loss, next(iter(data)))
    trainer = ty.Trainer(
        model, data, steps=STEPS, processes=processes, strategies="zero(stage=3)" if processes > 1 else "auto",
        optimizer=optimizer, evaluate=held_out, checkpoint=tmp_path / "run",
    )  # fmt: skip
    steps = trainer.train().metrics
    assert (
        main(["export", str(tmp_path / "run"), "--to", "huggingface", "--output", str(tmp_path / "out")]) == 0
    )
    reloaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")

    losses, held_out_loss, weights = theirs(tmp_path / "theirs")
    assert [step.losses["loss:loss"] for step in steps] == pytest.approx(losses, rel=1e-5)
    assert steps[-1].evaluation["loss"] == pytest.approx(held_out_loss, rel=1e-5)
    for module in (model.module, reloaded):
        found = module.state_dict()
        assert found.keys() == weights.keys()
        for name, value in weights.items():
            torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5)
