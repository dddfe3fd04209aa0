"""The page of a simulated workload: what it says, and that a browser shows it without errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from web_browser import errors_shown, rendered

from trainyard.cli.main import main

_JOBS = """name,arrival_s,num_devices,length_s,virtual_cluster,deadline_s
wide,0,4,100,research,150
<b>,10,1,40,product,60
late,20,1,40,product,50
none,30,1,10,,
"""


def test_what_is_said_of_virtual_clusters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "jobs.csv").write_text(_JOBS)
    page = tmp_path / "league.html"
    to = (
        "--trace",
        str(tmp_path / "jobs.csv"),
        "--cluster",
        "1x4",
        "--policy",
        "fifo,srtf",
        "--html",
        str(page),
    )
    assert main(("fleet", "simulate", *to, "--json")) == 0
    first, second = json.loads(capsys.readouterr().out)["runs"]
    assert (first["policy"], second["policy"]) == ("srtf", "fifo")
    product = second["virtual_clusters"]["product"]
    assert second["virtual_clusters"].keys() == {"product", "research"}
    # Both wait for the wide one until 100 s, and end at 140 s: by when they were due, from their arrival, was long past.
    assert (product["num_jobs"], product["mean_completion_s"], product["num_missed_deadlines"]) == (
        2,
        125.0,
        2,
    )
    assert (product["device_s"], product["mean_queueing_s"]) == (80.0, 85.0)
    assert product["worst_unfairness"] > 1.0
    assert second["num_missed_deadlines"] == 2
    document = rendered(page.read_text(), tmp_path)
    assert errors_shown(document) == ""
    for said in ("By virtual cluster", "research", "Completion times", "Devices in use", "League table"):
        assert said in document
    assert "job &lt;b&gt;" in document or "job <b>" not in document
