"""Eight real trainings on four devices under four policies: what was predicted, and what came.

Run `python benchmarks/fleet_real.py [ENGINE [FOLDER [POLICY]]]`; ENGINE is local (the default), slurm or ray, and of the
last two a cluster with two nodes of two devices of type local must be there, with at least four processors on a node:
four jobs may be on its devices, and each asks for one. FOLDER, of the jobs, must be seen by all nodes. It is
`trainyard fleet run --measure`: every training runs alone first, and the prediction is made from that. Once before that,
it is measured how many steps the jobs must have to be as long on this machine as on any other. The losses of all steps
are compared with those of a run that nothing disturbs. With POLICY only those run whose text begins so.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from record import TRAINYARD, finish, not_here, parser

from trainyard.distribution import install_command
from trainyard.fleet.run.job_directory import JobDirectory

JobsInSeconds = Sequence[tuple[float, int, float]]
"""When each job comes, its devices, and for how many seconds it trains if it has these for itself."""

JobInSteps = tuple[float, int, int]
"""The same of one job, with steps for seconds."""

# A step takes 0.1 to 0.4 s: of steps of a few milliseconds, most is how fast cores wake up for messages, which differs by
# three times with what runs beside.
_BATCH_SIZE = 256
# Options, and jobs: narrow and wide, short and long; every other one may be put second. How fast a shared machine is
# differs by a tenth from minute to minute, and what a start takes, 2 to 8 s, by a fifth. So that this does not decide
# what a policy does next, no job comes or ends, as predicted, about when a quantum or another job does, or has had about
# as much as the threshold of Tiresias. Times are as much shorter than in the papers as trainings are.
_POLICIES: dict[str, tuple[tuple[str, ...], JobsInSeconds]] = {
    "tiresias(thresholds=(80.0,))": (
        (),
        ((1, 2, 132), (2, 1, 140), (5, 1, 32), (10, 2, 21), (12, 1, 120), (15, 2, 23), (30, 1, 56), (64, 1, 55)),
    ),
    "gandiva(quantum_s=60.0)": (
        ("--round", "1min"),
        ((1, 2, 90), (2, 1, 109), (5, 1, 25), (10, 2, 25), (11, 1, 65), (17, 2, 34), (43, 1, 66), (82, 1, 41)),
    ),
    # Rounds are short against every job: where they take 30 s, one that ends a second late costs the next job a quarter
    # of its time. Restarts are expected to take longer than they do, so that it resizes only where that gains beyond
    # doubt; and fewer jobs are there at once, so that there are devices to grow to.
    "pollux(interval_s=3.0, restart_s=12.0)": (
        ("--round", "3s"),
        ((1, 2, 61), (53, 1, 75), (70, 1, 40), (137, 2, 56), (190, 1, 58), (206, 2, 51), (271, 1, 52), (329, 1, 56)),
    ),
    "antman": (
        (),
        ((1, 2, 107), (2, 1, 140), (5, 1, 116), (10, 2, 51), (20, 1, 68), (36, 2, 140), (49, 1, 136), (97, 1, 38)),
    ),
}  # fmt: skip


_CLUSTER = "2x2xlocal"
# On one device only one speed is measured, which takes 20 s of it; jobs in seconds would have to be measured before.
_SMALLEST_CLUSTER = "1x1xlocal"
_SMALLEST_JOBS: Sequence[JobInSteps] = ((0.0, 1, 4), (0.1, 1, 4))


def write_workload(file: Path, jobs: Sequence[JobInSteps]) -> None:
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
    places = [int(job["predicted_place"]) for job in sorted(jobs, key=lambda job: int(job["measured_place"]))]
    pairs = [(a, b) for i, a in enumerate(places) for b in places[i + 1 :]]
    return sum(a < b for a, b in pairs) / len(pairs)


def in_steps(jobs: JobsInSeconds, steps_per_s: dict[str, float]) -> list[JobInSteps]:
    """Jobs with steps for seconds, of which so many are done on so many devices."""
    return [
        (arrival_s, count, round(alone_s * steps_per_s[str(count)])) for arrival_s, count, alone_s in jobs
    ]


def undisturbed(folder: Path, steps: int) -> dict[int, float]:
    """Losses by step of a job that has one device of this machine for itself; all jobs train the same, some longer."""
    write_workload(folder / "one.csv", [(0.0, 1, steps)])
    command = [TRAINYARD, "fleet", "run", "--trace", str(folder / "one.csv"), "--cluster", "1x1xlocal"]
    command += ["--policy", "fifo", "--folder", str(folder / "one"), "--json"]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return JobDirectory(folder / "one" / "job0").losses()


def run(policy: str, backend: str, folder: Path, jobs: Sequence[JobInSteps], cluster: str = _CLUSTER) -> Any:
    """What `fleet run --measure` says of jobs."""
    folder.mkdir(parents=True)
    write_workload(folder / "jobs.csv", jobs)
    command = [TRAINYARD, "fleet", "run", "--trace", str(folder / "jobs.csv"), "--cluster", cluster]
    command += ["--policy", policy, "--backend", backend, "--folder", str(folder / "jobs")]
    command += ["--measure", "--json", *_POLICIES[policy][0]]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


def summary(found: Any, folder: Path, losses: dict[int, float]) -> dict[str, Any]:
    """One policy, predicted and run.

    Parameters
    ----------
    losses : by step, of an undisturbed job.
    """
    *each, all_jobs = found["jobs"]
    errors = [job["measured_jct_s"] / job["predicted_jct_s"] - 1.0 for job in each]
    for job, error in zip(each, errors, strict=True):
        times = f"predicted {job['predicted_jct_s']:.1f} s, measured {job['measured_jct_s']:.1f} s"
        print(f"  {job['job']}: {times}, {error:+.0%}")
    return {
        "alone": found["alone"] | {"steps_per_s": found["alone"]["steps_per_s"]["job0"]},
        "jct_s": {
            job["job"]: {how: job[f"{how}_jct_s"] for how in ("predicted", "measured")} for job in each
        },
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
            abs(loss / losses[step] - 1.0)
            for job in each
            for step, loss in JobDirectory(folder / "jobs" / job["job"]).losses().items()
        ),
    }


def predicted_and_run(policy: str, backend: str, base: Path) -> dict[str, Any]:
    """A policy's jobs, in a new folder."""
    before = run(policy, backend, base / "before", [(0.0, 1, 1)])
    jobs = in_steps(_POLICIES[policy][1], before["alone"]["steps_per_s"]["job0"])
    return of_jobs(policy, backend, base, jobs)


