"""Measured configurations are simulated with what the scripts that started the servers say."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from trainyard.hardware.parse import parse_cluster
from trainyard.serve.deployment import ServedModel
from trainyard.serve.step_time import LinearStepTime

_FOLDER = str(Path(__file__).resolve().parents[2] / "benchmarks")


@pytest.fixture
def truth(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(_FOLDER)
    from published import configurations

    yield configurations
    for name in [each for each in sys.modules if each.split(".")[0] == "published"]:
        del sys.modules[name]


def _row(truth: ModuleType, device: str, shards: int, **other: object) -> object:
    given = {
        "row": "1",
        "server": "sglang",
        "model": "deepseek-v3",
        "device": device,
        "dtype": "float8",
        "tensor_parallel": shards,
        "data_parallel": 1,
        "expert_parallel": False,
        "clients": 16,
        "prompt_tokens": 8192,
        "output_tokens": 1024,
        "is_inferencex": True,
        "measured": (1.0, 1.0),
    }
    return truth.Row(**(given | other))


@pytest.mark.parametrize(("shards", "most"), [(4, 32), (8, 128)])
def test_deepseek_on_b200_runs_as_many_requests_as_its_script_says(
    truth: ModuleType, shards: int, most: int
) -> None:
    assert truth.scheduler(_row(truth, "B200", shards)).max_requests == most
    for other in (_row(truth, "H200", shards), _row(truth, "B200", shards, is_inferencex=False)):
        assert truth.scheduler(other).max_requests == 2048


def test_deepseek_on_four_b200_has_the_cache_that_its_script_leaves(truth: ModuleType) -> None:
    """95 % of a device, less the weights; each block of 16 bits is two of 8 bits."""
    device = parse_cluster("1x1xB200").devices[0]
    weights, token, activations = 168 * 10**9, 70_000, 10**9
    model = ServedModel(
        "deepseek-v3",
        LinearStepTime(1.0, 0.0, 0.0, 0.0, 0.0),
        4,
        1,
        weights,
        token,
        int(0.9 * device.usable_bytes),
        activations,
        131072,
        "a test",
    )
    tokens = truth.BLOCK_TOKENS * truth._cache_blocks(_row(truth, "B200", 4), model)
    assert tokens == pytest.approx(2 * (0.95 * device.usable_bytes - weights) / token, rel=1e-3)
    others = truth.BLOCK_TOKENS * truth._cache_blocks(_row(truth, "B200", 4, server="vllm"), model)
    assert others < tokens / 3
