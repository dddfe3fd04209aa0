"""Eight real trainings on four devices under four policies: what was predicted, and what came.

Run `python benchmarks/fleet_real.py [ENGINE [FOLDER [POLICY]]]`; ENGINE is local (the default), slurm or ray, and of the
last two a cluster with two nodes of two devices of type local must be there, with at least four processors on a node:
four jobs may be on its devices, and each asks for one. FOLDER, of the jobs, must be seen by all nodes. It is
`trainyard fleet run --measure`: every training runs alone first, and the prediction is made from that; afterwards it runs
alone once more, as machines change their speed. The losses of all steps are compared with those of a run that nothing
disturbs. With POLICY only those run whose text begins so.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from record import TRAINYARD, write_record

from trainyard.fleet.run.home import JobHome

Arrivals = Sequence[tuple[float, int, int]]
"""When each job comes, its devices, and its steps."""

# Narrow and wide, long and short. Every other one may be put second. None comes at a moment at which rounds begin, and
# none ends when it has had about as much as the threshold of Tiresias: by how much starts differ, 6 to 20 s on a cluster
# manager, would decide what comes next: five end well below it, three far above.
# A step takes 0.1 to 0.4 s: of steps of a few milliseconds, most is how fast cores wake up for messages, which differs by
# three times with what runs beside.
_BATCH_SIZE = 256
_CROWD: Arrivals = (
    (1.0, 2, 400), (2.0, 1, 400), (5.0, 1, 120), (10.0, 2, 70),
    (20.0, 1, 280), (31.0, 2, 60), (40.0, 1, 150), (61.0, 1, 110),
)  # fmt: skip
# Pollux resizes jobs where there are devices to spare, so fewer are there at once: a second one as the first is well
# under way, then a third, for which one of them shrinks. Of jobs of one age, a moment would decide who grows.
_FEW: Arrivals = (
    (4.0, 2, 400), (49.0, 1, 400), (73.0, 1, 120), (130.0, 2, 170),
    (190.0, 1, 280), (214.0, 2, 160), (268.0, 1, 250), (325.0, 1, 210),
)  # fmt: skip
# Jobs and options. Times are as much shorter than in the papers as trainings are. Rounds of Pollux are short against
# every job, as there: where they take 30 s, one that ends a second late costs the next job a quarter of its time. It
# expects restarts to take about twice as long as they do, so that it resizes only where that gains beyond doubt.
_POLICIES: dict[str, tuple[Arrivals, tuple[str, ...]]] = {
    "tiresias(thresholds=(80.0,))": (_CROWD, ()),
    "gandiva(quantum_s=60.0)": (_CROWD, ("--round-s", "60")),
    "pollux(interval_s=3.0, restart_s=12.0)": (_FEW, ("--round-s", "3")),
    "antman": (_CROWD, ()),
}


def write_workload(file: Path, jobs: Arrivals) -> None:
    """Jobs, in Trainyard's own form."""
    lines = [
        "name,arrival_s,num_devices,steps,guaranteed,busy,min_devices,max_devices,model,batch_size,checkpoint_every"
    ]
    for number, (arrival_s, num_devices, steps) in enumerate(jobs):
        guaranteed = "no" if number % 2 else "yes"
        lines.append(
            f"job{number},{arrival_s},{num_devices},{steps},{guaranteed},0.5,1,2,gpt-tiny,{_BATCH_SIZE},50"
        )
    file.write_text("\n".join(lines) + "\n")


def concordance(jobs: Sequence[dict[str, Any]]) -> float:
    """Share of the pairs of jobs that ended in the order in which they were to."""
    places = [job["predicted_place"] for job in sorted(jobs, key=lambda job: int(job["measured_place"]))]
    pairs = [(a, b) for i, a in enumerate(places) for b in places[i + 1 :]]
    return sum(a < b for a, b in pairs) / len(pairs)


