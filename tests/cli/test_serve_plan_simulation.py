"""The command that `trainyard serve plan` prints simulates what was planned, also with data-parallel ranks."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from trainyard.cli import main as cli

WANTED = ("--ttft", "600ms", "--tpot", "60ms")
DRAWN = ("--rate", "4", "--num", "100", "--prompt-tokens", "512", "--output-tokens", "64", *WANTED)
MIXTURE = ("serve", "plan", "qwen3-30b-a3b", "--cluster", "1x4xRTX4090", "--policy", "vllm", *DRAWN)


def found_by(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    """The document of a command."""
    assert cli.main((*arguments, "--json")) == 0
    return json.loads(capsys.readouterr().out)


def simulated(capsys: pytest.CaptureFixture[str], planned: Any) -> Any:
    """The document of the command that a plan names."""
    name, *arguments = shlex.split(planned["simulated_by"])
    assert name == "trainyard"
    return found_by(capsys, *arguments)


def same_place(planned: Any, place: Any) -> bool:
    """Whether two documents are of the same deployment."""
    names = (
        "num_devices", "num_replicas", "tensor_parallel", "pipeline_stages", "data_parallel",
        "num_blocks", "max_model_len",
    )  # fmt: skip
    return all(planned["best"][name] == place["deployment"][name] for name in names)


def test_ranks_that_share_experts_are_planned(capsys: pytest.CaptureFixture[str]) -> None:
    planned = found_by(capsys, *MIXTURE)
    best = planned["best"]
    assert (best["num_devices"], best["tensor_parallel"], best["data_parallel"]) == (4, 1, 4)
    assert {each["data_parallel"] for each in planned["runners_up"]} == {1, 2}
    assert {each["data_parallel"] for each in planned["frontier"]} == {1, 2, 4}
    assert planned["described_kernels"]["collective"] == 2 * 48  # before and after each mixture
    place = simulated(capsys, planned)
    assert same_place(planned, place)
    assert place["deployment"]["described_kernels"] == planned["described_kernels"]
    (run,) = place["runs"]
    assert run["slo_attainment"] == best["summary"]["slo_attainment"]
    assert run["e2e_mean_s"] == best["summary"]["e2e"]["mean_s"]
    assert "--tp 1 --dp 4 --replicas 1 --policy vllm" in planned["simulated_by"]


def test_tables_and_page_name_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "plan.html"
    assert cli.main((*MIXTURE, "--html", str(page))) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "4 devices: 1 replica of qwen3-30b-a3b with tp 1, dp 4, vllm;" in said
    assert "split per replica tp 1, dp 4" in said
    assert "4 1 x tp 1, dp 4 vllm" in said
    assert (
        "simulate it with `trainyard serve simulate --model qwen3-30b-a3b --cluster 1x4xRTX4090 --tp 1 --dp 4"
        in said
    )
    assert '"name":"tp 1, dp 4"' in page.read_text().replace(": ", ":")


def test_a_trace_at_a_rate_is_simulated_as_planned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "some requests.csv"
    rows = [f"r{n},{10 * n + n % 3},300,20" for n in range(40)]
    trace.write_text("\n".join(["name,arrival_s,prompt_tokens,output_tokens", *rows]))
    planned = found_by(
        capsys, "serve", "plan", "gpt2-medium", "--cluster", "1x2xT4", "--requests", str(trace), "--rate", "40",
        "--policy", "sarathi(chunk_tokens=256)", "--block-tokens", "8", "--strict", "--e2e", "1s",
        "--router", "round_robin",
    )  # fmt: skip
    assert planned["best"]["block_tokens"] == 8
    place = simulated(capsys, planned)
    assert same_place(planned, place)
    assert place["router"] == "round_robin"
    (run,) = place["runs"]
    assert run["e2e_mean_s"] == planned["best"]["summary"]["e2e"]["mean_s"]


def test_names_of_files_are_not_taken_for_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "requests.csv.0"  # as logs that are kept for some days are named
    rows = [f"r{n},{n / 10},200,8" for n in range(20)]
    trace.write_text("\n".join(["name,arrival_s,prompt_tokens,output_tokens", *rows]))
    planned = found_by(
        capsys, "serve", "plan", "gpt2", "--cluster", "1x1xA100-80G", "--requests", str(trace), "--rate", "10",
        "--policy", "vllm", "--e2e", "2s",
    )  # fmt: skip
    (run,) = simulated(capsys, planned)["runs"]
    assert run["e2e_mean_s"] == planned["best"]["summary"]["e2e"]["mean_s"]


def test_separate_replicas_for_prompts_are_simulated_as_planned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Long prompts would keep decodes waiting for longer than their objective allows."""
    trace = tmp_path / "long.csv"
    rows = [f"r{n},{n + n % 3 / 2},{(500, 700, 900)[n % 3]},40" for n in range(60)]
    trace.write_text("\n".join(["name,arrival_s,prompt_tokens,output_tokens", *rows]))
    planned = found_by(
        capsys, "serve", "plan", "gpt2-medium", "--cluster", "1x4xT4", "--policy", "vllm", "--rate", "15",
        "--requests", str(trace), "--ttft", "600ms", "--tpot", "12ms",
    )  # fmt: skip
    best = planned["best"]
    assert (best["num_replicas"], best["prefill_replicas"]) == (3, 2)
    assert (
        "--replicas 3 --policy vllm --router 'prefill_decode(prefill_replicas=2)'" in planned["simulated_by"]
    )
    place = simulated(capsys, planned)
    assert same_place(planned, place)
    (run,) = place["runs"]
    assert run["slo_attainment"] == best["summary"]["slo_attainment"]
    assert run["e2e_mean_s"] == best["summary"]["e2e"]["mean_s"]
