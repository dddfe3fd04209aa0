"""Public traces of jobs that can be fetched from where their authors keep them.

Only files whose SHA-256 is known are in the table. The traces of Helios and of ElasticFlow have to be fetched by hand,
and so have the sensitivities of Synergy, which its authors keep in their program.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainyard.reading.download import GITHUB, PublicFile

__all__ = ["TRACES", "Trace"]


@dataclass(frozen=True)
class Trace(PublicFile):
    """A public trace of jobs.

    Attributes
    ----------
    profiles : name, in the same table, of the measured speeds that the trace needs.
    """

    profiles: str = ""


TRACES: dict[str, Trace] = {
    "philly": Trace(
        "Microsoft Philly, 117,325 jobs, in an archive with telemetry (Jeon et al., ATC 2019)",
        "https://media.githubusercontent.com/media/msr-fiddle/philly-traces/master/trace-data.tar.gz",
        "2037ccf63a725a02be718b0e1aeee6142c90b7f62d0d849295120e9f6ba13d2c",
        1055988361,
        "philly",
        inside="cluster_job_log",
    ),
    "philly-small": Trace(
        "82,247 jobs of Philly, as Pollux used them (Qiao et al., OSDI 2021)",
        f"{GITHUB}/petuum/adaptdl/de25dcc90c350b8ade3a710e437a651a8d2efae6/simulator/traces/philly.csv",
        "ebffb3dd1589bdf4e7bcd74496201c5ded1d557d498ee14f560463f37ec353da",
        3444496,
        "pollux-philly",
    ),
    "tiresias-60": Trace(
        "The 60 jobs of Tiresias' simulator (Gu et al., NSDI 2019)",
        f"{GITHUB}/SymbioticLab/Tiresias/b0ef8449aaa1ad1a61b922de3ab65fd87a3dcf2e/simulator/60_job.csv",
        "17575949a6e570960db42bc5576739de9c334ed4c664859841c4f01ede38bd1b",
        1871,
        "tiresias",
    ),
    "synergy-100": Trace(
        "100 jobs of Synergy's testbed (Mohan et al., OSDI 2022)",
        f"{GITHUB}/msr-fiddle/synergy/a5276ca1947c429e03ce19c57a8709a160b536bd/simulator/deploy_trace/"
        "static_100job_6_3_1100.0",
        "eb1ba6821efa27b26ab4bad91080feee8e0416b9c841f0e87925721c4a63f7a1",
        2480,
        "synergy",
    ),
    "alibaba-openb": Trace(
        "8,152 pods of Alibaba that share GPUs (Weng et al., ATC 2023)",
        f"{GITHUB}/alibaba/clusterdata/50a91c7c74abe3b658188dc78ac1dd302970d40c/cluster-trace-gpu-v2023/csv/"
        "openb_pod_list_default.csv",
        "1ee7ed79c27a3b0861cda8ddba86a004c6aba904caafa329a76ae93ca63834a8",
        575468,
        "alibaba",
    ),
    "shockwave-120": Trace(
        "120 jobs of Shockwave with changing batch sizes (Zheng et al., NSDI 2023)",
        f"{GITHUB}/uw-mad-dash/shockwave/e07dd205c52afe9981a4f092051c1d0f844ebf3d/scheduler/traces/reproduce/"
        "120_0.2_5_100_40_25_0,0.5,0.5_0.6,0.3,0.09,0.01_multigpu_dynamic.trace",
        "f5728b8c038c330d21b98bc5930949d21769bd956e2ad457a4eb167dd33f34d6",
        18720,
        "shockwave",
        profiles="shockwave-throughputs",
    ),
    "shockwave-throughputs": Trace(
        "Speeds of the jobs of Shockwave's traces, for --profiles",
        f"{GITHUB}/uw-mad-dash/shockwave/e07dd205c52afe9981a4f092051c1d0f844ebf3d/scheduler/tacc_throughputs.json",
        "6fee2da4f81c8e777e9513987d982fd0a11a155107360e6168b0e8fd593a83ce",
        1239492,
    ),
    "gavel-96": Trace(
        "96 jobs of Gavel's physical cluster (Narayanan et al., OSDI 2020)",
        f"{GITHUB}/stanford-futuredata/gavel/master/scheduler/traces/physical_cluster/max_min_fairness.trace",
        "dc13589c23c7b77d37d3d1014ff499e0c1ffca2959ce35d0e4ce70b71247424b",
        14458,
        "gavel",
        profiles="gavel-throughputs",
    ),
    "gavel-throughputs": Trace(
        "Speeds of the jobs of Gavel's traces on V100, P100 and K80, for --profiles and `fleet compare --workload gavel`",
        f"{GITHUB}/stanford-futuredata/gavel/master/scheduler/simulation_throughputs.json",
        "17111f7295f03265fd9e5118d7eba31e3dd9d6e50a2e215c13ad3d3f91f74381",
        1240176,
    ),
}
"""By name."""
