"""How fast jobs run, as the tables of the public formats say."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from shared_data import DATA, needs_data

from trainyard.fleet.errors import FleetError
from trainyard.fleet.workload.job import Grant, Spot
from trainyard.fleet.workload.read import read_workload
from trainyard.fleet.workload.readers.elasticflow import ElasticFlowProfile, read_scalings
from trainyard.fleet.workload.readers.gavel import GavelProfile, read_throughputs
from trainyard.fleet.workload.readers.synergy import SynergyProfile, read_sensitivities

TRACES = DATA / "cluster"

LM, A3C = "LM (batch size 5)", "A3C"
THROUGHPUTS = {
    "v100": {
        f"('{LM}', 1)": {"null": 10.0, f"('{A3C}', 1)": [8.0, 3.0], f"('{LM}', 1)": [5.0, 5.0]},
        f"('{A3C}', 1)": {"null": 4.0, f"('{LM}', 1)": [3.0, 8.0]},
        f"('{LM}', 2)": {"null": 18.0},
    },
    "v100_unconsolidated": {f"('{LM}', 2)": {"null": 12.0}},
}


@pytest.fixture
def gavel(tmp_path: Path) -> Callable[..., GavelProfile]:
    path = tmp_path / "throughputs.json"
    path.write_text(json.dumps(THROUGHPUTS))
    return lambda job_type, **rest: GavelProfile(read_throughputs(path), job_type, **rest)


def on(profile: object, size: int, device_type: str = "v100", nodes: int = 1, **grant: object) -> float:
    granted = Grant(tuple(range(size)), **grant)  # type: ignore[arg-type]
    return profile.work_per_s(Spot(device_type, size, nodes), granted)  # type: ignore[attr-defined, no-any-return]


def test_gavel_alone(gavel: Callable[..., GavelProfile]) -> None:
    assert on(gavel(LM), 1) == 10
    assert on(gavel(LM), 1, share=0.5) == 5
    assert on(gavel(LM), 2) == on(gavel(LM), 2, nodes=2) == 18
    assert on(gavel(LM, spread=True), 2, nodes=2) == 12
    assert on(gavel(LM), 8) == 8 / 2 * 18  # not measured: as fast per device as on 2
    assert on(gavel("CycleGAN"), 1) == 0
    assert on(gavel(LM), 1, "a100") == 0


def test_gavel_beside_a_partner(gavel: Callable[..., GavelProfile]) -> None:
    assert on(gavel(LM), 1, partners=(f"7:{A3C}",)) == 8
    assert on(gavel(A3C), 1, partners=(f"3:{LM}",)) == 3
    assert gavel(LM).throughputs.of_pair("v100", (LM, 1), (A3C, 1)) == (8, 3)
    assert on(gavel(A3C), 1, partners=("9:A3C",)) == 0
    assert on(gavel(LM), 1, partners=("7:A3C", "8:A3C")) == 0


@pytest.mark.parametrize("text", ["[]", '{"v100": {"A3C": {"null": 1}}}', '{"v100": {"(\'A3C\', 1)": {}}}'])
def test_gavel_throughputs_that_are_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "throughputs.json"
    path.write_text(text)
    with pytest.raises(
        FleetError, match=r"throughputs.json: not a table of throughputs .*; allowed is worker type >"
    ):
        read_throughputs(path)


def test_gavel_slo_is_a_multiple_of_the_time_on_the_reference(tmp_path: Path) -> None:
    table = tmp_path / "throughputs.json"
    table.write_text(json.dumps(THROUGHPUTS))
    trace = tmp_path / "slo.trace"
    trace.write_text(
        f"{LM}\tc\td\t--steps\t1\t1800\t2\t5\t1.2\t30\n{LM}\tc\td\t--steps\t1\t1800\t1\t1\t-1.0\t40\n"
    )
    first, second = read_workload(trace, profiles=table)
    assert first.deadline_s == pytest.approx(30 + 1.2 * 1800 / 18)
    assert (first.weight, first.model, first.batch_size) == (5, "LM", 5)
    assert second.deadline_s is None


@pytest.mark.parametrize("weight", ["0", "-1", "nan", "inf"])
def test_gavel_weights_are_above_0(tmp_path: Path, weight: str) -> None:
    table, trace = tmp_path / "throughputs.json", tmp_path / "weighted.trace"
    table.write_text(json.dumps(THROUGHPUTS))
    trace.write_text(f"{LM}\tc\td\t--steps\t1\t1800\t2\t{weight}\t-1\t30\n")
    said = f"{trace}, line 1, field 'priority_weight': got '{weight}', allowed is a finite number above 0"
    with pytest.raises(FleetError, match=re.escape(said)):
        list(read_workload(trace, profiles=table, strict=True))


@needs_data(TRACES)
def test_gavel_tables() -> None:
    throughputs = read_throughputs(TRACES / "gavel/simulation_throughputs.json")
    raw = json.loads((TRACES / "gavel/simulation_throughputs.json").read_text())
    assert {kind: len(table) for kind, table in throughputs.alone.items()} == {
        kind: len(t) for kind, t in raw.items()
    }
    profile = GavelProfile(throughputs, "ResNet-18 (batch size 16)")
    assert on(profile, 1, "k80") == 4.795294551566172
    partner = ("5:ResNet-18 (batch size 32)",)
    assert on(profile, 1, "p100", partners=partner) == 21.484217516845884


@needs_data(TRACES)
def test_gavel_gangs_that_do_not_fit_a_device() -> None:
    throughputs = read_throughputs(TRACES / "gavel/simulation_throughputs.json")
    assert throughputs.runs_on("ResNet-50 (batch size 128)", 4) == ("p100", "v100")
    assert throughputs.runs_on("ResNet-50 (batch size 128)", 1) == ("k80", "p100", "v100")


def test_elasticflow(tmp_path: Path) -> None:
    for device, rates in (("A100", "6,8.5,"), ("T4", "1,0,nan")):
        folder = tmp_path / f"throughputs_{device}"
        folder.mkdir()
        (folder / "bert.csv").write_text(f"global_batch_size,1,2,4\n64,{rates}\n128,4,7,12\n")
    tables = read_scalings(tmp_path)
    assert tables["T4"]["bert"] == {64: {1: 1}, 128: {1: 4, 2: 7, 4: 12}}
    assert read_scalings(tmp_path / "throughputs_A100") == {"A100": tables["A100"]}
    profile = ElasticFlowProfile({kind: models["bert"] for kind, models in tables.items()}, 64)
    assert [on(profile, n, "A100") for n in (1, 2, 3, 4)] == [6, 8.5, 8.5, 8.5]
    assert on(profile, 4, "T4") == 1
    assert on(profile, 4, "K80") == 0
    assert on(profile, 4, "A100", batch_size=128) == 24
    assert on(profile, 4, "A100", batch_size=32) == 0
    with pytest.raises(FleetError, match=r"has no <model>.csv and no throughputs_<DEVICE> folder"):
        read_scalings(tmp_path / "throughputs_A100" / "none")


@needs_data(TRACES)
def test_elasticflow_jobs_ask_for_the_types_they_were_measured_on() -> None:
    trace = TRACES / "elasticflow/traces/resnet_cifar_trace.csv"
    jobs = [*read_workload(trace, None, TRACES / "elasticflow")]
    assert {job.device_types for job in jobs} == {("A100",)}
    assert {job.device_types for job in read_workload(trace)} == {()}


@needs_data(TRACES)
def test_elasticflow_tables() -> None:
    tables = read_scalings(TRACES / "elasticflow")
    assert {kind: len(models) for kind, models in tables.items()} == {"A100": 7, "T4": 6}
    assert tables["A100"]["bert"][128][64] == 9.444560197972908
    assert max(tables["A100"]["deepspeech2"][32]) == 32
    assert max(tables["A100"]["resnet50_cifar10"][64]) == 8


@needs_data(TRACES)
def test_synergy_depends_on_cpus_and_memory() -> None:
    models = read_sensitivities(TRACES / "synergy/model_sensitivity.json")
    alexnet, m5 = SynergyProfile(models["alexnet"], 1), SynergyProfile(models["m5"], 2)
    assert on(alexnet, 1) == on(alexnet, 1, cpus=3.0, memory_bytes=62.5e9) == 1 / 0.6
    assert on(alexnet, 1, cpus=12.0, memory_bytes=125e9) == pytest.approx(2.94 / 0.6)
    assert on(alexnet, 1, cpus=11.0, memory_bytes=125e9) == pytest.approx(2.0 / 0.6)
    assert on(alexnet, 1, cpus=0.5) == pytest.approx(0.5 * on(alexnet, 1, cpus=1.0))
    assert on(alexnet, 1, cpus=3.0, memory_bytes=62.5e9 / 3) == pytest.approx(0.1 / 0.6)
    assert on(m5, 2) == pytest.approx(1 / 0.6)
    assert on(m5, 2, cpus=12.0, memory_bytes=2 * 187.5e9) == pytest.approx(2.5 / 0.6)
    assert on(m5, 1, cpus=6.0, memory_bytes=187.5e9) == pytest.approx(2.5 / 0.6 / 2)
    job = next(
        read_workload(
            TRACES / "synergy/deploy_trace/dynamic/srtf.log", None, TRACES / "synergy/model_sensitivity.json"
        )
    )
    assert (job.model, job.arrival_s) == ("alexnet", 8)
    assert (job.cpus, job.memory_bytes) == (0, 0)  # what it would like to have is no demand


def test_synergy_names_the_models_it_knows(tmp_path: Path) -> None:
    table = {
        "name": "lstm",
        "iter_time": 1,
        "placement_penalty": 0.5,
        "batch": 20,
        "tput": [[1] * 5] * 9,
    }
    sensitivities, trace = tmp_path / "s.json", tmp_path / "trace"
    sensitivities.write_text(json.dumps({"lstm_1": table}))
    trace.write_text("0,lstm,0.0,10,2\n1,vae,0.5,10,1\n")
    jobs = read_workload(trace, profiles=sensitivities, strict=True)
    first = next(jobs)
    assert (on(first.profile, 2), on(first.profile, 2, nodes=2)) == (1.0, 0.5)
    with pytest.raises(FleetError, match="line 2, field 'model': got 'vae', allowed is lstm"):
        next(jobs)
    for wrong in ({"tput": [[1] * 4] * 9}, {"iter_time": 0}, {"placement_penalty": -1}):
        sensitivities.write_text(json.dumps({"lstm_1": table | wrong}))
        with pytest.raises(FleetError, match="not a table of sensitivities"):
            read_sensitivities(sensitivities)
