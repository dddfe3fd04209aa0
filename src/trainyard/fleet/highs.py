"""HiGHS as policies use it: on one thread, and silent."""

from __future__ import annotations

from typing import Any

import highspy


class _Silent(highspy.Highs):
    """HiGHS would print its version when it is made, into the document that `--json` prints for programs."""

    def enableCallbacks(self) -> None:  # noqa: N802
        self.setOptionValue("output_flag", False)
        super().enableCallbacks()


def new_solver(**options: Any) -> highspy.Highs:
    """A solver to be used again and again: to make one takes longer than a small program.

    A model passed to it starts afresh.

    Parameters
    ----------
    options : of HiGHS.
    """
    solver = _Silent()
    for name, value in {"output_flag": False, "threads": 1, **options}.items():
        solver.setOptionValue(name, value)
    return solver
