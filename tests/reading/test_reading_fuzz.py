"""Damaged files of every kind are read, or refused with the error of their kind: no other error, no long work."""

from __future__ import annotations

import json
import random
import resource
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from damage import damaged

from trainyard.fleet.errors import FleetError
from trainyard.fleet.policies.hived.config import read_hived
from trainyard.fleet.workload.own import read_form
from trainyard.fleet.workload.read import read_workload
from trainyard.fleet.workload.readers.gavel import read_throughputs
from trainyard.fleet.workload.readers.synergy import read_sensitivities
from trainyard.hardware import Cluster, HardwareError, MachineProfile, parse_cluster
from trainyard.hardware.parse import cluster_from_yaml
from trainyard.job.plan import Mesh, Plan, PlanError, Stage, State, load_plan, parse_plan
from trainyard.job.schedules import make_schedule
from trainyard.program.placement import Shard

MESH = Mesh.of(data=2, tensor=1)
_MOST_CPU_S = 10.0
_MOST_BYTES = 500 * 2**20


def plan(schedule: str = "gpipe", place: Cluster | None = None) -> str:
    made = Plan(
        "gpt-tiny", "0123456789abcdef", "local:2", 8, make_schedule(schedule, 2, 4),
        stages=(Stage("", MESH, ("data",)), Stage("block.1", MESH, ("data",))),
        placements={"batch.tokens": {"data": Shard(0)}}, tensors={"a": "recompute", "b": "recompute"},
        state=State(("data",), ("data",)),
        made_by=("gpipe",), reasons=("because",), place=place,
    )  # fmt: skip
    return made.to_text()


def use_plan(path: Path) -> None:
    made = load_plan(path)
    made.explain()
    assert parse_plan(made.to_text()) == made


def use_cluster(path: Path) -> None:
    cluster = parse_cluster(path)
    cluster.describe()
    assert cluster_from_yaml(cluster.to_yaml()).fingerprint() == cluster.fingerprint()


def use_jobs(format: str) -> Callable[[Path], object]:
    def use(path: Path) -> object:
        with suppress(FleetError):
            for _ in (workload := read_workload(path, format)):
                pass
            assert workload.left_out.num_rows == workload.left_out.num_used + workload.left_out.num_left_out
        return list(read_workload(path, format, strict=True))

    return use


def body(path: Path) -> str:
    """What came over a wire: text, though not all of it can be written."""
    return path.read_bytes().decode("utf-8", "surrogateescape")


