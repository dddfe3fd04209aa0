"""Readers on the public traces: how many jobs, the first, the last, and totals."""

from __future__ import annotations

from itertools import pairwise

import pytest
from shared_data import DATA, needs_data

from trainyard.fleet.errors import FleetError
from trainyard.fleet.workload.read import read_workload, recognise
from trainyard.fleet.workload.readers.adaptdl import read_step_times
from trainyard.fleet.workload.readers.pollux import read_pollux
from trainyard.fleet.workload.readers.shockwave import ShockwaveProfile

TRACES = DATA / "cluster"
pytestmark = needs_data(TRACES)

GAVEL = "gavel/simulation_throughputs.json"
SHOCKWAVE = "120_0.2_5_100_40_25_0,0.5,0.5_0.6,0.3,0.09,0.01_multigpu_dynamic.trace"


@pytest.mark.parametrize(
    ("path", "profiles", "format", "count", "first", "last", "devices", "work"),
    [
        ("tiresias/60_job.csv", "", "tiresias", 60, ("0", 0, 1, 164), ("59", 1779, 1, 122), 170, 10705),
        (
            "tiresias/cluster01_job.csv", "", "tiresias", 1595,
            ("0", 0, 64, 2429), ("1594", 2916375, 1, 1032), 3728, 20289535,
        ),
        (
            "pollux/traces/philly.csv", "", "pollux-philly", 82247,
            ("31568", 0, 8, 2240194), ("62255", 9408690, 1, 64), 107235, 1080390950,
        ),
        (
            "pollux/workloads/workload-1.csv", "", "pollux", 160,
            ("cifar10-0", 107, 6, 0), ("ncf-159", 27695, 1, 0), 1092, 0,
        ),
        (
            "sia/workloads/newtrace/workload-1.csv", "", "pollux", 960,
            ("deepspeech2-0", 487.661836, 8, 0), ("bert-959", 172603.693348, 8, 0), 9020, 0,
        ),
        (
            "gavel/traces/physical_cluster/max_min_fairness.trace", GAVEL, "gavel", 96,
            ("0:ResNet-18 (batch size 128)", 0, 4, 925982), ("95:LM (batch size 40)", 46317, 1, 297215), 169, 18166806,
        ),
        (
            "gavel/traces/msr_seed0/ee9e8c.trace", GAVEL, "gavel", 2000,
            ("0:Transformer (batch size 128)", 0, 1, 15486530), ("1999:ResNet-50 (batch size 16)", 4508448, 1, 470011),
            8587, 9875481880,
        ),
        (
            f"shockwave/traces/{SHOCKWAVE}", "shockwave/tacc_throughputs.json", "shockwave", 120,
            ("0:LM (batch size 10)", 0, 1, 134583), ("119:ResNet-50 (batch size 32)", 5011, 1, 5279), 164, 24328903,
        ),
        (
            "elasticflow/traces/elasticVpollux_e.csv", "elasticflow", "elasticflow", 195,
            ("0", 3715485, 1, 2011), ("194", 3887530, 1, 23972), 572, 2040184,
        ),
        (
            "elasticflow/traces/resnet_cifar_trace.csv", "elasticflow/throughputs_A100", "elasticflow", 5,
            ("0", 0, 1, 77215), ("3", 309537, 1, 17316), 5, 247805,
        ),
        (
            "alibaba-openb-2023/openb_pod_list_default.csv", "", "alibaba", 6203,
            ("openb-pod-0000", 0, 1, 12537496), ("openb-pod-8151", 12901761, 1, 30), 6571, 191369677,
        ),
        (
            "synergy/deploy_trace/static_100job_6_3_1100.0", "synergy/model_sensitivity.json", "synergy", 100,
            ("0", 0, 1, 3349), ("99", 0.099, 1, 45340), 100, 13241816,
        ),
    ],
)  # fmt: skip
def test_trace(
    path: str,
    profiles: str,
    format: str,
    count: int,
    first: tuple[str, float, int, float],
    last: tuple[str, float, int, float],
    devices: int,
    work: float,
) -> None:
    assert recognise(TRACES / path).name == format
    read = read_pollux if format == "pollux" else read_workload  # whose work is known from its profiles only
    jobs = list(read(TRACES / path, profiles=TRACES / profiles if profiles else None))
    assert len(jobs) == count
    ends = [(job.name, job.arrival_s, job.num_devices, job.work) for job in (jobs[0], jobs[-1])]
    assert ends == [first, last]
    assert sum(job.num_devices for job in jobs) == devices
    assert sum(job.work for job in jobs) == work
    assert len({job.name for job in jobs}) == count
    assert all(a.arrival_s <= b.arrival_s for a, b in pairwise(jobs))


