"""Models from files, and what is wrong with files."""

import sys

import pytest

from trainyard.zoo import load_model_file

GOOD = """
from torch import nn, zeros
from beside import WIDTH
from trainyard.program.model import Model

def loss(module, batch):
    return module(batch["x"]).square().mean()

def model():
    parts = nn.Linear(WIDTH, 1), loss, {"x": zeros(2, WIDTH)}
    return RETURNED
"""


@pytest.mark.parametrize(
    ("returned", "name"), [("parts", "mine"), ("Model('other', *parts)", "other")], ids=["tuple", "model"]
)
def test_a_file_gives_a_model(tmp_path, returned, name):
    (tmp_path / "beside.py").write_text("WIDTH = 3\n")
    file = tmp_path / "mine.py"
    file.write_text(GOOD.replace("RETURNED", returned))
    model = load_model_file(file)
    assert model.name == name
    assert model.loss(model.module, model.batch).shape == ()
    assert str(tmp_path) not in sys.path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "there is no file .*; give the path of a Python file"),
        ("x = 1\n", "has no function `model`"),
        ("def model():\n    return 3\n", "returned int; it must define"),
        ("def model():\n    return 1, 2, 3\n", r"returned \(int, int, int\)"),
    ],
    ids=["missing", "empty", "number", "wrong-tuple"],
)
def test_what_is_wrong_is_said(tmp_path, text, message):
    file = tmp_path / "mine.py"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ValueError, match=message):
        load_model_file(file)
