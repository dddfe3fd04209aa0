"""Pipeline schedules as values: what every pipeline rank computes, in which order.

A `Schedule` lists, for each pipeline rank, the actions it runs one after another. It says nothing about sends
and receives: these follow from the actions, since stage ``s`` needs the output of stage ``s - 1`` and the
gradient of stage ``s + 1``. The published schedules, the proof that one trains every microbatch exactly once
and cannot deadlock (`check`), and its evaluation in time (`dry_run`) are in `trainyard.job.schedules`.

A schedule without updates is one optimizer step: all stages are updated after the last action. One with updates
is a period of several: the update of a stage applies the gradients of the microbatches whose backward passes came
since the one before it. Several ranks may then have actions of one stage, for different microbatches (replicas).
Which versions of the weights there are, and how old they are, follows from the actions
(`trainyard.job.schedules.versions`).

References
----------
The action notation (``0F3``: stage 0, forward, microbatch 3) is the one of torch.distributed.pipelining. The
split of the backward into input and weight gradients: Qi et al., Zero Bubble Pipeline Parallelism, arXiv
2401.10241.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, cast, get_args

from trainyard.errors import TrainyardError
from trainyard.reading import shown
from trainyard.reading.arguments import WrongValueError

Kind = Literal["F", "B", "I", "W", "U"]
"""F forward; B full backward (gradients of inputs and weights); I only those of inputs; W of weights; U update."""

KINDS: tuple[Kind, ...] = get_args(Kind)

PASSES: tuple[Kind, ...] = ("F", "B", "I", "W")
"""The kinds of actions that compute something of a microbatch: all but the update."""

NO_MICROBATCH = -1

MOST_ACTIONS = 2**18
"""Most actions of all ranks together. Published schedules have at most about 130,000; to check so many takes seconds."""

_ACTION = re.compile(r"(\d{1,9})(?:([FBIW])(\d{1,9})|U)", re.ASCII)
_HEADER = re.compile(r"(\S+) stages=(\d{1,9}) microbatches=(\d{1,9})", re.ASCII)


class ScheduleError(TrainyardError, ValueError):
    """A schedule that does not train every microbatch exactly once, or deadlocks.

    Attributes
    ----------
    action : Action or None
        The action at fault; None when the fault is in no single action.
    """

    def __init__(self, action: Action | None, reason: str) -> None:
        super().__init__(reason if action is None else f"{action}: {reason}")
        self.action = action


@dataclass(frozen=True, slots=True, order=True)
class Action:
    """An action of one stage on one microbatch; ``0F3`` is the forward pass of microbatch 3 in stage 0, ``0U`` an update.

    Parameters
    ----------
    kind : {"F", "B", "I", "W", "U"}
        See `Kind`.
    stage, microbatch : int
        Both from 0. An update has no microbatch, and `NO_MICROBATCH` in its place.

    Raises
    ------
    WrongValueError
        On an unknown kind or a negative index.
    """

    kind: Kind
    stage: int
    microbatch: int = NO_MICROBATCH

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise WrongValueError(f"unknown kind of action {self.kind!r}; known: {', '.join(KINDS)}")
        is_update = self.kind == "U"
        if self.stage < 0 or (self.microbatch < 0) != is_update:
            raise WrongValueError(
                f"stage and microbatch count from 0, and an update has no microbatch; got {self.kind} with "
                f"{self.stage} and {self.microbatch}"
            )

    def __str__(self) -> str:
        return f"{self.stage}U" if self.kind == "U" else f"{self.stage}{self.kind}{self.microbatch}"


def parse_action(text: str) -> Action:
    """Read an action from its text form.

    Raises
    ------
    WrongValueError
        When `text` is not a stage, one of the letters F, B, I, W and a microbatch, nor a stage and U.
    """
    match = _ACTION.fullmatch(text.strip())
    if match is None:
        raise WrongValueError(
            f"{shown(text)} is not an action; write stage, kind ({', '.join(PASSES)}), microbatch, as in '0F3', or a "
            "stage and U, as in '0U'"
        )
    stage, kind, microbatch = match.groups()
    return Action("U", int(stage)) if kind is None else Action(cast(Kind, kind), int(stage), int(microbatch))


@dataclass(frozen=True)
class Schedule:
    """The actions of every pipeline rank, in the order in which the rank runs them.

    Parameters
    ----------
    name : str
        Which schedule it is, without spaces.
    num_stages, num_microbatches : int
        Stages of the whole pipeline, and microbatches of one run of the schedule.
    actions : tuple of tuple of Action
        One tuple per pipeline rank.

    Raises
    ------
    WrongValueError
        On an empty name or one with spaces, or a count below 1. Whether the actions make sense is for
        `check`.
    """

    name: str
    num_stages: int
    num_microbatches: int
    actions: tuple[tuple[Action, ...], ...]

    def __post_init__(self) -> None:
        if not self.name or self.name.split() != [self.name]:
            raise WrongValueError(f"a schedule's name is one word, got {self.name!r}")
        for what, count in (
            ("stages", self.num_stages),
            ("microbatches", self.num_microbatches),
            ("ranks", len(self.actions)),
        ):
            if count < 1:
                raise WrongValueError(f"a schedule has at least one of its {what}, got {count}")

    @property
    def num_ranks(self) -> int:
        """Number of pipeline ranks."""
        return len(self.actions)

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """Stages that `rank` owns, ascending.

        Raises
        ------
        WrongValueError
            When there is no such rank.
        """
        if not 0 <= rank < self.num_ranks:
            raise WrongValueError(f"no rank {rank}; schedule {self.name} has ranks 0 to {self.num_ranks - 1}")
        return tuple(sorted({action.stage for action in self.actions[rank]}))

    def ranks_of(self, stage: int) -> tuple[int, ...]:
        """Ranks that run `stage`, ascending; several take its microbatches in turn.

        Raises
        ------
        WrongValueError
            When no rank has an action of that stage.
        """
        if stage not in self._ranks_of:
            raise WrongValueError(
                f"no rank runs stage {stage}; schedule {self.name} has {self.num_stages} stages"
            )
        return self._ranks_of[stage]

    def rank_of(self, stage: int, microbatch: int) -> int:
        """Rank that runs `stage` on a microbatch.

        Raises
        ------
        WrongValueError
            When no rank has an action of that stage, or none of that microbatch.
        """
        ranks = self.ranks_of(stage)
        if len(ranks) == 1:
            return ranks[0]
        if (stage, microbatch) not in self._replica_of:
            raise WrongValueError(
                f"no rank runs microbatch {microbatch} in stage {stage} of schedule {self.name}"
            )
        return self._replica_of[stage, microbatch]

    def ranks_with(self, stages: Iterable[int]) -> tuple[int, ...]:
        """Ranks that run any of some stages, ascending."""
        return tuple(sorted({rank for stage in stages for rank in self.ranks_of(stage)}))

    @cached_property
    def has_updates(self) -> bool:
        """True if stages are updated between the actions, and not all of them after the last."""
        return any(action.kind == "U" for actions in self.actions for action in actions)

    @cached_property
    def _ranks_of(self) -> dict[int, tuple[int, ...]]:
        found: dict[int, tuple[int, ...]] = {}
        for rank in range(self.num_ranks):
            for stage in self.stages_of(rank):
                found[stage] = (*found.get(stage, ()), rank)
        return found

    @cached_property
    def _replica_of(self) -> dict[tuple[int, int], int]:
        """The ranks of the microbatches of replicated stages."""
        return {
            (action.stage, action.microbatch): rank
            for rank, actions in enumerate(self.actions)
            for action in actions
            if len(self._ranks_of[action.stage]) > 1
        }

    def to_text(self) -> str:
        """Write as text: a header, then a line of actions per rank; `parse_schedule` reads it back."""
        header = f"{self.name} stages={self.num_stages} microbatches={self.num_microbatches}"
        lines = (f"{rank}: {' '.join(map(str, actions))}" for rank, actions in enumerate(self.actions))
        return "\n".join((header, *lines)) + "\n"

    def __str__(self) -> str:
        return self.to_text()


def parse_schedule(text: str) -> Schedule:
    """Read a schedule from the text form of `Schedule.to_text`; blank lines are ignored.

    Raises
    ------
    WrongValueError
        On text of another form. The actions are read, not checked: see `check`.
    """
    # Words have spaces or ends of lines between them.
    if text.count(" ") + text.count("\n") > 2 * MOST_ACTIONS:
        raise WrongValueError(f"a schedule has at most {MOST_ACTIONS:,} actions, and this has more words")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    match = _HEADER.fullmatch(lines[0]) if lines else None
    if match is None:
        raise WrongValueError(
            f"a schedule's first line is 'NAME stages=N microbatches=N', got {shown(lines[0] if lines else '')}"
        )
    actions = []
    for rank, line in enumerate(lines[1:]):
        label, colon, rest = line.partition(":")
        if not colon or label != str(rank):
            raise WrongValueError(f"expected the line of rank {rank}, '{rank}: ACTIONS', got {shown(line)}")
        actions.append(tuple(parse_action(word) for word in rest.split()))
    return Schedule(match[1], int(match[2]), int(match[3]), tuple(actions))
