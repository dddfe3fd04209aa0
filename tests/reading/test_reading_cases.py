"""Runaway files as users met them: each is refused while it is read, with what is wrong and where."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trainyard.cli import main as cli
from trainyard.fleet.site import FleetError
from trainyard.fleet.workload.read import read_workload

CASES = Path(__file__).parent / "cases"
PLANS = {
    "alias_bomb": ("line 6: alias *a4", "allowed are 100,000"),
    "billion_microbatches": ("line 11, field 'num_microbatches': got 1000000000",),
    "deep_nesting": ("line 1: lists or mappings too deep in each other",),
    "duplicate_key": ("line 5: key 'num_rows' stands twice, first on line 4",),
    "negative_rows": ("line 4, field 'num_rows': got -8", "from 1 to"),
}
CLUSTERS = {
    "alias_bomb": ("line 6: alias *a4", "allowed are 100,000"),
    "duplicate_key": ("line 2: key 'name' stands twice, first on line 1",),
    "many_nodes": ("line 39, field 'count': got 100000000", "131,072"),
    "memory_inf": ("line 4, device 'T4', field 'memory_bytes': got inf",),
    "self_include": ("includes itself", "16x8xA100-80G"),
    "unknown_key": ("line 1, field 'bogus'", "name, devices, topologies, nodes, fabric, profile"),
}


def refused(arguments: tuple[str, ...], said: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.main(arguments)
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    for words in said:
        assert words in err


@pytest.mark.parametrize("name", PLANS)
def test_plans(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = f"{CASES}/plans/{name}.yaml"
    refused(("simulate", path, "--model", "gpt-tiny"), (path, *PLANS[name]), capsys)


@pytest.mark.parametrize("name", CLUSTERS)
def test_clusters(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(CASES / "clusters")
    refused(("hardware", f"{name}.yaml"), (f"{name}.yaml", *CLUSTERS[name]), capsys)


def test_a_plan_is_read_before_pytorch_is_loaded() -> None:
    code = (
        "import sys\nfrom trainyard.cli.main import main\n"
        f"status = main(['simulate', {str(CASES / 'plans' / 'negative_rows.yaml')!r}])\n"
        "sys.exit(9 if 'torch' in sys.modules else status)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("duplicate_column", "line 1: 2 columns are called 'length_s', columns 4, 5"),
        (
            "huge_batch",
            "line 2, field 'batch_size': got '1e18', allowed is a whole number of at least 1 and at most",
        ),
    ],
)
def test_traces(name: str, said: str) -> None:
    with pytest.raises(FleetError) as error:
        list(read_workload(CASES / f"{name}.csv"))
    assert said in str(error.value)


HUGE = "9" * 5000
OPTIONS = {
    "rows, huge": (("plan", "gpt-tiny", "--cluster", "1x2xT4", "--rows", "1000000000000"), "--rows 1000000000000"),
    "rows, negative": (("plan", "gpt-tiny", "--cluster", "1x2xT4", "--rows", "-1"), "--rows -1: allowed is 1 to"),
    "rows, endless": (("compare", "gpt-tiny", "--cluster", "1x2xT4", "--strategies", "zero", "--rows", HUGE), "--rows"),
    "no processes": (("train", "gpt-tiny", "--processes", "0"), "--processes 0: allowed is 1 to 256"),
    "steps, negative": (("train", "gpt-tiny", "--steps", "-5"), "--steps -5: allowed is 0 to"),
    "rate of learning": (("train", "gpt-tiny", "--lr", "nan"), "--lr nan"),
    "nodes, endless": (("hardware", f"{HUGE}x2xT4"), "allowed: NODESxDEVICESxNAME"),
    "nodes in all": (("hardware", "+".join(["16384x8xT4"] * 40)), "more than 131072 devices"),
    "processes as a cluster": (("hardware", "local:1000000000"), "1000000000 local processes; allowed"),
    "a cluster of jobs": (
        ("fleet", "simulate", "--trace", f"{CASES}/huge_batch.csv", "--cluster", "9x1000000000"),
        "at most 1,000,000 devices, got 9 nodes of 1000000000",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIONS)
def test_options(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, said = OPTIONS[name]
    refused(arguments, (said,), capsys)
