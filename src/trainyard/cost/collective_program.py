"""A collective as a program of sends, and what each rank holds after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

__all__ = ["CollectiveProgram", "Send", "check_program"]


@dataclass(frozen=True)
class Send:
    """One message.

    Parameters
    ----------
    source_rank, target_rank
        Ranks.
    num_bytes
        Size of the message.
    chunks
        The slices of the data that it carries, by index.
    adds
        Whether the target adds what it gets to what it has; otherwise it replaces it.
    """

    source_rank: int
    target_rank: int
    num_bytes: float
    chunks: tuple[int, ...]
    adds: bool


@dataclass(frozen=True)
class CollectiveProgram:
    """Rounds of sends; the sends of a round read what was there before it, and it ends with the last of them.

    Parameters
    ----------
    kind
        What it does, one of `trainyard.cost.collectives.KINDS`.
    algorithm
        How.
    ranks
        Participants; the first is the root, and the last the target of a send.
    chunk_bytes
        Size of each chunk of the data.
    chunk_owner
        Position (in `ranks`) of the rank that a chunk comes from (all_gather, all_to_all) or ends at
        (reduce_scatter); without meaning for the others.
    chunk_target
        Position of the rank that a chunk ends at in an all_to_all; without meaning for the others.
    rounds
        The sends.
    """

    kind: str
    algorithm: str
    ranks: tuple[int, ...]
    chunk_bytes: tuple[float, ...]
    chunk_owner: tuple[int, ...]
    chunk_target: tuple[int, ...]
    rounds: tuple[tuple[Send, ...], ...]

    def on(self, ranks: Sequence[int]) -> CollectiveProgram:
        """The same program on other ranks.

        Parameters
        ----------
        ranks
            Rank for each position.

        Returns
        -------
        CollectiveProgram
            With every rank replaced.
        """
        new = {old: int(rank) for old, rank in zip(self.ranks, ranks, strict=True)}
        rounds = tuple(
            tuple(
                replace(send, source_rank=new[send.source_rank], target_rank=new[send.target_rank])
                for send in sends
            )
            for sends in self.rounds
        )
        return replace(self, ranks=tuple(new.values()), rounds=rounds)


def _before(program: CollectiveProgram) -> npt.NDArray[np.int64]:
    """How often each rank has each rank's contribution to each chunk: (rank, chunk, contributor), at the "
    "start."""
    num_ranks, num_chunks = len(program.ranks), len(program.chunk_bytes)
    held = np.zeros((num_ranks, num_chunks, num_ranks), dtype=np.int64)
    everyone, owner = np.arange(num_ranks), np.array(program.chunk_owner, dtype=np.int64)
    if program.kind in ("all_reduce", "reduce_scatter"):
        held[everyone, :, everyone] = 1
    elif program.kind in ("all_gather", "all_to_all"):
        held[owner, np.arange(num_chunks), owner] = 1
    else:
        held[0, :, 0] = 1
    return held


def _wanted(program: CollectiveProgram) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
    """Which (rank, chunk) matter at the end, and the contributions (chunk, contributor) wanted there."""
    num_ranks, num_chunks = len(program.ranks), len(program.chunk_bytes)
    matters = np.ones((num_ranks, num_chunks), dtype=bool)
    contributions = np.zeros((num_chunks, num_ranks), dtype=np.int64)
    chunks, owner = np.arange(num_chunks), np.array(program.chunk_owner, dtype=np.int64)
    target = np.array(program.chunk_target, dtype=np.int64)
    everyone = np.arange(num_ranks)[:, None]
    if program.kind in ("all_reduce", "reduce_scatter"):
        contributions[:] = 1
        if program.kind == "reduce_scatter":
            matters = everyone == owner[None, :]
    elif program.kind in ("all_gather", "all_to_all"):
        contributions[chunks, owner] = 1
        if program.kind == "all_to_all":
            matters = everyone == target[None, :]
    else:
        contributions[:, 0] = 1
        if program.kind == "send":
            matters = np.broadcast_to(everyone == num_ranks - 1, matters.shape)
    return matters, contributions


def check_program(program: CollectiveProgram) -> list[str]:
    """Run a program symbolically and compare what the ranks hold with what the collective promises.

    Parameters
    ----------
    program
        The program.

    Returns
    -------
    list of str
        What is wrong: chunks that miss a contribution or have it twice, sends to oneself, sends of nothing,
        sizes that differ from the chunks they carry. Empty if the program is correct.
    """
    wrong: list[str] = []
    held = _before(program)
    position = {rank: index for index, rank in enumerate(program.ranks)}
    for number, sends in enumerate(program.rounds):
        before = held.copy()
        written: set[tuple[int, int]] = set()
        for send in sends:
            source, target, chunks = position[send.source_rank], position[send.target_rank], list(send.chunks)
            size = sum(program.chunk_bytes[chunk] for chunk in chunks)
            if source == target or not chunks:
                wrong.append(f"round {number}: {send} goes nowhere or carries nothing")
            if abs(size - send.num_bytes) > 1e-9 * max(1.0, size):
                wrong.append(f"round {number}: {send} carries chunks of {size} bytes")
            if not before[source, chunks].any(axis=1).all():
                wrong.append(f"round {number}: {send} carries a chunk that its source does not have")
            if send.adds:
                held[target, chunks] += before[source, chunks]
            else:
                if any((target, chunk) in written for chunk in chunks):
                    wrong.append(f"round {number}: {send} replaces what another send of the round wrote")
                held[target, chunks] = before[source, chunks]
            written.update((target, chunk) for chunk in chunks)
    matters, contributions = _wanted(program)
    bad = matters & (held != contributions[None]).any(axis=2)
    wrong += [
        f"rank {program.ranks[rank]} holds chunk {chunk} wrongly at the end"
        for rank, chunk in np.argwhere(bad)
    ]
    return wrong
