"""Every example runs and prints what it printed before, but for numbers; all are short."""

import sys

import pytest
from pages import ROOT, matches, run

EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))
TAKE_LONG = ("compare_strategies", "plan_for_another_cluster")
EXPECTED = ROOT / "tests" / "docs" / "expected"
SCRIPTS = [
    path
    for path in EXAMPLES
    if path.parent.name == "examples"
    and not any(f"def {name}(" in path.read_text() for name in ("data", "loader"))
]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_are_short_and_say_what_they_show(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 60
    assert text.startswith('"""')


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=[pytest.mark.long] if path.stem in TAKE_LONG else [])
        for path in SCRIPTS
    ],
)
def test_example(path, tmp_path):
    if path.stem.startswith("hugging_face"):
        pytest.importorskip("transformers", reason="needs transformers: pip install 'trainyard-ml[server]'")
    done = run(f"{sys.executable} {path}", tmp_path, timeout_s=300)
    assert done.returncode == 0, done.stdout
    expected = (EXPECTED / f"{path.stem}.txt").read_text()
    assert matches(expected, done.stdout), f"{done.stdout}\n--- expected ---\n{expected}"


def test_the_file_for_training_has_a_model_and_the_same_data_for_the_same_step():
    import torch

    from trainyard.job.planning import load_model
    from trainyard.job.sources import data_of, file_data

    path = str(ROOT / "examples" / "gpt_on_python_source.py")
    model = load_model(path)
    rows = model.batch["tokens"].shape[0]
    data, said = data_of(path, rows, file_data(path, model, 1, rows, 0))
    assert said.startswith("data(step)")
    first, again, next_one = data.batch(0), data.batch(0), data.batch(1)
    assert set(first) == {"batch.tokens", "batch.targets"}
    assert torch.equal(first["batch.tokens"], again["batch.tokens"])
    assert not torch.equal(first["batch.tokens"], next_one["batch.tokens"])
    assert len(first["batch.tokens"]) == rows
