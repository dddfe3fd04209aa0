"""`trainyard serve compare`: what was simulated stands beside what was measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from refused_commands import check_refused
from transformers import LlamaConfig, LlamaForCausalLM

from trainyard.cli import main as cli

DRAWN = ("--rate", "200", "--num", "20", "--prompt-tokens", "20", "--output-tokens", "5")
BAD = {
    "no folder": (("nowhere", *DRAWN), ("nowhere has no config.json",)),
    "unknown policy": (("model", *DRAWN, "--policy", "vlm"), ("unknown policy 'vlm'",)),
    "oracle": (("model", *DRAWN, "--policy", "vllm, vtc(predict='oracle')"), ("how long outputs will be", "use another")),
    "turns": (("model", *DRAWN, "--turns", "2"), ("--turns 2: serve compare sends each request", "leave it out")),
    "two sizes": (
        ("model", *DRAWN, "--cache-blocks", "9", "--cache-memory", "1MiB"), ("give one",)
    ),
    "small cache": (
        ("model", *DRAWN, "--cache-blocks", "2", "--max-model-len", "100"), ("--cache-blocks 7 or more",)
    ),
    "no requests": (("model",), ("--requests", "--rate")),
}  # fmt: skip


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Of a model with random weights."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=100,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=256,
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path / "model")
    return tmp_path


@pytest.mark.parametrize("given", BAD.values(), ids=BAD)
def test_bad_input_is_refused(given, capsys: pytest.CaptureFixture[str]):
    words, said = given
    check_refused(("serve", "compare", *words), said, capsys)


def test_both_runs_of_each_policy_are_told(folder: Path, capsys: pytest.CaptureFixture[str]):
    command = ("serve", "compare", "model", *DRAWN, "--policy", "vllm,orca", "--cache-blocks", "100")
    before = torch.get_num_threads()
    assert cli.main((*command, "--threads", "1", "--json", "--html", "page.html")) == 0
    torch.set_num_threads(before)
    said = json.loads(capsys.readouterr().out)
    assert [each["policy"] for each in said["policies"]] == ["vllm", "orca"]
    assert set(said["policies"][0]["errors"]) == {
        f"{a}_{b}" for a in ("ttft", "tpot", "e2e") for b in ("mean", "p99")
    }
    names = [run["policy"] for run in said["runs"]]
    assert names == ["vllm, simulated", "vllm, served", "orca, simulated", "orca, served"]
    assert [run["num_served"] for run in said["runs"]] == [20] * 4
    page = (folder / "page.html").read_text()
    assert all(name in page for name in names)
