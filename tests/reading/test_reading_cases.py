"""Runaway files as users met them: each is refused while it is read, with what is wrong and where."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from trainyard.cli import main as cli
from trainyard.fleet.errors import FleetError
from trainyard.fleet.workload.read import read_workload
from trainyard.hardware import HardwareError, parse_cluster
from trainyard.hardware.parse import cluster_from_yaml
from trainyard.job.plan import PlanError, parse_plan

CASES = Path(__file__).parent / "cases"
PLANS = {
    "alias_bomb": ("line 6: alias *a4", "allowed are 100,000"),
    "billion_microbatches": ("line 13, field 'num_microbatches': got 1000000000",),
    "deep_nesting": ("line 1: lists or mappings too deep in each other",),
    "duplicate_key": ("line 5: key 'num_rows' stands twice, first on line 4",),
    "negative_rows": ("line 4, field 'num_rows': got -8", "from 1 to"),
}
CLUSTERS = {
    "alias_bomb": ("line 6: alias *a4", "allowed are 100,000"),
    "duplicate_key": ("line 2: key 'name' stands twice, first on line 1",),
    "many_nodes": ("line 39, field 'count': got 100000000", "1,000,000"),
    "memory_inf": ("line 4, device 'T4', field 'memory_bytes': got inf",),
    "self_include": ("includes itself", "16x8xA100-80G"),
    "unknown_key": ("line 1, field 'bogus'", "name, devices, topologies, nodes, fabric, profile"),
}


def changed(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new, 1)


PLAN = changed((CASES / "plans" / "negative_rows.yaml").read_text(), "num_rows: -8", "num_rows: 8")
WRONG_PLANS = {
    "rows": ("num_rows: 8", "num_rows: 1000000000", "line 4, field 'num_rows': got 1000000000"),
    "half a row": ("num_rows: 8", "num_rows: 8.5", "field 'num_rows': got 8.5"),
    "endless rows": ("num_rows: 8", "num_rows: " + "9" * 5000, "line 4: a number of 5,000 digits"),
    "infinitely many rows": ("num_rows: 8", "num_rows: .inf", "line 4: field 'num_rows': got .inf"),
    "ranks": ("data: 2", "data: 1000000000", "line 7, field 'data': got 1000000000"),
    "ranks in all": ("data: 2\n    tensor: 1", "data: 2000\n    tensor: 2000", "4,000,000 ranks; at most 131,072"),
    "the pipeline's axis": ("tensor: 1", "tensor: 1\n    pipeline: 2", "a mesh axis is called 'pipeline'"),
    "rows over no axis": ("rows: [data]", "rows: [expert]", "rows are divided over expert; the mesh has data, tensor"),
    "no stages": ("- mesh:", "- {}\n- mesh:", "a schedule of 1 stages needs as many stages in the plan"),
    "unknown": ("num_rows: 8", "num_rows: 8\nbogus: 1", "field 'bogus': no such field; there are model, fingerprint"),
    "actions": ("num_microbatches: 1", "num_microbatches: 1000000", "2,000,000 actions; at most 262,144"),
    "stages": ("num_stages_per_rank: 1", "num_stages_per_rank: 1000000", "field 'num_stages_per_rank': got 1000000"),
    "unknown schedule": ("name: gpipe", "name: x", "field 'schedule': unknown schedule 'x'; known:"),
    "an unknown fate": ("relu: recompute", "relu: forget", "unknown fate 'forget'; known: recompute"),
    "a placement": ("S0", "S9999", "field 'data': 'S9999' is no placement"),
    "parameters alone divided": (
        "summed_over: [data]", "summed_over: [data]\n  parameters: {divided_over: [data]}", "gradients are not"
    ),
    "divided over another axis": (
        "summed_over: [data]", "summed_over: [data]\n  optimizer: {divided_over: [tensor]}", "is divided over tensor"
    ),
    "empty buckets": ("bucket_bytes: 26214400", "bucket_bytes: 0", "field 'bucket_bytes': got 0"),
    "a model that is a number": ("model: gpt-tiny", "model: 5", "line 1, field 'model': got 5, allowed is a text"),
    "a cluster in it": ("cluster: local:2", "cluster: {nodes: []}", "line 3, field 'devices' is missing"),
}  # fmt: skip


def test_the_plan_itself_is_one() -> None:
    assert parse_plan(PLAN).num_rows == 8


@pytest.mark.parametrize("name", WRONG_PLANS)
def test_other_plans(name: str) -> None:
    old, new, said = WRONG_PLANS[name]
    with pytest.raises(PlanError, match=re.escape(said)) as error:
        parse_plan(changed(PLAN, old, new), "FILE")
    assert str(error.value).count("FILE") == 1


@pytest.mark.parametrize(
    ("schedule", "said"),
    [
        ("g stages=1 microbatches=999999999\n0: 0F0 0B0", "0F1: missing"),
        (f"g stages={'9' * 5000} microbatches=1\n0: 0F0 0B0", "a schedule's first line is"),
        (f"g stages=1 microbatches=1\n0: 0F{'9' * 5000}", "is not an action"),
        ("g stages=1 microbatches=1\n0: " + "0F0 " * 600_000, "at most 262,144 actions"),
    ],
)
def test_lists_of_actions(schedule: str, said: str) -> None:
    named = PLAN[PLAN.index("schedule:") : PLAN.index("placements:")]
    with pytest.raises(PlanError, match=re.escape(said)) as error:
        parse_plan(changed(PLAN, named, f"schedule: {json.dumps(schedule)}\n"))
    assert len(str(error.value)) < 400


CLUSTER = changed((CASES / "clusters" / "unknown_key.yaml").read_text(), "bogus: 3\n", "")
WRONG_CLUSTERS = {
    "no nodes": ("count: 2", "count: 0", "field 'count': got 0, allowed is a whole number from 1 to 1,000,000"),
    "infinitely many": ("count: 2", "count: .inf", "field 'count': got inf"),
    "devices in all": ("count: 2", "count: 1000000", "with which a cluster has at most 1,000,000 devices"),
    "a large node": ("num_devices: 2", "num_devices: 1000000000", "'PCIe3 tree', field 'num_devices': got 1000000000"),
    "a device from the end": ("devices: [0, 0]", "devices: [0, -1]", "devices of a node, field '1': got -1"),
    "no such topology": ("topology: 0", "topology: 7", "field 'topology': got 7, allowed is 0"),
    "a slow link": ("latency_s: 2.85e-06", "latency_s: .nan", "field 'latency_s': got nan, allowed is a number"),
    "infinite efficiency": ("max_matmul_fraction: 0.6", "max_matmul_fraction: .inf", "efficiency of 'T4', field 'max_"),
    "an unknown field of a device": ("launch_s:", "start_s: 1\n  launch_s:", "'T4', field 'start_s': no such field"),
    "an unknown link": ("[gpu0, pcie0, 0]", "[gpu0, pcie0, 99]", "FILE: edge gpu0->pcie0"),
    "half an edge": ("[gpu0, pcie0, 0]", "[gpu0, pcie0]", "index of a link], and one is ['gpu0', 'pcie0']"),
    "a preset": ("- name: T4", "- T5\n- name: T4", "FILE: unknown device 'T5'; known: A100-40G"),
    "a profile": ("nodes:", "profile: {version: 2}\nnodes:", "a machine profile cannot be read: FILE, line 3"),
}  # fmt: skip


def test_the_cluster_itself_is_one() -> None:
    assert cluster_from_yaml(CLUSTER).num_devices == 4


@pytest.mark.parametrize("name", WRONG_CLUSTERS)
def test_other_clusters(name: str) -> None:
    old, new, said = WRONG_CLUSTERS[name]
    with pytest.raises(HardwareError, match=re.escape(said)) as error:
        cluster_from_yaml(changed(CLUSTER, old, new), "FILE")
    assert str(error.value).count("FILE") == 1


def test_files_that_name_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for here, there in (("a", "b.yaml"), ("b", "a.yaml"), ("c", "d.yaml"), ("d", "1x2xT4")):
        Path(f"{here}.yaml").write_text(f"cluster: {there}\n")
    with pytest.raises(HardwareError, match=r"includes itself \(a.yaml -> b.yaml -> a.yaml\)"):
        parse_cluster("a.yaml")
    assert parse_cluster("c.yaml").num_devices == 2


def test_a_fabric_of_many_nodes() -> None:
    edges = ", ".join(f"[node{i}, node{(i + 1) % 5000}, 0]" for i in range(5000))
    ring = f"fabric: {{name: ring, links: [{{name: w, bandwidth_bytes_per_s: 1.0, latency_s: 0}}], edges: [{edges}]}}\n"
    text = changed(CLUSTER, "count: 2", "count: 5000") + ring
    assert cluster_from_yaml(text).num_nodes == 5000
    with pytest.raises(HardwareError, match="no path from node1 to node0"):
        cluster_from_yaml(changed(text, "[node4999, node0, 0]", "[node4999, spine, 0]"))


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
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
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
    with pytest.raises(FleetError, match=re.escape(said)):
        list(read_workload(CASES / f"{name}.csv", strict=True))


HUGE = "9" * 5000
OPTIONS = {
    "rows, huge": (("plan", "gpt-tiny", "--cluster", "1x2xT4", "--rows", "1000000000000"), "--rows 1000000000000"),
    "rows, negative": (("plan", "gpt-tiny", "--cluster", "1x2xT4", "--rows", "-1"), "--rows -1: allowed is 1 to"),
    "rows, endless": (("compare", "gpt-tiny", "--cluster", "1x2xT4", "--strategies", "zero", "--rows", HUGE), "--rows"),
    "no processes": (("train", "gpt-tiny", "--processes", "0"), "--processes 0: allowed is 1 to 256"),
    "steps, negative": (("train", "gpt-tiny", "--steps", "-5"), "--steps -5: allowed is 1 to"),
    "rate of learning": (("train", "gpt-tiny", "--lr", "nan"), "--lr nan"),
    "nodes, endless": (("hardware", f"{HUGE}x2xT4"), "allowed: NODESxDEVICESxNAME"),
    "nodes in all": (("hardware", "+".join(["16384x8xT4"] * 9)), "at most 1,000,000 devices"),
    "processes as a cluster": (("hardware", "local:1000000000"), "1000000000 local processes; allowed"),
    "a cluster of jobs": (
        ("fleet", "simulate", "--trace", f"{CASES}/huge_batch.csv", "--cluster", "9x1000000000"),
        "has 9 x 1000000000 devices at '9x1000000000'; allowed: at least 1 x 1 and at most 1,000,000",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIONS)
def test_options(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, said = OPTIONS[name]
    refused(arguments, (said,), capsys)
