"""Functions of a Python file that return data: which there are, and what is refused."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from trainyard.job.run.step.data import DataError
from trainyard.job.sources import file_data, file_evaluation

MODEL = """
import torch
from torch.utils.data import DataLoader, TensorDataset

rows = TensorDataset(torch.arange(10.0)[:, None], torch.arange(10))


def model():
    loss = lambda module, batch: torch.nn.functional.mse_loss(module(batch[0])[:, 0], batch[1].float())
    return torch.nn.Linear(1, 1), loss, (torch.zeros(4, 1), torch.zeros(4, dtype=torch.int64))
"""
DATASET = "\ndef dataset():\n    return rows\n"
LOADER = "\ndef loader():\n    return DataLoader(rows, 4, drop_last=True)\n"
HELD_OUT = "\ndef evaluation():\n    return rows\n"


def written(folder: Path, name: str, *parts: str) -> str:
    """A file of its own name, because a process runs each file once."""
    file = folder / f"{name}.py"
    file.write_text("".join((MODEL, *parts)))
    return str(file)


def test_a_file_returns_a_dataset_or_a_loader(tmp_path: Path) -> None:
    data = file_data(written(tmp_path, "with_dataset", DATASET), 5, 4, seed=1)
    assert data is not None
    sent: Any = pickle.loads(pickle.dumps(data))
    rows = torch.cat([sent.batch(step)["batch.1"] for step in (0, 1)])
    assert len(rows.unique()) == 8
    in_order = file_data(written(tmp_path, "with_loader", LOADER), 5, 4, seed=1)
    assert in_order is not None
    assert in_order.batch(1)["batch.1"].tolist() == [4, 5, 6, 7]


def test_two_functions_of_data_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has dataset and loader; keep one"):
        file_data(written(tmp_path, "with_both", DATASET, LOADER), 5, 4, 0)


def test_an_evaluation_is_made_in_every_process(tmp_path: Path) -> None:
    evaluation = file_evaluation(written(tmp_path, "with_held_out", HELD_OUT), 10)
    opened = pickle.loads(pickle.dumps(evaluation)).opened()
    assert (opened.every, len(opened.data)) == (10, 10)
    assert file_evaluation("gpt-tiny", 0) is None
    for spec in ("gpt-tiny", written(tmp_path, "without", DATASET)):
        with pytest.raises(ValueError, match=r"--evaluate-every 10: .* has no function evaluation\(\)"):
            file_evaluation(spec, 10)
