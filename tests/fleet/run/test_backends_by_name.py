"""Backends by name, what can run on one, and `trainyard fleet run`."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from private_modes import usual_umask, wrong_modes

from trainyard.cli import main as cli
from trainyard.fleet.catalog import CATALOG
from trainyard.fleet.errors import FleetError
from trainyard.fleet.policies.queues import fifo
from trainyard.fleet.run import backends
from trainyard.fleet.run.backend import JobLimits
from trainyard.fleet.run.backends import check_runnable, make_backend
from trainyard.fleet.run.local import LocalBackend
from trainyard.fleet.scheduler import scheduler_of
from trainyard.fleet.traits import traits_of
from trainyard.fleet.workload.job import Job, declared_job
from trainyard.fleet.workload.training import Training
from trainyard.fleet.workload.training_job import training_job
from trainyard.hardware.cluster import Cluster
from trainyard.hardware.parse import parse_cluster

CLUSTER = parse_cluster("2x2xlocal")


def test_a_backend_has_a_folder(tmp_path: Path) -> None:
    backend = make_backend("local", CLUSTER, tmp_path / "a" / "b")
    assert isinstance(backend, LocalBackend)
    assert backend.folder.is_dir()


def test_an_unknown_backend_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(FleetError, match="no backend 'lokal'; there are local, slurm, ray"):
        make_backend("lokal", CLUSTER, tmp_path)


def test_what_is_not_installed_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "BACKENDS", {"ray": "trainyard.is_not_here:RayBackend"})
    with pytest.raises(
        FleetError, match=r"backend 'ray' needs 'trainyard.is_not_here', which is not installed: pip install"
    ):
        make_backend("ray", CLUSTER, tmp_path)


def named(name: str = "a", num_devices: int = 1, strategies: str = "data_parallel") -> Job:
    return training_job(name, 0.0, num_devices, Training("gpt-tiny", 8, 5, strategies))


@pytest.mark.parametrize(
    ("jobs", "said"),
    [
        ([named("a/b")], "a folder of its name: 'a/b'"),
        ([named("..")], "a folder of its name"),
        ([named("a\n")], "a folder of its name"),
        ([named("a" * 101)], "at most 100 letters"),
        ([named(), named()], "there are two jobs 'a'"),
        ([declared_job("a", 0.0, 1, 5.0)], "'a' has a length and nothing to run"),
        ([named(num_devices=8)], "asks for 8 devices of one type; cluster '2x2xlocal' has 4"),
        ([replace(named(num_devices=8), min_devices=1)], "asks for 8 devices of one type"),
        ([named(strategies="gpipe(stages=64)")], "job 'a': no plan for gpt-tiny by gpipe"),
    ],
)
def test_what_cannot_run_is_said_before_anything_runs(jobs: list[Job], said: str) -> None:
    with pytest.raises(FleetError, match=said.replace("(", r"\(")):
        check_runnable(jobs, CLUSTER, fifo())


def test_checkpoints_that_are_too_large_are_refused() -> None:
    """No model is made for it: this one would take 2 TB."""
    large = training_job("a", 0.0, 1, Training("gpt3-175b", 8, 5))
    with pytest.raises(
        FleetError, match=r"job 'a': a checkpoint of this model takes 2,095 GB, and 3 of them"
    ):
        check_runnable([large], CLUSTER, fifo(), JobLimits(max_checkpoint_bytes=1e11))


def test_what_can_run() -> None:
    check_runnable([named("job-1.a_B"), named("2", 4)], CLUSTER, fifo())


def test_policies_come_with_their_papers_rounds_and_placement() -> None:
    assert scheduler_of("srtf").rounds is None
    pollux = scheduler_of("pollux")
    assert pollux.rounds is not None
    assert pollux.rounds.round_s == 60.0
    own = scheduler_of("edf", "anywhere", 5.0)
    assert own.rounds is not None
    assert (own.place, own.rounds.round_s) == ("anywhere", 5.0)
    gavel = scheduler_of("gavel_max_min", round_s=30.0)
    assert gavel.rounds is not None
    assert gavel.rounds.round_s == 30.0


@pytest.mark.parametrize(
    ("text", "round_s"),
    [
        ("gandiva(quantum_s=20)", 20.0),
        ("pollux(interval_s=15)", 15.0),
        ("optimus(interval_s=120)", 120.0),
        ("sia(interval_s=30)", 30.0),
        ("synergy(round_s=40)", 40.0),
        ("elasticflow(slot_s=10)", 10.0),
        ("gavel_max_min", 360.0),
    ],
)
def test_options_of_policies_decide_their_rounds(text: str, round_s: float) -> None:
    rounds = scheduler_of(text).rounds
    assert rounds is not None
    assert rounds.round_s == round_s
    asked = scheduler_of(text, round_s=round_s / 2).rounds
    assert asked is not None
    assert asked.round_s == round_s / 2


def test_a_shorter_slice_lets_more_jobs_begin_in_the_same_time() -> None:
    """On one device, the second of two jobs has its first turn when the first slice ends."""
    jobs = [declared_job(name, 0.0, 1, 100.0) for name in "ab"]
    run = scheduler_of("gandiva(quantum_s=20, pack=False)").simulate(jobs, Cluster.uniform(1, 1))
    assert sorted(run.first_start_s.tolist()) == [0.0, 20.0]


@pytest.mark.parametrize("round_s", [7.0, 120.0])
def test_rounds_that_do_not_begin_with_every_slot_are_refused(round_s: float) -> None:
    with pytest.raises(
        FleetError, match=rf"slots of 60 s.* rounds of {round_s:g} s; give elasticflow\(slot_s="
    ):
        scheduler_of("elasticflow", round_s=round_s)


def test_a_placement_for_a_policy_that_places_jobs_itself_is_refused() -> None:
    with pytest.raises(
        FleetError, match=r"pollux\(fairness=1\) chooses the devices of its jobs itself; .*'spread'"
    ):
        scheduler_of("pollux(fairness=1)", "spread")
    placing = {"antman", "elasticflow", "gandiva", "hived", "optimus", "pollux", "sia", "synergy"}
    assert {entry.name for entry in CATALOG if traits_of(entry.factory()).places} == placing


def test_policies_say_whether_jobs_share_devices() -> None:
    named = ("antman", "gandiva", "gandiva(pack=False)", "srtf", "gavel_max_min")
    assert [scheduler_of(text).shares for text in named] == [True, True, False, False, False]
    assert {entry.name for entry in CATALOG if entry.shares} == {"antman", "gandiva"}


@pytest.mark.slow
def test_a_file_of_trainings_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, page = tmp_path / "jobs.csv", tmp_path / "page.html"
    trace.write_text(
        "name,arrival_s,num_devices,steps,model,batch_size\nbig,0,2,60,gpt-tiny,4\nsmall,1,1,10,gpt-tiny,4\n"
    )
    to = (
        "--trace",
        str(trace),
        "--cluster",
        "1x2xlocal",
        "--folder",
        str(tmp_path / "jobs"),
        "--policy",
        "fifo",
    )
    with usual_umask():
        assert cli.main(("fleet", "run", *to, "--start", "5s", "--html", str(page), "--json")) == 0
    assert not wrong_modes(tmp_path / "jobs")
    assert page.stat().st_mode & 0o777 == 0o644
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert [job["job"] for job in found["jobs"]] == ["big", "small", "mean"]
    assert all(job["measured_jct_s"] > job["measured_first_wait_s"] >= 0 for job in found["jobs"])
    assert found["jobs"][0]["predicted_jct_s"] > 5
    assert found["measured"]["num_jobs"] == found["predicted"]["num_jobs"] == 2
    for line in ("big runs on devices 0, 1", "big ends", "small ends", "page written to"):
        assert line in err
    assert "fifo, measured" in page.read_text()


def test_a_process_of_a_job_that_takes_too_much_memory_fails_and_nothing_else_does() -> None:
    code = (
        "from trainyard.fleet.run.ranks import Ranks\n"
        "Ranks(0, 1, 1, 'meeting', 'local:1', max_rank_bytes=3e8).limit_memory()\n"
        "print(len(bytearray(10**7)))\n"
        "bytearray(10**9)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "10000000\n"
    assert done.stderr.splitlines()[-1] == "MemoryError"


def test_processes_of_this_machine_divide_its_memory(tmp_path: Path) -> None:
    total = psutil.virtual_memory().total
    two, many = (
        LocalBackend(parse_cluster(text), tmp_path)._max_rank_bytes for text in ("1x2xlocal", "999x2xlocal")
    )
    assert two == pytest.approx(0.45 * total)
    assert many == 2**30
