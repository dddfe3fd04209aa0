"""Check, before a run starts its processes, that it may begin in its folder or continue from it."""

from __future__ import annotations

from trainyard.job.run.checkpoint.folders import check_goes_on_as
from trainyard.job.run.checkpoint.same_run import settings_of
from trainyard.job.run.checkpoint.saved import (
    check_unused,
    newest_complete,
    read_about,
    saved_steps,
    started_again,
)
from trainyard.job.run.config import WorkerInput
from trainyard.job.run.step.data_reader import is_stream
from trainyard.job.run.step.repeatable import check_goes_on

__all__ = ["check_resumable"]


def check_resumable(work: WorkerInput) -> None:
    """Check that the run may continue from its folder's newest checkpoint, if there is one."""
    folder = work.config.checkpoint
    if folder is not None and not work.config.resume and not started_again():
        check_unused(folder)
    if folder is None or not saved_steps(folder):
        return
    newest = newest_complete(folder)
    check_goes_on_as(newest, settings_of(work.plan, work.config))
    about = read_about(newest)
    if not is_stream(work.data):  # whose processes look, while they find the position
        check_goes_on(work.data, about.step - 1, about.batch)
