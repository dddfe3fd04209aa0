"""What can go wrong with a run; who only asks for the kind of an error does not have to wait for PyTorch."""

from __future__ import annotations


class CheckpointError(RuntimeError):
    """A folder of checkpoints that the run that was asked for cannot use; the message names what is in the way."""


class FailedRunError(RuntimeError):
    """A run that was right to begin, and failed; the command line ends with status 1."""


class NotSavedError(FailedRunError):
    """A checkpoint that could not be written; the ones before it are as they were."""


class NonFiniteError(FailedRunError):
    """A loss, a gradient or a state of the run that is not finite; the message says at which step, and what is kept."""
