"""Eight real trainings on four devices under four policies: what was predicted, and what came.

Run `python benchmarks/fleet_real.py [ENGINE [FOLDER]]`; ENGINE is local (the default), slurm or ray, and of the last two
a cluster with two nodes of two devices of type local must be there. FOLDER, of the jobs, must be seen by all nodes.
Every policy begins with measuring each training alone, as `trainyard fleet run --measure` does.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from record import write_record

from trainyard.fleet.records import FleetRun
from trainyard.fleet.run.drive import run_fleet
from trainyard.fleet.run.engines import make_engine
from trainyard.fleet.run.measure import measured_alone
from trainyard.fleet.setting import setting_of
from trainyard.fleet.site import Site
from trainyard.fleet.workload.job import Job
from trainyard.fleet.workload.training import Training, training_job
from trainyard.report.fleet_measured import measured_jobs

_SITE = Site.parse("2x2xlocal")
# Times in them are as much shorter than in the papers as the trainings are.
_POLICIES = (
    "tiresias(thresholds=(40.0,))",
    "gandiva(quantum_s=30.0)",
    "pollux(interval_s=30.0)",
    "antman",
)
_ROUND_S = {"gandiva": 30.0, "pollux": 30.0}


def workload() -> list[Job]:
    """Eight trainings, narrow and wide, long and short; half of them may be put second to the others."""
    # When it comes, its devices, and steps.
    shape = [
        (0.0, 2, 1500), (2.0, 1, 4000), (5.0, 1, 1000), (10.0, 2, 1000),
        (20.0, 1, 2500), (30.0, 2, 400), (40.0, 1, 1500), (60.0, 1, 800),
    ]  # fmt: skip
    return [
        training_job(
            f"job{number}", arrival_s, num_devices, Training("gpt-tiny", 4, steps, checkpoint_every=500),
            guaranteed=number % 2 == 0, busy=0.5, min_devices=1, max_devices=2,
        )
        for number, (arrival_s, num_devices, steps) in enumerate(shape)
    ]  # fmt: skip


def concordance(predicted: FleetRun, measured: FleetRun) -> float:
    """Share of the pairs of jobs that ended in the order in which they were to."""
    places = [predicted.names.index(name) for name in measured.names]
    pairs = [(a, b) for i, a in enumerate(places) for b in places[i + 1 :]]
    return sum(a < b for a, b in pairs) / len(pairs)


def compare(policy: str, engine_name: str, folder: Path) -> dict[str, float]:
    """One policy, predicted and run."""
    setting = setting_of(policy, round_s=_ROUND_S.get(policy.partition("(")[0]))
    engine = make_engine(engine_name, _SITE, folder, shares=setting.shares)
    engine.warm_up()
    jobs, costs = measured_alone(workload(), engine)
    predicted = setting.simulate(jobs, _SITE, costs=costs, crowding=engine.crowding)
    measured = run_fleet(
        jobs, _SITE, setting.policy, engine, name=policy, place=setting.place, rounds=setting.rounds
    )
    *each, mean = measured_jobs(predicted, measured)
    for job in each:
        print(
            f"  {job.name}: predicted {job.jct_s[0]:.1f} s, measured {job.jct_s[1]:.1f} s, {job.error:+.0%}"
        )
    return {
        "start_s": costs.start_s,
        "predicted_mean_jct_s": mean.jct_s[0],
        "measured_mean_jct_s": mean.jct_s[1],
        "mean_error": abs(mean.error),
        "worst_error": max(abs(job.error) for job in each),
        "pairs_in_order": concordance(predicted, measured),
        "predicted_preemptions": predicted.num_preemptions,
        "measured_preemptions": measured.num_preemptions,
    }


def main() -> None:
    """Run, print and record."""
    engine = sys.argv[1] if len(sys.argv) > 1 else "local"
    with tempfile.TemporaryDirectory() as own:
        folder = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(own)
        results = {}
        for policy in _POLICIES:
            print(f"{policy} on {engine}")
            found = results[policy] = compare(policy, engine, folder / policy.partition("(")[0])
            print("  " + ", ".join(f"{key} {value:.3g}" for key, value in found.items()), flush=True)
    print(write_record(f"fleet_real_{engine}", results))


if __name__ == "__main__":
    main()
