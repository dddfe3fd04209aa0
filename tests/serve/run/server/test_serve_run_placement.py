"""`trainyard serve run --placement`: which engines a saved placement makes, and what is refused at once."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
import torch
from tests.serve.run.server.served_api import COMPLETION
from tests.serve.run.server.test_serve_run_command import serving, stopped

from trainyard.cli.main import main
from trainyard.cli.serve.engine_options import LocalEngineOptions
from trainyard.cli.serve.replica_engines import (
    local_engines,
    placement_of,
    simulated_engines,
    simulation_notes,
)
from trainyard.hardware.parse import parse_cluster
from trainyard.serve.deploy import deploy
from trainyard.serve.placement import Group, Placement, Replica
from trainyard.serve.placement_document import placement_text
from trainyard.serve.requests.request import Request
from trainyard.serve.run.engine_process import EngineSpec
from trainyard.serve.run.sampling import SamplingParams
from trainyard.serve.run.simulated_engine import SimulatedEngineSpec

_OPTIONS = LocalEngineOptions(cache_blocks=50)
_TWO = Placement((Group((0,), (Replica("tiny"),)), Group((1, 2), (Replica("tiny", 1, 2),))))
_STAGES = Placement((Group((0, 1), (Replica("tiny", 2),)),))


def _saved(path: Path, placement: Placement) -> str:
    (path / "placement.json").write_text(placement_text(placement))
    return str(path / "placement.json")


def _planned(cluster: str, **split: Any) -> Placement:
    """What a simulation of the small Llama has."""
    return deploy("llama-tiny", parse_cluster(cluster), **split).placement()


def _with(change: Any, placement: Placement) -> Placement:
    """The same with changed replicas."""
    groups = (replace(each, replicas=tuple(map(change, each.replicas))) for each in placement.groups)
    return Placement(tuple(groups))


@pytest.mark.parametrize(
    ("placement", "options", "says"),
    [
        (_TWO, ["--tp", "2"], "leave --tp and --replicas out"),
        (_TWO, ["--replicas", "2"], "leave --tp and --replicas out"),
        (_STAGES, [], "tiny has 2 pipeline stages, and --engine torch computes a model in one"),
        (_TWO, ["--lora-root", "."], "adapters are for --engine torch without --tp"),
        (_TWO, ["--engine", "vllm"], "leave --tp, --replicas and --placement out"),
        (Placement((Group((0,), (Replica("other"),)),)), [], "places other; given are tiny"),
        (Placement((Group((0,), (Replica("tiny"), Replica("other"))),)), [], "places other, tiny; given are"),
    ],
)
def test_what_cannot_be_is_refused(folder, tmp_path, capsys, placement, options, says):
    found = main(["serve", "run", str(folder), "--placement", _saved(tmp_path, placement), *options])
    assert found == 2
    assert says in capsys.readouterr().err


def test_what_is_no_placement_is_refused(folder, tmp_path, capsys):
    (tmp_path / "bad.json").write_text(
        '{"groups": [{"devices": [0], "replicas": [{"model": "tiny", "tp": 2}]}]}'
    )
    assert main(["serve", "run", str(folder), "--placement", str(tmp_path / "bad.json")]) == 2
    assert "no such field; there are model, pipeline_stages" in capsys.readouterr().err


def test_processes_of_a_placement_share_the_machine(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(10)))
    placement = placement_of(Path(_saved(tmp_path, _TWO)), {"tiny": str(folder)})
    found = local_engines(_OPTIONS, {"tiny": str(folder)}, (), "vllm", placement, tmp_path, {})
    one, two = found["tiny"]
    assert isinstance(one, EngineSpec)
    assert isinstance(two, EngineSpec)
    assert (one.shards, two.shards and two.shards.num_ranks) == (None, 2)
    assert (one.num_threads, two.num_threads) == (3, 3)


def test_devices_are_those_of_cuda(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    placement = Placement(tuple(Group((device,), (Replica("tiny"),)) for device in (3, 1)))
    options = replace(_OPTIONS, device="cuda")
    found = local_engines(options, {"tiny": str(folder)}, (), "vllm", placement, tmp_path, {})
    assert [each.device for each in found["tiny"] if isinstance(each, EngineSpec)] == ["cuda:3", "cuda:1"]


def test_models_are_named_as_in_the_file_or_by_their_folders(tmp_path):
    planned = _planned("1x2xA100-80G", tensor_parallel=2)
    path = Path(_saved(tmp_path, planned))
    assert placement_of(path, {"llama-tiny": "elsewhere"}) == planned
    assert placement_of(path, {"mine": "llama-tiny"}).groups[0].models == ("mine",)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda each: replace(each, model="own"), "its plan is for 'llama-tiny'"),
        (
            lambda each: replace(each, pipeline_stages=2, tensor_parallel=1),
            "allowed is what the replica has, 2 stages",
        ),
    ],
)
def test_plans_of_something_else_are_refused(tmp_path, capsys, change, says):
    path = _saved(tmp_path, _with(change, _planned("1x2xA100-80G", tensor_parallel=2)))
    name = "own" if "is for" in says else "llama-tiny"
    assert main(["serve", "run", f"{name}=somewhere", "--placement", path]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("cluster", "change", "says"),
    [
        ("1x2xA100-80G", lambda each: each, "the placement has device 3; 1x2xA100-80G has devices 0 to 1"),
        ("4x1xA100-80G", lambda each: each, ""),
        ("2x2xA100-80G", lambda each: each, ""),
        (
            "1x4xA100-80G",
            lambda each: replace(each, plan=replace(each.plan, placements={})),
            "lays its weights on shards in another way",
        ),
    ],
)
def test_a_simulated_engine_is_what_was_planned(tmp_path, capsys, monkeypatch, cluster, change, says):
    served: list[Any] = []
    monkeypatch.setattr(
        "trainyard.serve.run.server.server.serve", lambda engines, *more: served.append(engines) or True
    )
    path = _saved(tmp_path, _with(change, _planned("1x4xA100-80G", tensor_parallel=2)))
    command = [
        "serve",
        "run",
        "llama-tiny",
        "--placement",
        path,
        "--engine",
        "simulated",
        "--cluster",
        cluster,
    ]
    found = main(command)
    said = capsys.readouterr().err
    if says:
        assert found == 2
        assert says in said
    else:
        assert found == 0
        assert [each.tensor_parallel for each in served[0]["llama-tiny"]] == [2, 2]


def test_stages_are_simulated_one_batch_after_the_other(tmp_path):
    placement = _planned("1x2xA100-80G", pipeline_stages=2)
    models = {"llama-tiny": "llama-tiny"}
    (spec,) = simulated_engines(_OPTIONS, models, "vllm", "1x2xA100-80G", placement, tmp_path, {})[
        "llama-tiny"
    ]
    assert isinstance(spec, SimulatedEngineSpec)
    assert spec.pipeline_stages == 2
    engine = spec.make_engine()
    engine.add(Request("r", 0.0, 3, 5, prompt_ids=(1, 2, 3)), SamplingParams())
    num = 0
    while engine.has_work:
        num += len(engine.step())
    assert num == 5
    assert ["serve simulate" in note for note in simulation_notes(placement)] == [True]
    shared = Placement((Group((0,), (Replica("a"), Replica("b"))),))
    assert simulation_notes(shared) == [
        "a, b have the same devices, and each is simulated as if it had them alone"
    ]
    starts = _with(lambda each: replace(each, plan=_moved(each.plan)), placement)
    assert starts != placement
    with pytest.raises(ValueError, match="has stages that begin at lm_head"):
        simulated_engines(_OPTIONS, models, "vllm", "1x2xA100-80G", starts, tmp_path, {})


def _moved(plan: Any) -> Any:
    """A plan whose last stage has the output only."""
    first, last = plan.stages
    return replace(plan, stages=(first, replace(last, start="lm_head")))


@pytest.mark.slow
def test_what_was_planned_is_served(tmp_path):
    path = _saved(tmp_path, _planned("1x4xA100-80G", tensor_parallel=2))
    options = ("--engine", "simulated", "--cluster", "1x4xA100-80G", "--placement", path)
    with serving("mine=llama-tiny", *options) as (server, ready):
        body = COMPLETION | {"model": "mine"}
        found = [httpx2.post(f"{ready['address']}/v1/completions", json=body, timeout=600) for _ in range(2)]
        metrics = httpx2.get(f"{ready['address']}/metrics").text
        out, _ = stopped(server)
    assert [each.status_code for each in found] == [200, 200]
    assert found[0].json()["choices"] == found[1].json()["choices"]
    assert [
        f'vllm:num_requests_running{{engine="{number}",model_name="mine"}} 0.0' in metrics
        for number in (0, 1)
    ]
    assert json.loads(out) == {"drained": True}
