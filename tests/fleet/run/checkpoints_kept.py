"""Whether jobs go on from their checkpoints: what they logged tells which steps they did, and how often."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise

from trainyard.fleet.run.home import JobHome


def logged(home: JobHome, first_line: int = 0) -> list[tuple[int, int]]:
    """Steps in the order in which a job did them, some perhaps again, and the processes that each was done by."""
    file, found = home.logs / "metrics.jsonl", []
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

    home: JobHome
    saved: int
    lines: int

    @classmethod
    def now(cls, home: JobHome) -> Seen:
        """As it is; to be asked before somebody is killed."""
        saved, file = home.saved_steps(), home.logs / "metrics.jsonl"
        return cls(home, saved, file.read_bytes().count(b"\n") if file.exists() else 0)

    def check(self) -> None:
        """Whatever happened then: nothing that was saved was done again."""
        later = [step for step, _ in logged(self.home, self.lines)]
        assert min(later, default=self.saved) >= self.saved, (
            f"{self.home.path.name} had saved {self.saved}: {later}"
        )


def check_done_again(home: JobHome, most_times: int) -> None:
    """A job went back no more often than it was disturbed, each time to its last checkpoint.

    That may be the last but one: training goes on while one is written.
    """
    steps = [step for step, _ in logged(home)]
    back = [before + 1 - step for before, step in pairwise(steps) if step != before + 1]
    assert len(back) <= most_times, f"{home.path.name} went back by {back}"
    assert all(0 < count <= 2 * home.training().checkpoint_every for count in back), (
        f"{home.path.name}: {back}"
    )
