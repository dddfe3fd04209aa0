"""Checkpoints: folders that any plan can continue from, complete or absent.

``<folder>/step-00000012`` holds the files of torch.distributed.checkpoint, a checksum beside each, and
``run.json``. It is written under another name and renamed once everything is on the disk, so that a crash at any
moment leaves the older ones. ``<folder>/latest`` names the newest.
"""

from __future__ import annotations

import json
import os
import shutil
import warnings
import zlib
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from trainyard.job.run.boxes import boxes
from trainyard.job.run.executor import Executor
from trainyard.job.run.planners import PartReader, PartWriter
from trainyard.job.run.saved import ABOUT, complete_steps, path_of
from trainyard.job.run.snapshot import PARAMS, Part, Target, fields, take
from trainyard.private import make_private

_LATEST, _CHECKSUM = "latest", ".crc32"


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be used; the message names the file, and an older complete one if there is any."""


@dataclass(frozen=True)
class About:
    """What a checkpoint holds beside tensors.

    Attributes
    ----------
    step : steps done; also the next step's number, and so the position in the data.
    seed : of the dropout masks.
    optimizer : its name, ``num_steps`` its updates, ``fields`` what is kept per parameter.
    model, plan : name, and text form of the plan that it was written under.
    batch : checksums of the last step's batch, by path.
    """

    step: int
    seed: int
    optimizer: str
    num_steps: int
    fields: tuple[str, ...]
    model: str
    plan: str
    batch: Mapping[str, int]


class _Writer(FileSystemWriter):
    """Writes under a temporary name, with checksums; the coordinator renames when all ranks are done."""

    def __init__(self, folder: Path, about: About, keep: int) -> None:
        self.folder, self.about, self.keep = folder, about, keep
        self.final = path_of(folder, about.step)
        self.temporary = folder / f".{self.final.name}.tmp"
        super().__init__(self.temporary, overwrite=True)

    def write_data(self, plan: Any, planner: Any) -> Any:
        future = super().write_data(plan, planner)
        for name in sorted({result.storage_data.relative_path for result in future.value()}):
            _write_checksum(self.temporary / name)
        return future

    def finish(self, metadata: Any, results: Any) -> None:
        super().finish(metadata, results)
        _write_checksum(self.temporary / ".metadata")
        _write_text(self.temporary / ABOUT, json.dumps(asdict(self.about), indent=1))
        if self.final.exists():
            # The same step again, after a restart from an older checkpoint.
            shutil.rmtree(self.final)
        os.replace(self.temporary, self.final)
        _write_text(self.folder / f".{_LATEST}.tmp", self.final.name)
        os.replace(self.folder / f".{_LATEST}.tmp", self.folder / _LATEST)
        _sync(self.folder)
        self._remove_old()

    def _remove_old(self) -> None:
        for step in complete_steps(self.folder)[self.keep :]:
            shutil.rmtree(path_of(self.folder, step), ignore_errors=True)
        for left in self.folder.glob(".step-*.tmp"):
            shutil.rmtree(left, ignore_errors=True)


class Checkpointer:
    """Saves and restores one rank's part of a run. All ranks call every method, in the same order.

    Parameters
    ----------
    executor : whose state is saved.
    folder : made if it does not exist; on a file system that all ranks see.
    keep : how many complete checkpoints stay.
    """

    def __init__(self, executor: Executor, folder: Path, keep: int = 2) -> None:
        if keep < 1:
            raise ValueError(f"at least one checkpoint must be kept, got keep={keep}")
        self.executor, self.folder, self.keep = executor, folder.resolve(), keep
        make_private(self.folder)
        self.several = executor.plan.num_ranks > 1
        # Writing goes on in a thread beside the next steps, so its messages need a group of their own.
        self.group = dist.new_group(backend="gloo") if self.several else None
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self.saving: Future[None] | None = None

    def save(self, step: int, batch: Mapping[str, int]) -> None:
        """Copy the state, and write it while training goes on; waits only for an earlier one still being written.

        Parameters
        ----------
        step : steps done.
        batch : checksums of the last one's batch, which rank 0 writes.

        Raises
        ------
        CheckpointError
            If the earlier one could not be written.
        """
        self.wait()
        executor = self.executor
        about = About(
            step,
            executor.seed,
            executor.optimizer.config.name,
            executor.optimizer.num_steps,
            fields(executor),
            executor.plan.model,
            executor.plan.to_text(),
            batch,
        )
        self.saving = self.thread.submit(self._write, take(executor), about)

    def _write(self, parts: dict[str, Part], about: About) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            writer = _Writer(self.folder, about, self.keep)
            save(
                parts,
                storage_writer=writer,
                planner=PartWriter(),
                process_group=self.group,
                no_dist=not self.several,
            )

    def wait(self) -> None:
        """Wait until what was saved is on the disk."""
        saving, self.saving = self.saving, None
        if saving is None:
            return
        try:
            saving.result()
        except Exception as error:
            raise CheckpointError(f"no checkpoint could be written to {self.folder}: {error}") from error

    def restore(self) -> tuple[int, list[str]]:
        """Continue from the newest complete checkpoint.

        Returns
        -------
        The next step, 0 if there is no checkpoint; and a sentence for each damaged one that was passed over.

        Raises
        ------
        CheckpointError
            If all are damaged, or they are of another model or optimizer.
        """
        damaged: list[str] = []
        for step in complete_steps(self.folder):
            folder = path_of(self.folder, step)
            problem = self._agree(self._check(folder))
            if problem is None:
                return self._read(folder), damaged
            damaged.append(problem)
        if damaged:
            raise CheckpointError(f"{self.folder} has no undamaged checkpoint: {'; '.join(damaged)}")
        return 0, []

    def _check(self, folder: Path) -> str | None:
        """Each rank checks some of the files."""
        rank, count = self.executor.mesh.rank, self.executor.plan.num_ranks
        return damage(folder, rank, count)

    def _agree(self, problem: str | None) -> str | None:
        if not self.several:
            return problem
        said: list[str | None] = [None] * self.executor.plan.num_ranks
        dist.all_gather_object(said, problem, group=self.group)
        return next((s for s in said if s is not None), None)

    def _read(self, folder: Path) -> int:
        about = read_about(folder)
        executor = self.executor
        own = executor.optimizer.config.name
        if about.num_steps and about.optimizer != own:
            raise CheckpointError(
                f"{folder} was written with optimizer {about.optimizer}, this run uses {own}; use "
                f"{about.optimizer}, or start a run of its own in another folder"
            )
        executor.seed = about.seed
        executor.optimizer.restore(about.num_steps, tuple(f for f in about.fields if f != PARAMS))
        target = Target(executor, about.fields)
        _load(folder, target.parts)
        target.finish()
        return about.step


def read_about(folder: Path) -> About:
    """What a checkpoint says of itself."""
    try:
        given = json.loads((folder / ABOUT).read_text())
        return About(**{**given, "fields": tuple(given["fields"])})
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise CheckpointError(f"{folder / ABOUT} is damaged: {error}") from error


def read_whole(folder: Path, field: str = PARAMS) -> dict[str, torch.Tensor]:
    """One field of a checkpoint, by default the parameters, as whole tensors by path, in one process.

    Raises
    ------
    CheckpointError
        If a file is missing or damaged.
    """
    if problem := damage(folder):
        raise CheckpointError(problem)
    known = _known(FileSystemReader(folder))
    parts = {}
    for key, entry in known.items():
        if key.startswith(f"{field}/"):
            shape = tuple(entry.size)
            parts[key] = Part(
                shape, torch.empty(shape, dtype=entry.properties.dtype), boxes(shape, {}, {}, {})
            )
    _load(folder, parts)
    return {key.removeprefix(f"{field}/"): part.tensor for key, part in parts.items()}


def damage(folder: Path, first: int = 0, every: int = 1) -> str | None:
    """What is wrong with the files ``first``, ``first + every``, ... of a checkpoint; None if nothing is."""
    sums = sorted(folder.glob(f"*{_CHECKSUM}"))
    if not (folder / f".metadata{_CHECKSUM}").is_file():
        return f"{folder / '.metadata'} is damaged: it has no checksum"
    for file in sums[first::every]:
        data = file.with_name(file.name.removesuffix(_CHECKSUM))
        if not data.is_file():
            return f"{data} is missing"
        size, crc = (int(x) for x in (*file.read_text().split(), "0", "0")[:2])
        if data.stat().st_size != size:
            return f"{data} is damaged: it has {data.stat().st_size} bytes, {size} were written"
        if _crc32(data) != crc:
            return f"{data} is damaged: its checksum is not the one written"
    return None


def _known(reader: FileSystemReader) -> dict[str, TensorStorageMetadata]:
    entries = reader.read_metadata().state_dict_metadata
    return {key: entry for key, entry in entries.items() if isinstance(entry, TensorStorageMetadata)}


def _load(folder: Path, parts: dict[str, Part]) -> None:
    reader = FileSystemReader(folder)
    known = _known(reader)
    for key, part in parts.items():
        if key not in known:
            raise CheckpointError(f"{folder} has no {key}; it is of another model")
        if tuple(known[key].size) != part.shape:
            raise CheckpointError(
                f"{key} has shape {tuple(known[key].size)} in {folder} and {part.shape} in this model"
            )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Every rank reads for itself: nothing needs to be agreed.
        load(dict(parts), storage_reader=reader, planner=PartReader(), no_dist=True)


def _crc32(file: Path) -> int:
    value = 0
    with file.open("rb") as stream:
        while piece := stream.read(1 << 22):
            value = zlib.crc32(piece, value)
    return value


def _write_checksum(file: Path) -> None:
    _write_text(file.with_name(file.name + _CHECKSUM), f"{file.stat().st_size} {_crc32(file)}")


def _write_text(file: Path, text: str) -> None:
    with file.open("w") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())


def _sync(folder: Path) -> None:
    """Make renames in a folder last; some systems cannot open one."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