def of_jobs(
    policy: str, backend: str, base: Path, jobs: Sequence[JobInSteps], cluster: str = _CLUSTER
) -> dict[str, Any]:
    """Jobs, in a new folder."""
    base.mkdir(parents=True, exist_ok=True)
    losses = undisturbed(base, max(steps for _, _, steps in jobs))
    return summary(run(policy, backend, base / "run", jobs, cluster), base / "run", losses)


def main() -> None:
    """Run, print and record."""
    options = parser(__doc__)
    options.add_argument("engine", nargs="?", choices=("local", "slurm", "ray"), default="local")
    options.add_argument("folder", nargs="?", default="", metavar="FOLDER")
    options.add_argument("policy", nargs="?", default="", metavar="POLICY")
    given = options.parse_args()
    backend = given.engine
    chosen = [policy for policy in _POLICIES if policy.startswith(given.policy)]
    if not chosen:
        raise SystemExit(f"no policy begins with {given.policy!r}; the policies are {', '.join(_POLICIES)}")
    if backend == "slurm" and shutil.which("sinfo") is None:
        not_here(
            "there is no Slurm; install slurm-wlm, and start a cluster of two nodes with two devices each"
        )
    if backend == "ray" and find_spec("ray") is None:
        not_here(f"Ray is not installed; {install_command('ray')}, and start two nodes with two devices each")
    if given.smallest:
        chosen = chosen[:1]
    with tempfile.TemporaryDirectory() as own:
        results = {}
        for policy in chosen:
            print(f"{policy} on {backend}")
            base = Path(given.folder or own) / policy.partition("(")[0]
            if given.smallest:
                found = of_jobs(policy, backend, base, _SMALLEST_JOBS, _SMALLEST_CLUSTER)
            else:
                found = predicted_and_run(policy, backend, base)
            numbers = [f"{key} {value:.3g}" for key, value in found.items() if not isinstance(value, dict)]
            print("  " + ", ".join(numbers), flush=True)
            results[policy] = found
    finish(f"fleet_real_{backend}", results, given.smallest)


if __name__ == "__main__":
    main()
