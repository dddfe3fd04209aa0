"""Checkpoints: folders that any plan can continue from, complete or absent.

All ranks write what they hold, each a file, under another name; the folder is renamed once everything is on the disk, so
that a crash at any moment leaves the older ones. What lies in it is numbers and JSON; see `saved` for its form.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from trainyard.job.run.best import Evaluated, KeepBest
from trainyard.job.run.checkpoint.contents import TensorEntry, read_contents, read_parts
from trainyard.job.run.checkpoint.module_record import ModuleRecord
from trainyard.job.run.checkpoint.same_run import PARAMS, ModelIdentity, check_model, check_settings
from trainyard.job.run.checkpoint.saved import (
    About,
    FileEntry,
    about_in,
    damage,
    path_of,
    read_run,
    saved_steps,
    sync_folder,
    tensor_file,
    write_run,
)
from trainyard.job.run.checkpoint.snapshot import Part, Target, fields, take
from trainyard.job.run.checkpoint.tensor_files import Place, write_tensors
from trainyard.job.run.errors import CheckpointError, NonFiniteError, NotSavedError
from trainyard.job.run.step.executor import Executor
from trainyard.private import make_private
from trainyard.program.boxes import Box, boxes

_ASIDE = ".old"  # ends the name of a checkpoint while another one takes its place


@dataclass(frozen=True)
class RunFacts:
    """Facts that are the same in all checkpoints of a run."""

    settings: Mapping[str, Any]
    options: Mapping[str, Any]
    identity: ModelIdentity
    module: ModuleRecord


@dataclass(frozen=True)
class _Share:
    """The files that one rank wrote, or the reason why it did not."""

    file: str
    entry: FileEntry | None
    tensors: Mapping[str, TensorEntry]
    numbers: Mapping[str, Any]
    problem: Exception | None = None


class Checkpointer:
    """Saves and restores one rank's part of a run. All ranks call every method, in the same order.

    Parameters
    ----------
    executor : whose state is saved.
    folder : made if it does not exist; on a file system that all ranks see.
    run : what the checkpoints say of it, and what those that are restored must say.
    keep : how many whole checkpoints stay.
    keep_best : which stay beside them.
    """

    def __init__(
        self,
        executor: Executor,
        folder: Path,
        run: RunFacts,
        keep: int = 2,
        keep_best: KeepBest | None = None,
    ) -> None:
        if keep < 1:
            raise ValueError(f"at least one checkpoint must be kept, got keep={keep}")
        self.executor, self.folder, self.run, self.keep = executor, folder.resolve(), run, keep
        self.keep_best = keep_best
        make_private(self.folder)
        self.several = executor.plan.num_ranks > 1
        self.passed_over: set[int] = set()
        if executor.groups.rank == 0:
            self._remove_parts()
        # Writing goes on in a thread beside the next steps, so its messages need a group of their own.
        self.group = dist.new_group(backend="gloo") if self.several else None
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self.saving: Future[None] | None = None

    def _remove_parts(self) -> None:
        """Set right what a crash left of checkpoints that were being written, or replaced."""
        for left in (*self.folder.glob(".step-*.tmp"), *self.folder.glob(f".step-*{_ASIDE}")):
            final = self.folder / left.name[1:].removesuffix(_ASIDE)
            if left.suffix == _ASIDE and _is_folder(left) and not os.path.lexists(final):
                os.replace(left, final)
            _remove(left)

    def save(
        self, step: int, batch: Mapping[str, int], position: str, evaluations: tuple[Evaluated, ...]
    ) -> None:
        """Copy the state, and write it while training goes on; waits only for an earlier one still being written.

        Parameters
        ----------
        step : steps done.
        batch : checksums of the last one's batch, which rank 0 writes.
        position : in the data after it, which rank 0 writes.
        evaluations : of the run so far.

        Raises
        ------
        NotSavedError, NonFiniteError
            If the earlier one could not be written.
        """
        self.wait()
        executor = self.executor
        about = About(
            step,
            executor.optimizer.num_steps,
            fields(executor),
            self.run.settings,
            self.run.options,
            self.run.identity.program,
            self.run.identity.torch,
            executor.plan.to_text(),
            batch,
            position,
            evaluations,
            executor.optimizer.described,
            executor.optimizer.numbers(),
        )
        self.saving = self.thread.submit(self._write, take(executor, about.fields), about)

    def wait(self) -> None:
        """Wait until what was saved is on the disk.

        Raises
        ------
        NotSavedError, NonFiniteError
            If it could not be written; the ones before it are as they were.
        """
        saving, self.saving = self.saving, None
        if saving is None:
            return
        try:
            saving.result()
        except NonFiniteError:
            raise
        except Exception as error:
            raise NotSavedError(f"no checkpoint could be written to {self.folder}: {error}") from error

    def _write(self, parts: dict[str, Part], about: About) -> None:
        """Write this rank's share, and learn whether all of them came to a checkpoint."""
        temporary = self.folder / f".{path_of(self.folder, about.step).name}.tmp"
        share = self._write_share(temporary, parts, about)
        rank, shares = self.executor.groups.rank, [share]
        if self.several:
            gathered: list[Any] | None = [None] * self.executor.plan.num_ranks if rank == 0 else None
            dist.gather_object(share, gathered, dst=0, group=self.group)
            shares = gathered or []
        outcome: list[Any] = [self._commit(temporary, shares, about) if rank == 0 else None]
        if self.several:
            dist.broadcast_object_list(outcome, src=0, group=self.group)
        if outcome[0] is not None:
            raise outcome[0]

    def _write_share(self, temporary: Path, parts: dict[str, Part], about: About) -> _Share:
        name = tensor_file(self.executor.groups.rank)
        try:
            self._check_finite(parts, about)
            pieces = {
                _name(key, part, box): (key, part, box) for key, part in parts.items() for box in part.boxes
            }
            if not pieces:
                return _Share(name, None, {}, about.numbers)
            temporary.mkdir(exist_ok=True)
            tensors = {n: box.of(part.tensor) for n, (_, part, box) in pieces.items()}
            entry, starts = write_tensors(temporary / name, tensors)
        except Exception as error:
            return _Share(name, None, {}, {}, error)
        found = {key: TensorEntry(part.tensor.dtype, part.shape, []) for key, part in parts.items()}
        for n, (key, _, box) in pieces.items():
            found[key].places.append(Place(name, starts[n], box.offsets, box.sizes))
        return _Share(name, entry, found, about.numbers)

    def _check_finite(self, parts: Mapping[str, Part], about: About) -> None:
        """Check that trained tensors are finite; buffers and frozen parameters need not be."""
        trained = {path for state in self.executor.state.buckets.values() for path in state.bucket.paths}
        for key, part in parts.items():
            field, _, path = key.partition("/")
            if path in trained and part.tensor.numel() and not _is_finite(part.tensor):
                raise NonFiniteError(
                    f"after step {about.step}, {field} of {path} is not finite, so no checkpoint is written of it; those "
                    f"before are as they were in {self.folder}"
                )

    def _commit(self, temporary: Path, shares: list[_Share], about: About) -> Exception | None:
        """Make what all ranks wrote count; returns why it does not."""
        problem = next((share.problem for share in shares if share.problem is not None), None)
        try:
            if problem is None:
                temporary.mkdir(exist_ok=True)
                numbers = {key: value for share in shares for key, value in share.numbers.items()}
                about_run = {**asdict(about), "numbers": numbers, **self.run.module.as_dict()}
                write_run(temporary, {**about_run, **_contents(shares)})
                _put_in_place(temporary, path_of(self.folder, about.step))
                self.passed_over.discard(about.step)
                self._remove_old(about.evaluations)
        except Exception as error:
            problem = error
        if problem is not None:
            shutil.rmtree(temporary, ignore_errors=True)
        return problem

    def _remove_old(self, evaluations: tuple[Evaluated, ...]) -> None:
        """Keep the newest and the best; what was found damaged does not count among them, and goes, too."""
        whole = [step for step in saved_steps(self.folder) if step not in self.passed_over]
        there = [evaluated for evaluated in evaluations if evaluated[0] in whole]
        best = [] if self.keep_best is None else self.keep_best.steps(there)
        for step in (*(step for step in whole[self.keep :] if step not in best), *self.passed_over):
            _remove(path_of(self.folder, step))
        self.passed_over.intersection_update(saved_steps(self.folder))  # what could not be removed

    def restore(self) -> tuple[About | None, list[str]]:
        """Continue from the newest whole checkpoint.

        Returns
        -------
        What it says, None if there is no checkpoint; and a sentence for each damaged one that was passed over.

        Raises
        ------
        CheckpointError
            If all are damaged, or they are of another run or model.
        """
        damaged: list[str] = []
        for step in self._from_first(saved_steps(self.folder)):
            checkpoint = path_of(self.folder, step)
            problem = self._agree(damage(checkpoint, self.executor.groups.rank, self.executor.plan.num_ranks))
            if problem is None:
                return self._read(checkpoint), damaged
            damaged.append(f"passed over: {problem}")
            self.passed_over.add(step)
        if damaged:
            raise CheckpointError(f"{self.folder} has no undamaged checkpoint: {'; '.join(damaged)}")
        return None, []

    def _from_first(self, steps: list[int]) -> list[int]:
        """Return what rank 0 sees: a shared file system may show others something else for a moment."""
        said: list[Any] = [steps]
        if self.several:
            dist.broadcast_object_list(said, src=0, group=self.group)
        return list(said[0])

    def _agree(self, problem: str | None) -> str | None:
        if not self.several:
            return problem
        said: list[str | None] = [None] * self.executor.plan.num_ranks
        dist.all_gather_object(said, problem, group=self.group)
        return next((s for s in said if s is not None), None)

    def _read(self, checkpoint: Path) -> About:
        check_goes_on_as(checkpoint, self.run.settings, self.run.identity)
        about, entries = _described(checkpoint)
        optimizer = self.executor.optimizer
        if about.optimizer != optimizer.described:
            raise CheckpointError(
                f"{checkpoint} is of a run with the optimizer {about.optimizer}, and this one is {optimizer.described}; "
                "make the one of that run, or start a run of its own in another folder"
            )
        if about.fields != fields(self.executor):
            raise CheckpointError(
                f"{checkpoint} keeps {', '.join(about.fields)}, which this optimizer does not"
            )
        try:
            optimizer.restore(about.num_updates, about.numbers)
        except (TypeError, ValueError, KeyError) as error:
            raise CheckpointError(
                f"{checkpoint} cannot be read: numbers of the optimizer: {error}"
            ) from error
        written = {key: (entry.dtype, entry.shape) for key, entry in entries.items()}
        target = Target(self.executor, about.fields, written)
        read_parts(checkpoint, entries, target.parts)
        target.finish()
        return about


