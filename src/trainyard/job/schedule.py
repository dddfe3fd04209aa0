"""Pipeline schedules as values: what every pipeline rank computes, in which order.

A `Schedule` lists, for each pipeline rank, the actions it runs one after another. It says nothing about sends
and receives: these follow from the actions, since stage ``s`` needs the output of stage ``s - 1`` and the
gradient of stage ``s + 1``. The published schedules, the proof that one trains every microbatch exactly once
and cannot deadlock (`check`), and its evaluation in time (`dry_run`) are in `trainyard.job.schedules`.

References
----------
The action notation (``0F3``: stage 0, forward, microbatch 3) is the one of torch.distributed.pipelining. The
split of the backward into input and weight gradients: Qi et al., Zero Bubble Pipeline Parallelism, arXiv
2401.10241.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, cast, get_args

from trainyard.reading import shown

Kind = Literal["F", "B", "I", "W"]
"""F forward; B full backward (gradients of inputs and weights); I only those of inputs; W of weights."""

KINDS: tuple[Kind, ...] = get_args(Kind)

MOST_ACTIONS = 2**18
"""Of all ranks. Published schedules have at most about 130,000; checking so many takes some seconds."""

_ACTION = re.compile(r"(\d{1,9})([FBIW])(\d{1,9})", re.ASCII)
_HEADER = re.compile(r"(\S+) stages=(\d{1,9}) microbatches=(\d{1,9})", re.ASCII)


class ScheduleError(ValueError):
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
    """One computation of one stage on one microbatch; written ``0F3`` for stage 0, forward, microbatch 3.

    Parameters
    ----------
    kind : {"F", "B", "I", "W"}
        See `Kind`.
    stage, microbatch : int
        Both from 0.

    Raises
    ------
    ValueError
        On an unknown kind or a negative index.
    """

    kind: Kind
    stage: int
    microbatch: int

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"unknown kind of action {self.kind!r}; the known ones are {', '.join(KINDS)}")
        if self.stage < 0 or self.microbatch < 0:
            raise ValueError(f"stage and microbatch count from 0, got {self.stage} and {self.microbatch}")

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"


def parse_action(text: str) -> Action:
    """Read an action from its text form.

    Raises
    ------
    ValueError
        When `text` is not a stage, one of the letters F, B, I, W and a microbatch.
    """
    match = _ACTION.fullmatch(text.strip())
    if match is None:
        raise ValueError(
            f"{shown(text)} is not an action; write stage, kind ({', '.join(KINDS)}), microbatch, as in '0F3'"
        )
    stage, kind, microbatch = match.groups()
    return Action(cast(Kind, kind), int(stage), int(microbatch))


@dataclass(frozen=True)
class Schedule:
    """The actions of every pipeline rank, in the order in which the rank runs them.

    Parameters
    ----------
    name : str
        Which schedule it is, without spaces.
    num_stages, num_microbatches : int
        Stages of the whole pipeline, and microbatches of one step.
    actions : tuple of tuple of Action
        One tuple per pipeline rank.

    Raises
    ------
    ValueError
        On an empty name or one with spaces, or a count below 1. Whether the actions make sense is for
        `check`.
    """

    name: str
    num_stages: int
    num_microbatches: int
    actions: tuple[tuple[Action, ...], ...]

    def __post_init__(self) -> None:
        if not self.name or self.name.split() != [self.name]:
            raise ValueError(f"a schedule's name is one word, got {self.name!r}")
        for what, count in (
            ("stages", self.num_stages),
            ("microbatches", self.num_microbatches),
            ("ranks", len(self.actions)),
        ):
            if count < 1:
                raise ValueError(f"a schedule has at least one of its {what}, got {count}")

    @property
    def num_ranks(self) -> int:
        """Number of pipeline ranks."""
        return len(self.actions)

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """Stages that `rank` owns, ascending.

        Raises
        ------
        ValueError
            When there is no such rank.
        """
        if not 0 <= rank < self.num_ranks:
            raise ValueError(f"no rank {rank}; schedule {self.name} has ranks 0 to {self.num_ranks - 1}")
        return tuple(sorted({action.stage for action in self.actions[rank]}))

    def rank_of(self, stage: int) -> int:
        """Rank that owns `stage`.

        Raises
        ------
        ValueError
            When no rank has an action of that stage.
        """
        if stage not in self._rank_of:
            raise ValueError(f"no rank runs stage {stage}; schedule {self.name} has {self.num_stages} stages")
        return self._rank_of[stage]

    @cached_property
    def _rank_of(self) -> dict[int, int]:
        # The first that has an action of a stage, where several do.
        of_ranks = reversed(list(enumerate(self.actions)))
        return {action.stage: rank for rank, actions in of_ranks for action in actions}

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
    ValueError
        On text of another form. The actions are read, not checked: see `check`.
    """
    # Words have spaces or ends of lines between them.
    if text.count(" ") + text.count("\n") > 2 * MOST_ACTIONS:
        raise ValueError(f"a schedule has at most {MOST_ACTIONS:,} actions, and this has more words")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    match = _HEADER.fullmatch(lines[0]) if lines else None
    if match is None:
        raise ValueError(
            f"a schedule's first line is 'NAME stages=N microbatches=N', got {shown(lines[0] if lines else '')}"
        )
    actions = []
    for rank, line in enumerate(lines[1:]):
        label, colon, rest = line.partition(":")
        if not colon or label != str(rank):
            raise ValueError(f"expected the line of rank {rank}, '{rank}: ACTIONS', got {shown(line)}")
        actions.append(tuple(parse_action(word) for word in rest.split()))
    return Schedule(match[1], int(match[2]), int(match[3]), tuple(actions))
