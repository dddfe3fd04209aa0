"""Data is a pure function of the step, and refused with a reason where it does not fit."""

import pickle
from collections import UserDict

import plans
import pytest
import torch
from torch import nn

from trainyard.job.run.step.data import DataError, FixedData, FunctionData, TextData, by_path, check_batch
from trainyard.program.capture import capture
from trainyard.program.model import Model


def _squares(step):
    return {"tokens": torch.full((8, 16), step), "targets": torch.full((8, 16), step**2)}


def test_text_depends_on_step_and_seed_only():
    data = pickle.loads(pickle.dumps(TextData(4, 16, 128, seed=1)))
    one, again, other = data.batch(3), TextData(4, 16, 128, seed=1).batch(3), data.batch(4)
    assert torch.equal(one["batch.tokens"], again["batch.tokens"])
    assert not torch.equal(one["batch.tokens"], other["batch.tokens"])
    assert not torch.equal(one["batch.tokens"], TextData(4, 16, 128, seed=2).batch(3)["batch.tokens"])
    assert torch.equal(one["batch.tokens"][:, 1:], one["batch.targets"][:, :-1])
    assert int(one["batch.tokens"].max()) < 128


def test_function_and_fixed_batches_are_named_by_path():
    batch = FunctionData(_squares).batch(5)
    assert set(batch) == {"batch.tokens", "batch.targets"}
    assert int(batch["batch.targets"][0, 0]) == 25
    nested = FixedData({"a": [torch.zeros(2)], "b": torch.ones(2)}).batch(0)
    assert set(nested) == {"batch.a.0", "batch.b"}
    assert set(by_path(UserDict(x=torch.ones(1)))) == {"batch.x"}  # as a BatchEncoding of Hugging Face is
    with pytest.raises(DataError, match=r"batch\.x is a int"):
        FixedData({"x": 3}).batch(0)


def test_batches_that_do_not_fit_are_refused():
    program = plans.program(2, "float32")
    good = plans.DATA_SOURCE.batch(0)
    check_batch(good, program, plans.ROWS)
    with pytest.raises(DataError, match=r"no batch\.targets"):
        check_batch({"batch.tokens": good["batch.tokens"]}, program, plans.ROWS)
    with pytest.raises(DataError, match=r"16 rows a step: .* pad them to one length \(collate_fn"):
        check_batch(good, program, 16)
    with pytest.raises(DataError, match="meta"):
        check_batch({k: v.to("meta") for k, v in good.items()}, program, plans.ROWS)


def test_truth_values_and_numbers_are_not_mixed_up():
    model = Model(
        "m",
        nn.Linear(3, 1),
        lambda m, b: (m(b["x"])[:, 0] * b["is_counted"]).sum(),
        {"x": torch.ones(4, 3), "is_counted": torch.ones(4, dtype=torch.bool)},
    )
    program = capture(model)
    check_batch(by_path(model.batch), program, 4)
    with pytest.raises(DataError, match=r"is_counted is torch\.int64 .* captured with torch\.bool"):
        check_batch(by_path({**model.batch, "is_counted": torch.full((4,), 2)}), program, 4)
