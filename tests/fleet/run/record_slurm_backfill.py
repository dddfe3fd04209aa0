"""Record in which order a Slurm of this machine starts jobs: ``python tests/fleet/run/record_slurm_backfill.py``.

The jobs sleep for some seconds and have limits of some minutes, the shortest that Slurm knows. They are written to
``tests/fleet/slurm_backfill.csv``, with the seconds at which the controller says that they came, started and ended.
"""

from __future__ import annotations

import csv
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from slurm_here import running_slurm

# A device is a node: for jobs that wait, Slurm keeps whole nodes.
NUM_JOBS, NUM_DEVICES = 50, 8
WAYS: Mapping[str, tuple[str, ...]] = {
    # Places are reserved for the first job that waits; by default, for all.
    "easy": ("bf_job_part_count_reserve=1",),
    "conservative": (),
}
COLUMNS = ("backfill", "name", "num_devices", "priority", "limit_s", "arrival_s", "started_s", "ended_s")


def record(way: str) -> Iterator[dict[str, Any]]:
    """Run the jobs, and say what became of them."""
    drawn = random.Random(way)
    with (
        tempfile.TemporaryDirectory() as folder,
        running_slurm(Path(folder), [1] * NUM_DEVICES, scheduling=(*WAYS[way], "bf_resolution=1")),
    ):
        numbers, asked = [], []
        for _ in range(NUM_JOBS):
            size, minutes = drawn.choice([1, 1, 1, 2, 2, 3, 4, 6, 8]), drawn.choice([1, 1, 2, 3, 5])
            priority, seconds = drawn.choice([1000, 1000, 2000]), drawn.randint(2, 12)
            asked.append((size, priority, 60 * minutes))
            options = [
                f"--nodes={size}",
                "--gres=gpu:local:1",
                f"--time={minutes}",
                f"--priority={priority}",
                "--mem=1",
            ]
            command = ["sbatch", "--parsable", "-o", "/dev/null", *options, f"--wrap=exec sleep {seconds}"]
            numbers.append(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())
            time.sleep(drawn.choice([0.0, 0.3, 1.2]))
        while _squeue():
            time.sleep(1.0)
        for number, (size, priority, limit_s) in zip(numbers, asked, strict=True):
            fields = _job(number)
            assert fields["JobState"] == "COMPLETED", fields
            times_s = [_seconds(fields[name]) for name in ("SubmitTime", "StartTime", "EndTime")]
            row = (way, number, size, priority, limit_s, *times_s)
            yield dict(zip(COLUMNS, row, strict=True))


def _squeue() -> str:
    return subprocess.run(["squeue", "-h"], capture_output=True, text=True, check=True).stdout


def _job(number: str) -> dict[str, str]:
    said = subprocess.run(["scontrol", "show", "job", number], capture_output=True, text=True, check=True)
    return dict(part.partition("=")[::2] for part in said.stdout.split())


def _seconds(date: str) -> int:
    return round(datetime.fromisoformat(date).timestamp())


def main() -> None:
    rows = []
    for way in WAYS:
        jobs = list(record(way))
        begin_s = min(job["arrival_s"] for job in jobs)
        for job in jobs:
            job |= {name: job[name] - begin_s for name in ("arrival_s", "started_s", "ended_s")}
        rows += jobs
    with (Path(__file__).parents[1] / "slurm_backfill.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    sys.exit(main())
