"""Functions of a Python file that return data: which there are, and what is refused."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from trainyard.job.run.step.data import Data, DataError
from trainyard.job.sources import file_data, file_evaluation, file_model

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


def data_of_file(path: str) -> Data:
    data = file_data(path, file_model(path, 0), 5, 4, seed=1)
    assert data is not None
    return data


def test_a_file_returns_a_dataset_or_a_loader(tmp_path: Path) -> None:
    data = data_of_file(written(tmp_path, "with_dataset", DATASET))
    sent: Any = pickle.loads(pickle.dumps(data))
    rows = torch.cat([sent.batch(step)["batch.1"] for step in (0, 1)])
    assert len(rows.unique()) == 8
    in_order = data_of_file(written(tmp_path, "with_loader", LOADER))
    assert in_order.batch(1)["batch.1"].tolist() == [4, 5, 6, 7]


def test_two_functions_of_data_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has dataset and loader; keep one"):
        data_of_file(written(tmp_path, "with_both", DATASET, LOADER))


@pytest.mark.parametrize("place", ["file", "model"])
def test_rows_are_filled_up_by_the_lengths_of_the_file_or_of_its_model(tmp_path: Path, place: str) -> None:
    lengths = "ty.Lengths((4,), pad={'tokens': 9})"
    of_file, of_model = (f"\nlengths = {lengths}\n", "") if place == "file" else ("", f", lengths={lengths}")
    parts = (
        "\nimport trainyard as ty\n",
        of_file,
        "def model():\n"
        "    loss = lambda module, batch: module(batch['tokens'].float()).mean()\n"
        "    batch = {'tokens': torch.zeros(4, 4).long()}\n"
        f"    return ty.Model('ragged', torch.nn.Linear(4, 1), loss, batch{of_model})\n",
        "\ndef loader():\n    rows = [{'tokens': [1] * (i % 4)} for i in range(8)]\n"
        "    return DataLoader(rows, 4, drop_last=True)\n",
    )
    data: Any = pickle.loads(pickle.dumps(data_of_file(written(tmp_path, f"ragged_{place}", *parts))))
    assert data.batch(0)["batch.tokens"].tolist() == [[9, 9, 9], [1, 9, 9], [1, 1, 9], [1, 1, 1]]


def test_an_evaluation_is_made_in_every_process(tmp_path: Path) -> None:
    evaluation = file_evaluation(written(tmp_path, "with_held_out", HELD_OUT), 10)
    opened = pickle.loads(pickle.dumps(evaluation)).opened()
    assert (opened.every, len(opened.data)) == (10, 10)
    assert file_evaluation("gpt-tiny", 0) is None
    for spec in ("gpt-tiny", written(tmp_path, "without", DATASET)):
        with pytest.raises(ValueError, match=r"--evaluate-every 10: .* has no function evaluation\(\)"):
            file_evaluation(spec, 10)
