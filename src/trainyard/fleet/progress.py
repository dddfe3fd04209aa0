"""What a command of a fleet tells of its progress: lines of JSON in a file, which need neither PyTorch nor a server.

A script calls `report` after its steps; outside of a fleet that does nothing. A program in another language may write the
lines itself: it appends ``{"step": 40, "steps_per_s": 3.2, "loss": 1.7}`` to the file ``progress.jsonl`` in the folder
that the variable ``TRAINYARD_JOB_DIR`` names. Only ``step`` has to be there.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

__all__ = ["JOB_DIR", "PROGRESS_FILE", "job_dir", "report"]

JOB_DIR, PROGRESS_FILE = "TRAINYARD_JOB_DIR", "progress.jsonl"
_EVERY_S = 0.5


class _Told:
    """What was told last, and what came since."""

    step, at_s = 0, 0.0
    losses: tuple[float, ...] = ()


def job_dir() -> Path | None:
    """The folder that a job of a fleet keeps when it is started again, for its checkpoints; None outside of a fleet."""
    found = os.environ.get(JOB_DIR)
    return Path(found) if found else None


def report(step: int, loss: float | None = None) -> None:
    """Tell the fleet how far this job is; the process of rank 0 does, and others need not ask who they are.

    A line is written every half a second at most, with the mean of the losses since the last one.

    Parameters
    ----------
    step : steps done, those before the job was started again among them.
    loss : of the last step.
    """
    folder = job_dir()
    if folder is None or os.environ.get("RANK", "0") != "0":
        return
    if loss is not None:
        _Told.losses += (float(loss),)
    now_s = time.monotonic()
    since_s = now_s - _Told.at_s
    if _Told.at_s and since_s < _EVERY_S:
        return
    line: dict[str, float] = {"step": int(step)}
    if _Told.at_s and step > _Told.step:
        line["steps_per_s"] = (step - _Told.step) / since_s
    if _Told.losses:
        line["loss"] = sum(_Told.losses) / len(_Told.losses)
    with (folder / PROGRESS_FILE).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    _Told.step, _Told.at_s, _Told.losses = int(step), now_s, ()
