"""Data stream: batches of a loader without an index, at any step by the loader's saved state or by reading anew."""

from __future__ import annotations

import base64
import io
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trainyard.job.run.step.data import DataError, by_path
from trainyard.job.run.step.seeded import RandomState, keep_random_state, one_thread, seed_all

__all__ = ["DataStream", "StreamReader"]


@dataclass(frozen=True, eq=False)
class DataStream:
    """Batches in the order in which a loader yields them, epoch after epoch.

    Every process of a run reads all of the stream. Random numbers of PyTorch, Python and NumPy are seeded at the
    beginning of an epoch by seed and epoch.

    Attributes
    ----------
    loader : yields batches, pytrees of tensors; it can be iterated again.
    seed : of random numbers that are drawn while the data is read.
    """

    loader: Any
    seed: int = 0

    @property
    def has_state(self) -> bool:
        """Whether the loader says and takes its position."""
        return all(callable(getattr(self.loader, name, None)) for name in ("state_dict", "load_state_dict"))

    def batch(self, step: int) -> dict[str, Tensor]:
        """All rows of a step by path. The stream is read from its beginning.

        Raises
        ------
        DataError
            If there is no batch at all.
        """
        reader = StreamReader(self)
        try:
            reader.skip(step)
            return reader.next()
        finally:
            reader.close()


class StreamReader:
    """One pass over a stream, which ends with the process or with `close`.

    Parameters
    ----------
    state : text of an earlier reader's `state`, to begin where it was.
    """

    def __init__(self, data: DataStream, state: str = "") -> None:
        self.data = data
        self._epoch, self._num_in_epoch = 0, 0
        self._iterator: Iterator[Any] | None = None
        self._random: RandomState | None = None
        for part in _parts(data.loader):
            if isinstance(generator := getattr(part, "generator", None), torch.Generator):
                generator.manual_seed(generator.initial_seed())
        if state:
            self._load(state)

    def next(self) -> dict[str, Tensor]:
        """Return the next batch by path; after the last of an epoch, the first of the next.

        Raises
        ------
        DataError
            If an epoch has no batch.
        """
        with keep_random_state(), one_thread():
            if self._random is not None:
                self._random.restore()
            batch = self._next()
            self._random = RandomState.now()
        return by_path(batch)

    def _next(self) -> Any:
        while True:
            if self._iterator is None:
                self._begin_epoch()
                assert self._iterator is not None
            try:
                batch = next(self._iterator)
            except StopIteration:
                if self._num_in_epoch == 0:
                    raise DataError(
                        f"epoch {self._epoch} of the data has no batch. Give data with at least the rows of one step"
                    ) from None
                self._epoch, self._num_in_epoch, self._iterator = self._epoch + 1, 0, None
                continue
            self._num_in_epoch += 1
            return batch

    def _begin_epoch(self) -> None:
        if self._num_in_epoch == 0:
            seed_all(self.data.seed, self._epoch)
            for part in _parts(self.data.loader):
                if callable(set_epoch := getattr(part, "set_epoch", None)):
                    set_epoch(self._epoch)
        self._iterator = iter(self.data.loader)

    def skip(self, num_steps: int, look: Callable[[int, Mapping[str, Tensor]], None] | None = None) -> float:
        """Read batches that were trained on before, and return the seconds that it took.

        Parameters
        ----------
        look : called with the number and the tensors of the last one.
        """
        began_s = time.perf_counter()
        for step in range(num_steps):
            batch = self.next()
            if look is not None and step + 1 == num_steps:
                look(step, batch)
        return time.perf_counter() - began_s

    def state(self) -> str:
        """Return the position after the last batch as text, which is read without running code; "" if the loader says
        none.

        Raises
        ------
        DataError
            If the state of the loader holds what cannot be kept so.
        """
        if not self.data.has_state:
            return ""
        assert self._random is not None
        python = self._random.python
        random = {"torch": self._random.torch, "python": python, "numpy": _plain(self._random.numpy)}
        said = [self._epoch, self._num_in_epoch, random, self.data.loader.state_dict()]
        file = io.BytesIO()
        torch.save(said, file)
        try:
            torch.load(io.BytesIO(file.getvalue()), weights_only=True)
        except Exception as error:
            raise DataError(
                f"the state of the data loader ({type(self.data.loader).__name__}.state_dict()) cannot be kept in a "
                "checkpoint, where nothing may be that is run as code: it holds more than numbers, text, lists, "
                f"dictionaries and tensors ({str(error).splitlines()[0]})"
            ) from error
        return base64.b64encode(file.getvalue()).decode()

    def _load(self, state: str) -> None:
        said = torch.load(io.BytesIO(base64.b64decode(state)), weights_only=True)
        self._epoch, self._num_in_epoch, random, loader = said
        numpy = random["numpy"]
        self._random = RandomState(
            random["torch"], random["python"], (numpy[0], numpy[1].numpy(), *numpy[2:])
        )
        self.data.loader.load_state_dict(loader)

    def close(self) -> None:
        """End the workers of the loader."""
        self._iterator = None


def _parts(loader: Any) -> list[Any]:
    """The loader and its parts that may have an order of their own in each epoch."""
    return [loader, *(p for name in ("sampler", "dataset") if (p := getattr(loader, name, None)) is not None)]


def _plain(numpy: tuple[Any, ...]) -> list[Any]:
    name, keys, place, has_gauss, gauss = numpy
    return [name, torch.from_numpy(keys.copy()), place, has_gauss, gauss]
