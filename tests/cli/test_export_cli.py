"""`trainyard export`: weights of runs by the command line, and what is refused."""

import json

import pytest
import torch
from one_rank import run
from safetensors.torch import load_file
from tests.serve.run.trained_runs import trained, trained_module
from transformers import AutoModelForCausalLM

from trainyard.cli.main import main


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working folder, with a run of a small network in it."""
    monkeypatch.chdir(tmp_path)
    run(tmp_path / "run", 1)
    return tmp_path


def test_exports_by_default_into_the_folder_of_the_reader(folder, capsys):
    assert main(["export", "run", "--to", "safetensors"]) == 0
    assert "step 1 in run-step-00000001: 1 file of weights" in capsys.readouterr().out
    assert main(["export", "run/step-00000001", "--to", "state-dict", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["files"] == [told["output"]] == ["run-step-00000001.pt"]
    assert told["step"] == 1
    state = torch.load(told["output"], weights_only=True)
    found = load_file(folder / "run-step-00000001" / "model.safetensors")
    assert state.keys() == found.keys()
    assert all(torch.equal(state[name], found[name]) for name in state)


def test_a_model_of_the_zoo_has_the_names_of_transformers(tmp_path, capsys):
    checkpoint = trained("gpt-tiny", tmp_path / "run")
    tokens = torch.arange(8)[None]
    for out, field, given in ((tmp_path / "out", "param", []), (tmp_path / "average", "ema", ["--ema"])):
        options = ["--to", "huggingface", "--output", str(out), "--max-shard-size", "100kB", *given]
        assert main(["export", str(checkpoint), *options, "--json"]) == 0
        assert len(json.loads(capsys.readouterr().out)["files"]) > 1
        with torch.no_grad():
            logits = AutoModelForCausalLM.from_pretrained(out).eval()(tokens).logits
            expected = trained_module("gpt-tiny", checkpoint, field)(tokens)
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


REFUSED = {
    "no checkpoint": (("elsewhere", "--to", "state-dict"), "elsewhere has no checkpoint; give the folder of a run"),
    "no form in transformers": (("run", "--to", "huggingface"), "or export with --to safetensors"),
    "a configuration for nothing": (("run", "--to", "state-dict", "--config", "run"), "--config run: of --to hugg"),
    "no moving average": (("run", "--to", "state-dict", "--ema"), "has no moving average; train with ema_decay"),
    "what exists": (("run", "--to", "safetensors", "--output", "run"), "run exists already; give another --output"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refuses(case, folder, capsys):
    arguments, message = REFUSED[case]
    assert main(["export", *arguments]) == 2
    assert message in capsys.readouterr().err
