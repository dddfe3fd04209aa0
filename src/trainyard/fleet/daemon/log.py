"""The log of a job, as its user reads it."""

from __future__ import annotations

import json
from collections.abc import Iterator

from trainyard.fleet.run.job_directory import JobDirectory
from trainyard.job.run.processes.logs import last_lines, metrics_files

_MOST_LINES = 10_000


def log_text(directory: JobDirectory, num_lines: int) -> str:
    """The last steps of a job, and the last that each of its processes printed.

    Parameters
    ----------
    num_lines : of each of them; fewer where there are many, so that all are at most 10,000.
    """
    logs = sorted(directory.logs.glob("*.log"))
    num_lines = max(1, min(num_lines, _MOST_LINES // (1 + len(logs))))
    written = [line for file in metrics_files(directory.logs) for line in last_lines(file, num_lines)]
    parts = ["\n".join(_steps(written[-num_lines:]))]
    for log in logs:
        printed = last_lines(log, num_lines)
        if printed:
            parts.append("\n".join([f"--- {log.stem} printed", *printed]))
    return "\n".join(part for part in parts if part) + "\n"


def _steps(lines: list[str]) -> Iterator[str]:
    for line in lines:
        try:
            entry = json.loads(line)
        except ValueError:
            continue  # cut off: it is being written, or its process was killed
        losses = "  ".join(
            f"{name.rpartition(':')[2] or name} {value:.4f}" for name, value in entry["losses"].items()
        )
        yield f"step {entry['step'] + 1}  {losses}  {entry['seconds']:.3f} s"
