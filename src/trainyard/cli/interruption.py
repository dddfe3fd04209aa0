"""Report the last saved step of an interrupted training, and the command that resumes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote

from trainyard.cli.launcher import is_launched

__all__ = ["reporting_resume_command", "resume_command"]


def resume_command(command: str, folder: Path) -> str:
    """Return the command that continues the run of a folder."""
    return f"{command} --checkpoint {quote(str(folder))} --resume"


@contextmanager
def reporting_resume_command(command: str, folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Print the command that resumes the training when Ctrl-C or SIGTERM ends it in this context.

    Parameters
    ----------
    command : that began the run, without its options.
    folder : of the checkpoints.
    """
    from trainyard.job.run.checkpoint.saved import complete_steps

    try:
        yield
    except KeyboardInterrupt:
        if steps := complete_steps(folder):
            launcher = " under the launcher" if is_launched() else ""
            again = resume_command(command, folder)
            say(f"step {steps[0]} is saved in {folder}; go on{launcher} with\n  {again}")
        else:
            say(f"no checkpoint was written to {folder}: the run has to begin again")
        raise
