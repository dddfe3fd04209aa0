"""Whether jobs go on from their checkpoints: what they logged tells which steps they did, and how often."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise

from trainyard.fleet.run.job_directory import JobDirectory


def logged(directory: JobDirectory, first_line: int = 0) -> list[tuple[int, int]]:
    """Steps in the order in which a job did them, some perhaps again, and the processes that each was done by."""
    file, found = directory.logs / "metrics.jsonl", []
    for line in file.read_bytes().splitlines()[first_line:] if file.exists() else ():
        try:
            entry = json.loads(line)
        except ValueError:  # a process that was killed left half a line
            continue
        found.append((entry["step"], len(entry["peak_memory_bytes"])))
    return found


@dataclass(frozen=True)
class Seen:
    """What a job had saved at a moment, and how many lines it had logged then."""

    directory: JobDirectory
    saved: int
    lines: int

    @classmethod
    def now(cls, directory: JobDirectory) -> Seen:
        """As it is; to be asked before somebody is killed."""
        saved, file = directory.saved_steps(), directory.logs / "metrics.jsonl"
        return cls(directory, saved, file.read_bytes().count(b"\n") if file.exists() else 0)

    def check(self) -> None:
        """Whatever happened then: nothing that was saved was done again."""
        later = [step for step, _ in logged(self.directory, self.lines)]
        assert min(later, default=self.saved) >= self.saved, (
            f"{self.directory.path.name} had saved {self.saved}: {later}"
        )


def check_done_again(directory: JobDirectory, most_times: int) -> None:
    """A job went back no more often than it was disturbed, each time to its last checkpoint.

    That may be the last but one: training goes on while one is written.
    """
    steps = [step for step, _ in logged(directory)]
    back = [before + 1 - step for before, step in pairwise(steps) if step != before + 1]
    assert len(back) <= most_times, f"{directory.path.name} went back by {back}"
    assert all(0 < count <= 2 * directory.training().checkpoint_every for count in back), (
        f"{directory.path.name}: {back}"
    )
