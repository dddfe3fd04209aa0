"""A collective as a program of sends: in short, in full, and what each rank holds after it.

In short it is an `Algorithm`: phases of rounds in which the same positions send to each other. Its cost needs no more.
In full it is a `CollectiveProgram`: every send of every round, with the ranks and the chunks of the data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = [
    "Algorithm",
    "CollectiveProgram",
    "Ints",
    "Pattern",
    "Phase",
    "Send",
    "check_program",
    "list_pairs",
]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Pattern:
    """Sends that happen at once.

    Parameters
    ----------
    sources, targets
        Positions, shape ``(num_sends,)``.
    shares
        Share of the data that each carries, shape ``(num_sends,)``.
    all_pairs
        Rows of positions, shape ``(num_rows, size)``, where every member of a row sends the same share to every other
        one of its row. `sources` and `targets` are then empty, because listing them is slow for large groups.
    """

    sources: Ints
    targets: Ints
    shares: Floats
    all_pairs: Ints | None = None

    def listed(self) -> Pattern:
        """The same sends without `all_pairs`, in the order of `list_pairs`."""
        if self.all_pairs is None:
            return self
        sources, targets = list_pairs(self.all_pairs)
        return Pattern(sources, targets, np.full(len(sources), self.shares[0]))


def list_pairs(rows: Ints) -> tuple[Ints, Ints]:
    """Every ordered pair of different members of each row.

    Parameters
    ----------
    rows
        Members, shape ``(num_rows, size)``.

    Returns
    -------
    sources, targets : ndarray
        Shape ``(num_rows * size * (size - 1),)``.
    """
    size = rows.shape[1]
    apart = ~np.eye(size, dtype=bool)
    sources = np.repeat(rows[:, :, None], size, axis=2)[:, apart].ravel()
    targets = np.repeat(rows[:, None, :], size, axis=1)[:, apart].ravel()
    return sources, targets


@dataclass(frozen=True, eq=False)
class Phase:
    """Rounds with the same sends, except for the chunks that these carry.

    Parameters
    ----------
    pattern
        The sends of each round.
    num_rounds
        Number of rounds.
    adds
        Whether a target adds what it gets to what it has; otherwise it replaces it.
    chunks
        From the number of a round to the chunks of each send, shape ``(num_sends, num_chunks)``. A send whose chunks
        are negative is left out of that round.
    """

    pattern: Pattern
    num_rounds: int
    adds: bool
    chunks: Callable[[int], Ints]


@dataclass(frozen=True, eq=False)
class Algorithm:
    """A program of sends for a collective of a group, over positions 0 ... n-1.

    Parameters
    ----------
    phases
        One after another.
    num_owners
        Positions that own data: 0 ... num_owners-1.
    parts
        Share of the data of each chunk of an owner; chunk ``owner * len(parts) + part`` is the owner's. In an
        all_to_all, part ``p`` is for position ``p``.
    """

    phases: tuple[Phase, ...]
    num_owners: int
    parts: tuple[float, ...]

    def repeats(self) -> dict[Pattern, int]:
        """Count each pattern over all phases, in the order in which patterns first come."""
        counts: dict[Pattern, int] = {}
        for phase in self.phases:
            counts[phase.pattern] = counts.get(phase.pattern, 0) + phase.num_rounds
        return counts

    def program(self, kind: str, name: str, ranks: list[int], num_bytes: float) -> CollectiveProgram:
        """The program of sends in full.

        Parameters
        ----------
        kind, name
            What it does, and how.
        ranks
            Rank at each position.
        num_bytes
            As `trainyard.cost.collectives.collective_cost` counts them.

        Returns
        -------
        CollectiveProgram
            On these ranks.
        """
        owners, parts = range(self.num_owners), range(len(self.parts))
        rounds = (
            _sends(phase, number, ranks, num_bytes)
            for phase in self.phases
            for number in range(phase.num_rounds)
        )
        return CollectiveProgram(
            kind,
            name,
            tuple(ranks),
            chunk_bytes=tuple(share * num_bytes for share in self.parts) * self.num_owners,
            chunk_owner=tuple(owner for owner in owners for _ in parts),
            chunk_target=tuple(parts) * self.num_owners,
            rounds=tuple(rounds),
        )


def _sends(phase: Phase, number: int, ranks: list[int], num_bytes: float) -> tuple[Send, ...]:
    """The sends of one round of a phase."""
    pattern = phase.pattern.listed()
    columns = (pattern.sources, pattern.targets, pattern.shares * num_bytes, phase.chunks(number))
    return tuple(
        Send(ranks[source], ranks[target], size, tuple(chunks), phase.adds)
        for source, target, size, chunks in zip(*(column.tolist() for column in columns), strict=True)
        if chunks[0] >= 0
    )


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
        How, one of ``trainyard.cost.collectives.ALGORITHMS[kind]``.
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


def _before(program: CollectiveProgram) -> npt.NDArray[np.int64]:
    """Count the contributions of each rank to a chunk at the start: (rank, chunk, contributor)."""
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
    """Return the (rank, chunk) that matter at the end, and the contributions (chunk, contributor) wanted there."""
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
