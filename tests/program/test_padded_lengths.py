"""Sizes to which batches are padded: what is filled up with what, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from trainyard.program.lengths import LengthError, Lengths
from trainyard.program.model import Model
from trainyard.reading.arguments import WrongTypeError
from trainyard.zoo import load_model_file

BATCH = {"tokens": torch.ones(2, 3, dtype=torch.int64), "sound": torch.ones(2, 5, 3), "class": torch.zeros(2)}


def _model(lengths: Any) -> Model:
    return Model(
        "m", nn.Linear(1, 1), lambda module, batch: module(batch["sound"]).mean(), BATCH, lengths=lengths
    )


def test_the_example_is_filled_up_to_the_largest_and_cut_to_the_others() -> None:
    model = _model(Lengths((8, 2), {"tokens": 7, "sound": 0.5}, dim={"sound": 2}))
    assert model.batch["tokens"].tolist() == [[1, 1, 1, 7, 7, 7, 7, 7]] * 2
    assert model.batch["sound"].shape == (2, 5, 8)
    assert model.batch["sound"][0, 0].tolist() == [1, 1, 1, 0.5, 0.5, 0.5, 0.5, 0.5]
    assert model.batch["class"] is BATCH["class"]
    short = model.at_length(2)
    assert short.lengths is None
    assert short.batch["tokens"].tolist() == [[1, 1]] * 2
    assert short.batch["sound"].shape == (2, 5, 2)


@pytest.mark.parametrize(("length", "size"), [(1, 2), (2, 2), (3, 8), (8, 8)])
def test_a_batch_gets_the_smallest_size_that_holds_it(length: int, size: int) -> None:
    lengths = Lengths((8, 2), {0: 0})
    batch = {"batch.0": torch.ones(1, length), "batch.1": torch.ones(1)}
    assert lengths.size_for(lengths.length(batch)) == size
    assert lengths.padded(batch, size)["batch.0"].sum() == length
    assert lengths.padded(batch, size)["batch.0"].shape == (1, size)


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        (lambda: Lengths((), {"tokens": 0}), r"sizes \(\); allowed are different whole numbers above 0"),
        (lambda: Lengths((4, 4), {"tokens": 0}), "allowed are different whole numbers"),
        (lambda: Lengths((4.0,), {"tokens": 0}), "allowed are different whole numbers"),  # type: ignore[arg-type]
        (lambda: Lengths(8, {"tokens": 0}), "allowed are different whole numbers"),  # type: ignore[arg-type]
        (lambda: Lengths((8,), {}), "allowed is the value with which each entry"),
        (lambda: Lengths((8,), {"tokens": 0}, dim=0), "allowed are dimensions from 1 on"),
        (lambda: Lengths((8,), {"tokens": 0}, dim={"sound": 1}), "dim of 'sound', which pad does not name"),
        (
            lambda: Lengths((8,), {"token": 0}),
            "pads 'token', which the batch does not have; it has tokens, sound",
        ),
        (lambda: Lengths((8,), {"tokens": 0.5}), "pads batch.tokens with 0.5, which torch.int64 cannot hold"),
        (lambda: Lengths((8,), {"tokens": float("nan")}), "which torch.int64 cannot hold"),
        (lambda: Lengths((8,), {"tokens": 2**70}), "which torch.int64 cannot hold"),
        (lambda: Lengths((8,), {"tokens": "0"}), "which torch.int64 cannot hold"),  # type: ignore[dict-item]
        (lambda: Lengths((2,), {"tokens": 0}), "batch.tokens has length 3; the largest of lengths is 2"),
        (lambda: Lengths((8,), {"class": 0}), r"batch.class has shape \(2,\) and so no dimension 1"),
        (lambda: Lengths((8,), {"tokens": 0, "sound": 0}), "several lengths: batch.tokens 3, batch.sound 5"),
    ],
)
def test_lengths_that_cannot_be_are_refused(lengths: Any, message: str) -> None:
    with pytest.raises(LengthError, match=message):
        _model(lengths())


def test_lengths_of_another_type_are_refused() -> None:
    with pytest.raises(WrongTypeError, match=r"lengths is .* Lengths\(\(64, 128\)"):
        _model((64, 128))


def test_a_file_says_its_lengths_beside_its_model(tmp_path: Any) -> None:
    file = tmp_path / "reader.py"
    file.write_text(
        "import torch\nfrom trainyard import Lengths\nlengths = Lengths((4, 8), pad={0: 0})\n"
        "def model():\n    return torch.nn.Linear(1, 1), lambda m, b: m(b[0]).mean(), (torch.zeros(2, 3, 1),)\n"
    )
    assert load_model_file(file).batch[0].shape == (2, 8, 1)
