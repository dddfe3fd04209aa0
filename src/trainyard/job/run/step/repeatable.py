"""Check that data is a function of the step, by asking for it again before anything is trained.

A run that goes on after a checkpoint, or on other processes, asks for the batches from some step on. Data with a
position of its own (an iterator, a loader that shuffles, a global random generator) would skip batches and repeat others.
"""

from __future__ import annotations

import os
import pickle
import traceback
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from trainyard.job.run.step.data import Data, DataError, checksum
from trainyard.job.run.step.seeded import one_thread

_REMEDY = (
    "The data must be the same for the same step, whenever and in whatever process it is asked, so that a run can "
    "stop and go on: index the data set by the step (shuffled by torch.randperm with a seeded generator), and draw "
    "random numbers with torch.Generator().manual_seed(step)"
)
_OTHER_RUN = f"Go on with the same data and as many rows, or start in another folder: {_REMEDY}"


@dataclass(frozen=True, eq=False)
class Repeatable:
    """Data that returned the same when it was asked again.

    Attributes
    ----------
    seen : checksums of the first steps' batches, by step and path.
    process : in which they were seen.
    """

    data: Data
    seen: Mapping[int, Mapping[str, int]]
    process: int

    def batch(self, step: int) -> Mapping[str, Tensor]:
        """Return the batch of ``data``."""
        return self.data.batch(step)


def repeatable(data: Data, num_steps: int) -> Repeatable:
    """Ask for the first step, for the next one twice, and for the first again; in another process, the other way round.

    Parameters
    ----------
    data : where another process has asked already, what it came to.
    num_steps : of the run; no other steps are asked for.

    Raises
    ------
    DataError
        If batches of the same step differ, or there is none; the message names the entry.
    """
    steps = list(range(min(num_steps, 2)))
    with one_thread():
        if not isinstance(data, Repeatable):
            seen = {step: _checksums(data, step) for step in steps}
            _compare(data, seen, "when it is asked for again")
            return Repeatable(data, seen, os.getpid())
        if data.process != os.getpid():
            _compare(data, data.seen, "in another process")
    return data


def batch_checksums(data: Data, step: int) -> dict[str, int]:
    """Return checksums of a step's batch when it is asked for once more, by path.

    Raises
    ------
    DataError
        If it cannot be made.
    """
    with one_thread():
        return _checksums(data, step)


def check_same_batch(step: int, batch: Mapping[str, Tensor], trained_on: Mapping[str, int]) -> None:
    """Compare a batch at hand with the one of the same step that an earlier run was trained on; errors as of
    `check_goes_on`."""
    again = {name: checksum(tensor) for name, tensor in batch.items()}
    _compare_sums(step, trained_on, again, "as when the checkpoint was written", _OTHER_RUN)


def check_goes_on(data: Data, step: int, trained_on: Mapping[str, int]) -> None:
    """Compare the batch of a step with the one that an earlier run was trained on.

    Parameters
    ----------
    trained_on : checksums by path, of ``batch_checksums``.

    Raises
    ------
    DataError
        If it is another; the message names the entry.
    """
    with one_thread():
        _compare(data, {step: trained_on}, "as when the checkpoint was written", _OTHER_RUN)


def _compare(data: Data, seen: Mapping[int, Mapping[str, int]], when: str, remedy: str = _REMEDY) -> None:
    for step in sorted(seen, reverse=True):
        _compare_sums(step, seen[step], _checksums(data, step), when, remedy)


def _compare_sums(
    step: int, seen: Mapping[str, int], again: Mapping[str, int], when: str, remedy: str
) -> None:
    for name in {**seen, **again}:
        if seen.get(name) != again.get(name):
            raise DataError(f"{name} of step {step} is not the same {when}. {remedy}")


def _checksums(data: Data, step: int) -> dict[str, int]:
    try:
        return {name: checksum(tensor) for name, tensor in data.batch(step).items()}
    except StopIteration as error:
        raise DataError(
            f"the data has no batch of step {step}: an iterator is at its end. {_REMEDY}"
        ) from error
    except DataError:
        raise
    except Exception as error:
        if isinstance(error, pickle.PicklingError):
            raise DataError(
                f"processes that read the data cannot be started: {error}. Define the data set in a module of its own "
                "and import it, or give the loader multiprocessing_context='fork'"
            ) from error
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise DataError(
            f"the data of step {step} cannot be made: {type(error).__name__}: {error} (line {place.lineno} of "
            f"{place.filename})"
        ) from error