PROFILE = {
    "version": 2, "cpu": "x", "num_cores": 2, "memory_bytes": 2**33, "torch_version": "2", "op_s": 1e-6,
    "matmul": [{"dtype": "float32", "num_threads": 1, "flops": 1e9, "seconds": 0.01}],
    "memory": [{"num_threads": 1, "num_bytes": 1e9, "seconds": 0.1}],
    "collectives": [{"kind": "send", "num_processes": 2, "num_bytes": 1e3, "seconds": 1e-5}],
}  # fmt: skip
TRAINING = {
    "name": "a",
    "num_devices": 2,
    "model": "gpt-tiny",
    "batch_size": 8,
    "steps": 10,
    "max_devices": 4,
}
HIVED = {
    "physicalCluster": {
        "cellTypes": {
            "NODE": {"childCellType": "K", "childCellNumber": 4, "isNodeLevel": True},
            "POOL": {"childCellType": "NODE", "childCellNumber": 2},
        },
        "physicalCells": [
            {"cellType": "POOL", "cellChildren": [{"cellAddress": "n1"}, {"cellAddress": "n2"}]}
        ],
    },
    "virtualClusters": {"a": {"virtualCells": [{"cellType": "POOL.NODE", "cellNumber": 1}]}, "b": {}},
}
GAVEL = {"v100": {"('LM', 1)": {"null": 5.0, "('A3C', 1)": [2.0, 3.0]}, "('A3C', 1)": {"null": 4.0}}}
SYNERGY = {
    "lstm_1": {"name": "lstm", "iter_time": 1, "placement_penalty": 0.5, "batch": 20, "tput": [[1] * 5] * 9}
}
PHILLY = [
    {
        "status": "Pass", "vc": "a", "jobid": f"j{number}", "submitted_time": "2017-10-09 07:01:55", "user": "u",
        "attempts": [
            {
                "start_time": "2017-10-09 07:02:55", "end_time": "2017-10-09 08:01:55",
                "detail": [{"ip": "m", "gpus": ["gpu0"]}],
            }
        ],
    }
    for number in range(3)
]  # fmt: skip
OWN = "name,arrival_s,num_devices,length_s,user,gang,weight\na,0,2,10,u,1 1,1.5\nb,5,1,20,,,\n"
TRAININGS = "name,arrival_s,num_devices,steps,model,batch_size\na,0,2,10,gpt-tiny,8\nb,5,1,20,gpt-tiny,4\n"
SACCT = "JobID|User|Submit|ElapsedRaw|AllocTRES\n7|u|2024-05-01T12:00:00|60|cpu=16,gres/gpu=2,mem=64G\n"
SWF = "; x\n1 0 1 600 8 -1 -1 8 900 -1 1 3 1 -1 1 -1 -1 -1\n"
TIRESIAS = "job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n0,1,0,9,vgg,10,0\n"
KINDS: dict[str, tuple[str, type[ValueError], Callable[[Path], object]]] = {
    "plan.yaml": (plan(), PlanError, use_plan),
    "actions.yaml": (plan().replace("name: gpipe", "name: zero_bubble_h1"), PlanError, use_plan),
    "placed.yaml": (plan(place=parse_cluster("1x2xT4")), PlanError, use_plan),
    "cluster.yaml": (parse_cluster("2x2xT4+1x4xV100-32G").to_yaml(), HardwareError, use_cluster),
    "short.yaml": ("cluster: 4x8xV100-32G@100Gb\n", HardwareError, use_cluster),
    "profile.json": (
        json.dumps(PROFILE),
        HardwareError,
        lambda path: MachineProfile.from_json(body(path)),
    ),
    "own.csv": (OWN, FleetError, use_jobs("trainyard")),
    "trainings.csv": (TRAININGS, FleetError, use_jobs("trainyard")),
    "own.yaml": (f"jobs:\n- {json.dumps(TRAINING | {'arrival_s': 1})}\n", FleetError, use_jobs("trainyard")),
    "form": (json.dumps(TRAINING), FleetError, lambda path: read_form(body(path), Path("the job"))),
    "sacct.txt": (SACCT, FleetError, use_jobs("slurm")),
    "archive.swf": (SWF, FleetError, use_jobs("swf")),
    "tiresias.csv": (TIRESIAS, FleetError, use_jobs("tiresias")),
    "philly.json": (json.dumps(PHILLY, indent=1), FleetError, use_jobs("philly")),
    "gavel.json": (json.dumps(GAVEL, indent=1), FleetError, read_throughputs.__wrapped__),
    "synergy.json": (json.dumps(SYNERGY, indent=1), FleetError, read_sensitivities),
    "hived.yaml": (yaml.safe_dump(HIVED), FleetError, read_hived),
}
_ROUNDS = 150


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_damaged_files(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, kind, read = KINDS[name]
    path = tmp_path / name
    monkeypatch.chdir(tmp_path)
    path.write_text(text)
    (tmp_path / "self.yaml").symlink_to(path)
    read(path)
    num_refused, most_bytes = 0, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 + _MOST_BYTES
    for seed in range(_ROUNDS):
        data = damaged(text.encode(), random.Random(f"{name} {seed}"))
        path.write_bytes(data)
        begin_s, said = time.process_time(), ""
        try:
            read(path)
        except kind as error:
            num_refused += 1
            said = str(error)
        except Exception as error:
            raise AssertionError(f"damage {seed} of {name}: {error!r}\n{data[:2000]!r}") from error
        assert len(said) < 3000, (seed, said[:300])
        assert time.process_time() - begin_s < _MOST_CPU_S, (seed, data[:2000])
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 < most_bytes, (seed, data[:2000])
    assert num_refused > _ROUNDS / 4
