"""What ElasticFlow's simulator prints in its evaluation, beside ours.

Gu et al., "ElasticFlow: An Elastic Serverless Training Platform for Distributed Deep Learning", ASPLOS 2023;
pkusys/ElasticFlow at 04a0109, ``scheduler.py``, on the jobs of its testbed; shares of them that end in time stand in its
``plot_fig8a.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from trainyard.fleet.records import FleetRun
from trainyard.fleet.replicas.slots import Slots
from trainyard.fleet.replicas.tiresias import tiresias_program
from trainyard.fleet.simulate_fleet import simulate_fleet
from trainyard.fleet.workload.job import Job
from trainyard.hardware.cluster import Cluster
from trainyard.published import Files, PaperTable, Row

TRACE = "traces_for_ElasticFlow/elasticVpollux_e.csv"
SPEEDS = "scheduler/throughputs_T4"
TESTBED = Cluster.uniform(16, 4, "T4")


def num_met(run: FleetRun) -> int:
    """Jobs that end by their deadline."""
    return int((run.finish_s <= run.deadline_s).sum())


def in_slots(jobs: Iterable[Job]) -> FleetRun:
    """Jobs under the program's ``dlas-gpu``: Tiresias' queues as in the program it was taken from, but in slots.

    Of its rules two are left out: of jobs that go down at the same moment larger ones come first, and a job is looked at
    after a whole second more. Neither changes which deadlines of the testbed's jobs are met.
    """
    policy = tiresias_program()
    return simulate_fleet(jobs, TESTBED, policy, place="anywhere", rounds=Slots())


def deadlines_table(policy: str, theirs: int, run: Callable[[Path], FleetRun], *files: str) -> PaperTable:
    """How many deadlines of the testbed's jobs are met.

    Parameters
    ----------
    policy : the program's name for it.
    run : simulates them, from the folder of the program.
    files : that it reads beside the trace.
    """

    def rows(folder: Path) -> Iterator[Row]:
        yield Row("deadlines met of 195", theirs, num_met(run(folder)))

    fetched = Files(
        (TRACE, *files), "git clone https://github.com/pkusys/ElasticFlow", "ElasticFlow/ElasticFlow"
    )
    return PaperTable(
        f"The authors' simulator of ElasticFlow, ASPLOS 2023, its 195 jobs on 16 nodes of 4 T4, policy {policy}",
        "jobs",
        "simulated by the rules of the program, the same jobs and nodes",
        rows,
        tolerance=0.0,
        files=fetched,
    )