def test_the_ten_clusters_of_elasticflow() -> None:
    jobs = read_workload(TRACES / "elasticflow-traces" / "raw")
    count = device_s = 0.0
    clusters = set()
    for job in jobs:
        count, device_s = count + 1, device_s + job.num_devices * job.work
        clusters.add(job.virtual_cluster)
    assert count == 69351
    assert clusters == {f"cluster{n:02}" for n in range(1, 11)}
    # The authors give 1,632,719.7 hours in their README.
    assert device_s / 3600 == pytest.approx(1632719.7, abs=0.1)


def test_deadlines_of_elasticflow_are_moments() -> None:
    jobs = list(
        read_workload(
            TRACES / "elasticflow-traces/elasticflow/cluster06.csv", profiles=TRACES / "elasticflow"
        )
    )
    assert (len(jobs), jobs[0].deadline_s, jobs[0].work, jobs[0].batch_size) == (2396, 21347, 40285, 64)
    assert (jobs[0].least_devices, jobs[0].num_devices, jobs[0].most_devices) == (1, 4, 64)
    plain = next(read_workload(TRACES / "elasticflow-traces/elasticflow/cluster06.csv"))
    assert (plain.work, plain.deadline_s) == (3890, 21347)


def test_philly_keeps_its_virtual_clusters() -> None:
    clusters: dict[str, int] = {}
    for job in read_workload(TRACES / "pollux/traces/philly.csv"):
        clusters[job.virtual_cluster] = clusters.get(job.virtual_cluster, 0) + 1
    assert len(clusters) == 15
    assert (clusters["6214e9"], clusters["6c71a0"], clusters["795a4c"]) == (41226, 9953, 3)


def test_alibaba_shares_devices() -> None:
    jobs = list(read_workload(TRACES / "alibaba-openb-2023/openb_pod_list_gpuspec33.csv"))
    by_name = {job.name: job for job in jobs}
    assert by_name["openb-pod-0001"].busy == 0.46
    assert by_name["openb-pod-0001"].cpus == 6
    assert by_name["openb-pod-0001"].memory_bytes == 12288 * 2**20
    assert {job.device_types for job in jobs} >= {(), ("T4",), ("V100M16", "V100M32")}
    assert sum(not job.guaranteed for job in jobs) == 2510


def test_shockwave_keeps_modes() -> None:
    jobs = read_workload(
        TRACES / "shockwave/traces" / SHOCKWAVE, profiles=TRACES / "shockwave/tacc_throughputs.json"
    )
    profiles = [job.profile for job in jobs]
    assert all(isinstance(profile, ShockwaveProfile) for profile in profiles)
    assert {p.mode for p in profiles if isinstance(p, ShockwaveProfile)} == {"static", "gns", "accordion"}
    assert sum(p.duration_s for p in profiles if isinstance(p, ShockwaveProfile)) == 496241


def test_what_other_traces_lack_is_said() -> None:
    with pytest.raises(FleetError, match="no column gpu_spec, qos, creation_time"):
        list(read_workload(TRACES / "alibaba-openb-2023/openb_pod_list_multigpu50.csv", "alibaba"))
    with pytest.raises(FleetError, match="name one"):
        read_workload(TRACES / "chronus/trace_job_Philly_SLO.csv")
    trace = TRACES / "elasticflow-traces/elasticflow/cluster06.csv"
    with pytest.raises(
        FleetError,
        match="line 2, field 'model_name': got 'bert', allowed is a model that was measured at batch",
    ):
        list(read_workload(trace, profiles=TRACES / "elasticflow/throughputs_T4", strict=True))


def test_step_times() -> None:
    placed = read_step_times(TRACES / "pollux/traces/cifar10/placements.csv")
    assert (len(placed.step_s), placed.per_node[-1], placed.num_replicas[-1]) == (1183, (4, 4, 4, 4), 16)
    assert (placed.local_batch_size[0], placed.step_s[0]) == (32, 0.0427886962890625)
    spread = read_step_times(TRACES / "pollux/traces/cifar10/scalability.csv")
    assert (spread.per_node[0], spread.num_nodes[0], spread.num_replicas[0]) == ((), 6, 6)
    assert len(read_step_times(TRACES / "sia/traces/gpt_pmp/placements-rtx.csv").step_s) > 0
    with pytest.raises(FleetError, match="no column local_bsz, step_time, sync_time"):
        read_step_times(TRACES / "pollux/traces/cifar10/validation-128.csv")
