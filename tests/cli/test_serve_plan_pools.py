"""`trainyard serve plan` with separate replicas for prompts and decodes: what is printed, drawn and refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from splits_of_tests import split_of

from trainyard.cli import main as cli
from trainyard.progress import Progress
from trainyard.serve import deploy
from trainyard.serve.deployment import ServedModel

# Long prompts keep decodes waiting beyond a short TPOT, unless these have replicas of their own.
LONG = (
    "--rate", "40", "--num", "120", "--prompt-tokens", "600", "--output-tokens", "40", "--max-tokens", "500",
    "--ttft", "300ms", "--tpot", "10ms", "--share", "95%",
)  # fmt: skip
PLAN = (
    "serve",
    "plan",
    "llama3-8b",
    "--cluster",
    "1x4xA100-80G",
    "--policy",
    "vllm,sarathi(chunk_tokens=256)",
)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder, where all models take the seconds of a small one that cannot be cut over devices."""
    split = split_of(num_heads=1)

    def served_model(
        model: str, cluster: object, *, tensor_parallel: int, pipeline_stages: int, **more: object
    ) -> ServedModel:
        return split(tensor_parallel, pipeline_stages)

    monkeypatch.setattr(deploy, "served_model", served_model)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_pools_are_named_and_drawn_and_not_saved(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main((*PLAN, *LONG, "--html", "p.html", "--save", "placement.json")) == 1
    out, err = capsys.readouterr()
    said = " ".join(out.split())
    assert "3 devices: 3 replicas of made (2 prefill + 1 decode), vllm" in said
    assert "3 (2 prefill + 1 decode) x tp" in said
    assert "--replicas 3 --policy vllm --router 'prefill_decode(prefill_replicas=2)'" in said
    assert "splits that are ruled out tp 1 fewer" not in said
    assert "3 replicas of made (2 prefill + 1 decode), vllm" in (small / "p.html").read_text()
    assert "plan with --router least_requests" in err
    assert not (small / "placement.json").exists()


def test_only_a_given_router_is_tried(capsys: pytest.CaptureFixture[str]) -> None:
    def document(*more: str) -> Any:
        cli.main((*PLAN, *LONG, "--json", *more))
        return json.loads(capsys.readouterr().out)

    free, given = document(), document("--router", "least_requests")
    assert (free["is_met"], given["is_met"]) == (True, False)
    assert (free["best"]["num_devices"], free["best"]["prefill_replicas"]) == (3, 2)
    trials = [given["best"], *given["runners_up"]]
    assert {each["router"] for each in trials} == {"least_requests"}


def test_progress_says_what_is_simulated_and_the_best_so_far(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[tuple[str, str]] = []

    @contextmanager
    def shown(console: object, stage: str) -> Iterator[Progress]:
        told.append((stage, ""))
        yield lambda stage, part: told.append((stage, part))

    monkeypatch.setattr("trainyard.cli.screen.showing_progress", shown)
    assert cli.main((*PLAN, *LONG)) == 0
    assert told[0] == ("loading PyTorch", "")
    assert ("planning", "splitting the model: tp 1, pp 2") in told
    parts = [part for stage, part in told if stage == "simulating"]
    assert parts[0].startswith("0 done; ")
    assert "vllm; none meets the objectives so far" in parts[0]
    best = "best so far: 3 devices, 3 replicas of made, vllm, prefill_decode(prefill_replicas=2)"
    assert any(best in part for part in parts)
