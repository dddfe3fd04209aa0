"""Workloads of Pollux and Sia with the measurements of their applications, also from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from shared_data import DATA, needs_data

from trainyard.cli import main as cli
from trainyard.fleet.catalog import parse_policy
from trainyard.fleet.errors import FleetError
from trainyard.fleet.mechanism.costs import Costs
from trainyard.fleet.periods import Rounds
from trainyard.fleet.policies.pollux.policy import Pollux
from trainyard.fleet.simulate_fleet import simulate_fleet
from trainyard.fleet.workload.application import SelfTuned
from trainyard.fleet.workload.job import Grant, spot_of
from trainyard.fleet.workload.read import read_workload
from trainyard.fleet.workload.readers.adaptdl import read_application
from trainyard.hardware.cluster import Cluster

TRACES = DATA / "cluster"
POLICY = "pollux(num_generations=5, population=10)"


def step(num_nodes: int, num_replicas: int, local: int) -> str:
    sync_s = 0.0 if num_replicas == 1 else 0.02 * num_nodes
    return f"{local},{0.1 + 0.01 * local + sync_s},{sync_s}"


def write_application(folder: Path, smallest: int) -> None:
    """Two epochs of ten steps, measured on up to four nodes, at 4 to 16 samples on each device."""
    folder.mkdir(parents=True)
    locals_ = (4, 8, 16)
    placed = [
        f"{p},{step(len(p), sum(map(int, p)), local)}" for p in ("1", "2", "4", "11") for local in locals_
    ]
    (folder / "placements.csv").write_text(
        "\n".join(["placement,local_bsz,step_time,sync_time", *placed, ""])
    )
    spread = [f"{n},{r},{step(n, r, local)}" for n, r in ((2, 8), (4, 4), (4, 16)) for local in locals_]
    head = "num_nodes,num_replicas,local_bsz,step_time,sync_time"
    (folder / "scalability.csv").write_text("\n".join([head, *spread, ""]))
    for size in (smallest, 4 * smallest):
        epochs = "10,10,0.4,1.0,8.0\n20,20,0.6,1.0,16.0\n"
        (folder / f"validation-{size}.csv").write_text(
            "progress,iteration,metric,grad_sqr,grad_var\n" + epochs
        )


@pytest.fixture
def profiles(tmp_path: Path) -> Path:
    for name, smallest in (("cifar10", 8), ("yolov3", 8), ("ncf", 16384)):
        write_application(tmp_path / "traces" / name, smallest)
    return tmp_path / "traces"


@pytest.fixture
def workload(tmp_path: Path) -> Path:
    names = ["ncf", *(("cifar10", "yolov3") * 6)]
    rows = [f"{name}-{i},{10 * i},{name},4,32" for i, name in enumerate(names)]
    path = tmp_path / "workload.csv"
    path.write_text("\n".join(["name,time,application,num_replicas,batch_size", *rows, ""]))
    return path


def test_jobs_tune_themselves(workload: Path, profiles: Path) -> None:
    ncf, cifar10, yolov3 = list(read_workload(workload, profiles=profiles))[:3]
    for job in (ncf, cifar10, yolov3):
        assert isinstance(job.profile, SelfTuned)
        assert (job.work, job.num_devices, job.least_devices) == (20, 1, 1)
    assert (cifar10.name, cifar10.arrival_s, cifar10.batch_size, cifar10.max_devices) == (
        "cifar10-1",
        10,
        0,
        8,
    )
    # The rules of the authors' simulator.
    assert (ncf.batch_size, ncf.max_devices) == (32768, 1)
    limits = [job.profile.application.limits.largest_local for job in (cifar10, yolov3)]  # type: ignore[attr-defined]
    assert limits == [16, 8]


def simulated(*arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = cli.main(("fleet", "simulate", "--cluster", "2x4xT4", "--limit", "10", "--json", *arguments))
    said = capsys.readouterr()
    return code, said.out, said.err


def test_from_the_command_line(workload: Path, profiles: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ("--trace", str(workload), "--profiles", str(profiles), "--policy", POLICY)
    code, out, err = simulated(*given, "--restart", "3s", "--start", "2s", capsys=capsys)
    assert code == 0, err
    (found,) = json.loads(out)["runs"]
    jobs = list(read_workload(workload, profiles=profiles))[:10]
    run = simulate_fleet(
        jobs,
        Cluster.uniform(2, 4, "T4"),
        Pollux(num_generations=5, population=10),
        rounds=Rounds(60.0),
        costs=Costs(restart_s=3.0, start_s=2.0),
    )
    assert len(run.names) == found["num_jobs"] == 10
    assert found["mean_completion_s"] == run.mean_completion_s > 0


def test_without_measurements(workload: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = simulated("--trace", str(workload), capsys=capsys)
    assert (code, out) == (2, "")
    assert json.loads(err)["error"].startswith("a pollux trace gives work, not time; give `--profiles`")
    assert "a folder with a folder per application, which has placements.csv, scalability.csv and" in err


@pytest.fixture
def by_type(profiles: Path) -> Path:
    """All applications are half as fast on a K80 as on a V100."""
    for folder in profiles.iterdir():
        for name in ("placements", "scalability"):
            (folder / f"{name}-V100.csv").write_text((folder / f"{name}.csv").read_text())
            head, *rows = (folder / f"{name}.csv").read_text().splitlines()
            fields = [row.split(",") for row in rows]
            slower = [",".join([*row[:-2], *(str(2 * float(s)) for s in row[-2:])]) for row in fields]
            (folder / f"{name}-K80.csv").write_text("\n".join([head, *slower, ""]))
    return profiles


def test_jobs_tell_types_apart_that_were_measured(workload: Path, by_type: Path) -> None:
    cluster = Cluster.of_pools((("V100", 1, 4), ("K80", 1, 4)))
    jobs = list(read_workload(workload, profiles=by_type, device_types=cluster.device_types))
    assert len(jobs) == 13
    for job in jobs:
        assert isinstance(job.profile, SelfTuned)
        v100, k80 = (
            job.profile.rate(spot_of(kind, (1,)), Grant((0,)), 0.0, None) for kind in ("V100", "K80")
        )
        assert v100.work_per_s == pytest.approx(2 * k80.work_per_s)
        assert {t.device_type for t in job.profile.known.timings} == {"V100", "K80"}
    run = simulate_fleet(jobs[:1], cluster, parse_policy("sia"), rounds=Rounds(60.0), keep_spans=True)
    assert {cluster.type_of_node[cluster.node_of[span.devices[0]]] for span in run.spans} == {0}


def test_a_type_that_was_measured_on_one_node(tmp_path: Path) -> None:
    """All that fits there is in the tables; what does not fit was not measured."""
    write_application(tmp_path / "cifar10", 8)
    for name, head in (("placements", "placement"), ("scalability", "num_nodes,num_replicas")):
        where = ("1", "2") if name == "placements" else ("1,1", "1,2")
        rows = [f"{w},{step(1, int(w[-1]), local)}" for w in where for local in (4, 8)]
        text = "\n".join([f"{head},local_bsz,step_time,sync_time", *rows, ""])
        (tmp_path / "cifar10" / f"{name}-quad.csv").write_text(text)
    app = read_application(tmp_path / "cifar10", device_type="quad")
    assert app.step_s((2,), 6) == pytest.approx((0.16, 0.18))
    with pytest.raises(FleetError, match="up to 2 devices of 1 nodes, not near 2 devices of 2 nodes"):
        app.step_s((1, 1), 4)


def test_nodes_larger_than_those_that_were_measured(profiles: Path) -> None:
    """Eight devices were measured on two nodes, not on one."""
    app = read_application(profiles / "cifar10")
    assert app.step_s((8,), 8) == app.step_s((4, 4), 8) == pytest.approx((0.18, 0.22))


def test_types_that_were_not_measured(workload: Path, by_type: Path) -> None:
    """On a cluster of other types, tables for any type are used; on a mixed one there are no right ones."""
    (job,) = read_workload(workload, profiles=by_type, limit=1, device_types=("T4", "A100"))
    assert isinstance(job.profile, SelfTuned)
    assert (job.profile.application.device_type, job.profile.elsewhere) == ("", ())
    with pytest.raises(
        FleetError, match=r"placements-T4.csv for devices of type 'T4'; it has such for K80, V100"
    ):
        next(read_workload(workload, profiles=by_type, device_types=("T4", "K80")))


@needs_data(TRACES)
def test_sias_cluster_from_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    trace, profiles = (str(TRACES / "sia" / part) for part in ("workloads/philly/workload-1.csv", "traces"))
    cluster = ("--cluster", "6x4xaws+2x8xdgx-ext+3x8xrtx")
    given = ("--trace", trace, "--profiles", profiles, "--policy", "sia", *cluster)
    code, out, err = simulated(*given, capsys=capsys)
    assert code == 0, err
    assert json.loads(out)["num_devices"] == 64


def test_profiles_that_are_none(workload: Path, profiles: Path) -> None:
    def read() -> None:
        next(read_workload(workload, profiles=folder, strict=True))

    folder = profiles / "cifar10"
    with pytest.raises(FleetError, match=r"cifar10 has no <application>/placements.csv; give a folder with"):
        read()
    folder = profiles.parent / "some"
    write_application(folder / "cifar10", 8)
    with pytest.raises(FleetError, match=r"got .ncf., allowed is one that was measured: cifar10"):
        read()
    folder = profiles.parent / "incomplete"
    write_application(folder / "ncf", 8)
    scalability = folder / "ncf" / "scalability.csv"
    head = scalability.read_text().splitlines()[0] + "\n"
    for text, said in ((head, "has no rows"), (head + f"2,2,{step(2, 2, 4)}\n", "has too few step times")):
        scalability.write_text(text)
        (folder / "ncf" / "placements.csv").write_text(
            f"placement,local_bsz,step_time,sync_time\n1,{step(1, 1, 8)}\n"
        )
        with pytest.raises(FleetError, match=said):
            read()
    scalability.unlink()
    with pytest.raises(FleetError, match=r"cannot read .*scalability.csv: No such file"):
        read()


@needs_data(TRACES)
@pytest.mark.parametrize("name", ["pollux/workloads", "sia/workloads/philly"])
def test_public_workloads_from_the_command_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = (
        "--trace",
        str(TRACES / name / "workload-1.csv"),
        "--profiles",
        str(TRACES / "pollux" / "traces"),
    )
    code, out, err = simulated(*given, "--policy", POLICY, capsys=capsys)
    assert code == 0, err
    (found,) = json.loads(out)["runs"]
    assert found["num_jobs"] == 10
    assert found["policy"].startswith("pollux")