def read_whole(checkpoint: Path, field: str = PARAMS) -> dict[str, torch.Tensor]:
    """One field of a checkpoint, by default the parameters, as whole tensors by path, in one process.

    Raises
    ------
    CheckpointError
        If a file is missing or damaged.
    """
    if problem := damage(checkpoint):
        raise CheckpointError(problem)
    _, entries = _described(checkpoint)
    parts = {
        key: Part(e.shape, torch.empty(e.shape, dtype=e.dtype), boxes(e.shape, {}, {}))
        for key, e in entries.items()
        if key.startswith(f"{field}/")
    }
    read_parts(checkpoint, entries, parts)
    return {key.removeprefix(f"{field}/"): part.tensor for key, part in parts.items()}


def check_goes_on_as(
    checkpoint: Path, settings: Mapping[str, Any] | None, identity: ModelIdentity | None = None
) -> None:
    """Check that a run may continue from a checkpoint, as far as that run is known.

    Raises
    ------
    CheckpointError
        If the checkpoint is of another run or model.
    """
    about, entries = _described(checkpoint)
    if settings is not None:
        check_settings(about.settings, settings, checkpoint)
    if identity is not None:
        shapes = {key: entry.shape for key, entry in entries.items()}
        check_model(shapes, about.program, about.torch, identity, checkpoint)


