"""Notes that compiled code takes, until they are written down."""

from __future__ import annotations

import numpy as np

from trainyard.compiling import records
from trainyard.fleet.jobs.job_table import JobTable
from trainyard.fleet.mechanism.transitions import ENDED, EndNote
from trainyard.fleet.records import Recorder
from trainyard.fleet.span import Span
from trainyard.fleet.workload.fair import FairTimes
from trainyard.fleet.workload.job import Job
from trainyard.hardware.cluster import Cluster

# Ends of jobs, and half of the changes of use, that there is room for.
_NUM_NOTES = 4096


class PendingNotes:
    """Notes of ended jobs, devices in use and waiting jobs that are not written to the recorder yet.

    Attributes
    ----------
    fair : how long jobs would have taken alone.
    ended, used : the notes, as `FleetState` has them.
    most_uses : changes of use that there is room for.
    """

    def __init__(self, cluster: Cluster, table: JobTable, recorder: Recorder) -> None:
        self._table, self._recorder, self.fair = table, recorder, FairTimes(cluster)
        self.most_uses = 2 * _NUM_NOTES
        self.ended, self.used = records(_NUM_NOTES, ENDED), np.zeros((3, self.most_uses))

    def write_uses(self, kept: int = 0) -> None:
        """Write the changes of use down, but for so many of the last ones, which may change."""
        num = int(self._table.num_noted[0]) - kept
        self._recorder.uses(self.used[:, :num])
        self.used[:, :kept], self._table.num_noted[0] = self.used[:, num : num + kept], kept

    def take_ended(self) -> list[EndNote]:
        """Notes of the jobs that have ended, which are taken away."""
        counts = self._table.counts[0]
        found = [EndNote(*note) for note in self.ended[: counts["ended"]].tolist()]
        counts["ended"] = 0
        return found

    def write_end(self, job: Job, note: EndNote, ended_s: float | None = None) -> None:
        """Write the end of a job down, and what it had last.

        Parameters
        ----------
        ended_s : the end that counts, if it is another than that of the note.
        """
        spans = self._recorder.spans
        if spans is not None and note.end_s > note.placed_s:
            devices = self._table.grants.devices[note.first_device : note.first_device + note.held]
            spans.append(Span(job.name, note.placed_s, note.end_s, tuple(devices.tolist())))
        self._recorder.ended(
            job,
            note.first_start_s,
            note.end_s if ended_s is None else ended_s,
            note.waited_s,
            note.lost_s,
            note.device_s,
            note.lost_device_s,
            note.num_preempted,
            note.num_starts,
            *self.fair.times_s(job, note.allowed, note.job_s, note.end_s, note.gang_rate),
            note.is_killed,
        )
