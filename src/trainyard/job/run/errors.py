"""Errors of a run, which can be imported without PyTorch."""

from __future__ import annotations

from trainyard.errors import TrainyardError


class CheckpointError(TrainyardError, RuntimeError):
    """A folder of checkpoints that the run that was asked for cannot use; the message names what is in the way."""


class WeightsError(TrainyardError, ValueError):
    """Weights that cannot be read, or are not those of a module; the message says what is allowed."""


class FailedRunError(TrainyardError, RuntimeError):
    """A run that was right to begin, and failed; the command line ends with status 1."""


class NotSavedError(FailedRunError):
    """A checkpoint that could not be written; the ones before it are as they were."""


class NonFiniteError(FailedRunError):
    """A loss, a gradient or a state of the run that is not finite; the message says at which step, and what is kept.

    Parameters
    ----------
    said : what happened.
    advice : what can be done on the command line.
    """

    def __init__(self, said: str, advice: str = "") -> None:
        super().__init__(said, advice)
        self.said = said

    def __str__(self) -> str:
        return " ".join(filter(None, self.args))