def _described(checkpoint: Path) -> tuple[About, dict[str, TensorEntry]]:
    described = read_run(checkpoint)
    return about_in(described, checkpoint), read_contents(described, checkpoint)


def _contents(shares: list[_Share]) -> dict[str, Any]:
    """Files and tensors of all ranks, as ``run.json`` has them."""
    tensors: dict[str, dict[str, Any]] = {}
    for share in shares:
        for key, entry in share.tensors.items():
            said = tensors.setdefault(key, {**entry.as_dict(), "boxes": []})
            said["boxes"] += entry.as_dict()["boxes"]
    files = {
        share.file: {"bytes": share.entry.num_bytes, "crc32": share.entry.crc32}
        for share in shares
        if share.entry is not None
    }
    return {"files": files, "tensors": tensors}


def _put_in_place(temporary: Path, final: Path) -> None:
    """Give a checkpoint its name; one that has it is there until then, for a crash to leave one of both."""
    aside = final.with_name(f".{final.name}{_ASIDE}")
    _remove(aside)
    if os.path.lexists(final):
        # The same step again, after a restart from an older checkpoint.
        os.replace(final, aside)
    try:
        os.replace(temporary, final)
    except OSError:
        if os.path.lexists(aside):
            os.replace(aside, final)
        raise
    sync_folder(final.parent)
    _remove(aside)


def _remove(path: Path) -> None:
    """Remove a folder, or what has its name instead, as far as that can be done; nothing where a link leads."""
    if _is_folder(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def _is_folder(path: Path) -> bool:
    """Return whether a path is a folder itself, and no link to one."""
    return path.is_dir() and not path.is_symlink()


def _name(key: str, part: Part, box: Box) -> str:
    """Name a box in its file; with the tensor's own name if the box is all of it."""
    if box.sizes == part.shape:
        return key
    return f"{key}[{', '.join(f'{o}:{o + s}' for o, s in zip(box.offsets, box.sizes, strict=True))}]"


def _is_finite(tensor: torch.Tensor) -> bool:
    low, high = torch.aminmax(tensor)
    return bool(low.isfinite() and high.isfinite())