def undisturbed(folder: Path) -> dict[int, float]:
    """Losses by step of a job that has one device of this machine for itself; all jobs train the same, some longer."""
    most = max(steps for jobs, _ in _POLICIES.values() for _, _, steps in jobs)
    write_workload(folder / "one.csv", [(0.0, 1, most)])
    command = [TRAINYARD, "fleet", "run", "--trace", str(folder / "one.csv"), "--cluster", "1x1xlocal"]
    command += ["--policy", "fifo", "--folder", str(folder / "one"), "--json"]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return JobHome(folder / "one" / "job0").losses()


def run(policy: str, engine: str, folder: Path, jobs: Arrivals | None = None) -> Any:
    """What `fleet run --measure` says of jobs, by default the policy's."""
    folder.mkdir(parents=True)
    its_jobs, options = _POLICIES[policy]
    write_workload(folder / "jobs.csv", jobs or its_jobs)
    command = [TRAINYARD, "fleet", "run", "--trace", str(folder / "jobs.csv"), "--cluster", "2x2xlocal"]
    command += [
        "--policy",
        policy,
        "--engine",
        engine,
        "--folder",
        str(folder / "jobs"),
        "--measure",
        "--json",
    ]
    done = subprocess.run([*command, *options], stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def summary(found: Any, folder: Path, alone: dict[int, float]) -> dict[str, float]:
    """One policy, predicted and run.

    Parameters
    ----------
    alone : losses by step of an undisturbed job.
    """
    *each, all_jobs = found["jobs"]
    errors = [job["measured_jct_s"] / job["predicted_jct_s"] - 1.0 for job in each]
    for job, error in zip(each, errors, strict=True):
        times = f"predicted {job['predicted_jct_s']:.1f} s, measured {job['measured_jct_s']:.1f} s"
        print(f"  {job['job']}: {times}, {error:+.0%}")
    return {
        "predicted_mean_jct_s": all_jobs["predicted_jct_s"],
        "measured_mean_jct_s": all_jobs["measured_jct_s"],
        "predicted_num_starts": sum(job["predicted_num_starts"] for job in each),
        "measured_num_starts": sum(job["measured_num_starts"] for job in each),
        "predicted_jobs_per_device": found["predicted"]["device_s"] / found["predicted"]["busy_device_s"],
        "measured_jobs_per_device": found["measured"]["device_s"] / found["measured"]["busy_device_s"],
        "mean_error": all_jobs["measured_jct_s"] / all_jobs["predicted_jct_s"] - 1.0,
        "worst_error": max(map(abs, errors)),
        "within_15_percent": sum(abs(error) <= 0.15 for error in errors),
        "pairs_in_order": concordance(each),
        "worst_loss_error": max(
            abs(loss / alone[step] - 1.0)
            for job in each
            for step, loss in JobHome(folder / "jobs" / job["job"]).losses().items()
        ),
    }


def speed_after(before: Any, after: Any) -> float:
    """How fast the machine is when a policy's jobs are done: steps per second of a training alone, over those before."""
    first, second = (next(iter(found["alone"]["steps_per_s"].values())) for found in (before, after))
    return mean(second[count] / first[count] for count in first)


def main(engine: str = "local", folder: str = "", only: str = "") -> None:
    """Run, print and record."""
    chosen = [policy for policy in _POLICIES if policy.startswith(only)]
    if not chosen:
        raise SystemExit(f"no policy begins with {only!r}; the policies are {', '.join(_POLICIES)}")
    with tempfile.TemporaryDirectory() as own:
        results, alone = {}, undisturbed(Path(own))
        for policy in chosen:
            print(f"{policy} on {engine}")
            base = Path(folder or own) / policy.partition("(")[0]
            before = run(policy, engine, base)
            after = run(policy, engine, base / "after", [(0.0, 1, 1)])
            results[policy] = summary(before, base, alone) | {"speed_after": speed_after(before, after)}
            print(
                "  " + ", ".join(f"{key} {value:.3g}" for key, value in results[policy].items()), flush=True
            )
    print(write_record(f"fleet_real_{engine}", results))


if __name__ == "__main__":
    main(*sys.argv[1:])
