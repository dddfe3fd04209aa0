"""Progress that a command of a fleet reports: lines of JSON in a file, which need neither PyTorch nor a server.

A script calls `report` after its steps; outside of a fleet that does nothing. A program in another language may write the
lines itself: it appends ``{"step": 40, "steps_per_s": 3.2, "loss": 1.7}`` to the file ``progress.jsonl`` in the folder
that the variable ``TRAINYARD_JOB_DIR`` names. Only ``step`` has to be there.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["JOB_DIR", "PROGRESS_FILE", "job_dir", "report"]

JOB_DIR, PROGRESS_FILE = "TRAINYARD_JOB_DIR", "progress.jsonl"
_EVERY_S = 0.5


@dataclass
class _LastLine:
    """The last line that was written, and the losses since then."""

    step: int = 0
    at_s: float = 0.0
    losses: list[float] = field(default_factory=list)


_last = _LastLine()


def job_dir() -> Path | None:
    """Return the folder that a job keeps when it is started again, for its checkpoints; None outside of a fleet."""
    folder = os.environ.get(JOB_DIR)
    return Path(folder) if folder else None


def report(step: int, loss: float | None = None) -> None:
    """Report the progress of this job to the fleet; only the process of rank 0 does, and all may call this.

    A line is written every half a second at most, with the mean of the losses since the last line.

    Parameters
    ----------
    step : steps done, with those before the job was started again.
    loss : of the last step.
    """
    folder = job_dir()
    if folder is None or os.environ.get("RANK", "0") != "0":
        return
    if loss is not None:
        _last.losses.append(float(loss))
    now_s = time.monotonic()
    since_s = now_s - _last.at_s
    if _last.at_s and since_s < _EVERY_S:
        return
    line: dict[str, float] = {"step": int(step)}
    if _last.at_s and step > _last.step:
        line["steps_per_s"] = (step - _last.step) / since_s
    if _last.losses:
        line["loss"] = sum(_last.losses) / len(_last.losses)
    with (folder / PROGRESS_FILE).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    _last.step, _last.at_s, _last.losses = int(step), now_s, []
