"""Calls: what a pipeline rank runs in a step, in order, with the messages between stages that belong to each."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import heappop, heappush
from typing import Literal, NamedTuple

import torch

from trainyard.job.lower.pieces import Layout, Piece, Shape, pieces
from trainyard.job.plan import Plan
from trainyard.job.schedule import Action, Kind, Schedule
from trainyard.job.schedules import WeightUse, weight_uses


@dataclass(frozen=True)
class Transfer:
    """A value that one stage sends to another after an action, before an action of the other.

    Attributes
    ----------
    value : name of the value.
    source, target : stages.
    after, before : kinds of the actions.
    dtype, shape : of the whole value.
    have, need : how it lies where it is made, and where it is taken.
    """

    value: str
    source: int
    target: int
    after: Kind
    before: Kind
    dtype: str
    shape: Shape
    have: Layout
    need: Layout

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """Pieces that ranks of the one stage send to ranks of the other."""
        return pieces(self.shape, self.have, self.need)

    def received_bytes(self, rank: int) -> int:
        """Bytes that a rank of the target's mesh receives."""
        return math.prod(self.need.shape_of_part(self.shape, rank)) * self._element_bytes

    @cached_property
    def sent_bytes(self) -> int:
        """Most that one rank sends."""
        return self._most("sender")

    @cached_property
    def moved_bytes(self) -> int:
        """Most that one rank sends or gets from others."""
        return max(self.sent_bytes, self._most("receiver"))

    def _most(self, end: Literal["sender", "receiver"]) -> int:
        of_rank: Counter[int] = Counter()
        for piece in self.pieces:
            of_rank[getattr(piece, end)] += math.prod(piece.sizes)
        return max(of_rank.values(), default=0) * self._element_bytes

    @property
    def _element_bytes(self) -> int:
        return int(getattr(torch, self.dtype).itemsize)

    def peers(self, plan: Plan, source: int, target: int) -> list[tuple[int, int]]:
        """The ranks of one pipeline rank, and those of another to which they send."""
        senders, receivers = plan.ranks(source), plan.ranks(target)
        return list(dict.fromkeys((senders[p.sender], receivers[p.receiver]) for p in self.pieces))


class Delivery(NamedTuple):
    """A transfer, by its index, of one microbatch."""

    transfer: int
    microbatch: int


def is_handed_over(schedule: Schedule, transfer: Transfer) -> bool:
    """True if both stages are on one rank, so that nothing is sent."""
    return schedule.ranks_of(transfer.source) == schedule.ranks_of(transfer.target)


def rank_pairs(schedule: Schedule, transfer: Transfer) -> list[tuple[int, int]]:
    """The rank that has the value and the one that needs it, of every microbatch."""
    ranks = schedule.ranks_of(transfer.source), schedule.ranks_of(transfer.target)
    if len(ranks[0]) == len(ranks[1]) == 1:
        return [(ranks[0][0], ranks[1][0])] * schedule.num_microbatches
    microbatches = range(schedule.num_microbatches)
    return [
        (schedule.rank_of(transfer.source, k), schedule.rank_of(transfer.target, k)) for k in microbatches
    ]


def ends_of(schedule: Schedule, transfers: Sequence[Transfer], delivery: Delivery) -> tuple[int, int]:
    """The rank that sends a delivery, and the one that receives it."""
    transfer, microbatch = transfers[delivery.transfer], delivery.microbatch
    return schedule.rank_of(transfer.source, microbatch), schedule.rank_of(transfer.target, microbatch)


class StageUpdate(NamedTuple):
    """An update of one stage in the middle of a step: all that run the same graph.

    Attributes
    ----------
    num_microbatches : of which the gradients are, on all ranks of the stage together.
    in_place : whether no microbatch needs the weights as they were.
    """

    stage: int
    num_microbatches: int
    in_place: bool


@dataclass(frozen=True)
class Call:
    """One run of an action's graph.

    Attributes
    ----------
    posts : deliveries from other ranks that the rank is ready to receive from now on, in the order in which their
        sender sends them.
    receives : deliveries that have to be there before the graph runs.
    sends : deliveries that leave when it has run. To a stage of the same rank the value is only handed over.
    arrived : deliveries of earlier calls to other ranks that have arrived once ``receives`` are there: what is received
        was sent after them. The rank need not hold their values any longer.
    weights : which version of the weights of its stage it uses.
    """

    action: Action
    posts: tuple[Delivery, ...]
    receives: tuple[Delivery, ...]
    sends: tuple[Delivery, ...]
    weights: WeightUse
    arrived: tuple[Delivery, ...] = ()

    @property
    def update(self) -> StageUpdate:
        """The update that this call runs, if it is one."""
        return StageUpdate(self.action.stage, self.weights.num_applied, self.weights.is_last)


def make_calls(schedule: Schedule, transfers: Sequence[Transfer]) -> tuple[tuple[Call, ...], ...]:
    """The calls of every pipeline rank.

    A rank posts what its next action receives one action ahead (updates not counted), and before it all that the same
    sender sends earlier: messages between two ranks keep their order.
    """
    leaving: dict[tuple[int, Kind], list[int]] = {}
    arriving: dict[tuple[int, Kind], list[int]] = {}
    for index, transfer in enumerate(transfers):
        leaving.setdefault((transfer.source, transfer.after), []).append(index)
        if not is_handed_over(schedule, transfer):
            arriving.setdefault((transfer.target, transfer.before), []).append(index)
    sent: dict[tuple[int, int], deque[Delivery]] = {}
    for actions in schedule.actions:
        for action in actions:
            for index in leaving.get((action.stage, action.kind), ()):
                delivery = Delivery(index, action.microbatch)
                sent.setdefault(ends_of(schedule, transfers, delivery), deque()).append(delivery)

    def deliveries(action: Action, of: dict[tuple[int, Kind], list[int]]) -> tuple[Delivery, ...]:
        return tuple(Delivery(index, action.microbatch) for index in of.get((action.stage, action.kind), ()))

    def calls(rank: int, actions: Sequence[Action], uses: Sequence[WeightUse]) -> tuple[Call, ...]:
        posted: set[Delivery] = set()
        found = []
        for i, action in enumerate(actions):
            posts: list[Delivery] = []
            # An update receives nothing, and takes no time in which something could arrive.
            num_ahead = 3 if i + 1 < len(actions) and actions[i + 1].kind == "U" else 2
            for ahead in actions[i : i + num_ahead]:
                for wanted in deliveries(ahead, arriving):
                    pair = ends_of(schedule, transfers, wanted)
                    while wanted not in posted:
                        posts.append(sent[pair].popleft())
                        posted.add(posts[-1])
            found.append(
                Call(action, tuple(posts), deliveries(action, arriving), deliveries(action, leaving), uses[i])
            )
        return tuple(found)

    uses = weight_uses(schedule)
    found = [calls(rank, actions, uses[rank]) for rank, actions in enumerate(schedule.actions)]
    sent_by = {d: i for rank_calls in found for i, call in enumerate(rank_calls) for d in call.sends}
    taken_by = {d: i for rank_calls in found for i, call in enumerate(rank_calls) for d in call.receives}
    return tuple(
        _with_arrived(rank, own, schedule, transfers, sent_by, taken_by) for rank, own in enumerate(found)
    )


def _with_arrived(
    rank: int,
    own: Sequence[Call],
    schedule: Schedule,
    transfers: Sequence[Transfer],
    sent_by: Mapping[Delivery, int],
    taken_by: Mapping[Delivery, int],
) -> tuple[Call, ...]:
    """The calls of a rank, which know from what they receive what their peers have received before.

    Parameters
    ----------
    sent_by, taken_by : the place of the call that sends and of the one that receives, in the list of its rank.
    """
    # What each peer was sent and has not answered: first what it takes first.
    held: dict[int, list[tuple[int, Delivery]]] = {}
    calls = []
    for call in own:
        arrived: list[Delivery] = []
        for received in call.receives:
            known = held.get(ends_of(schedule, transfers, received)[0], [])
            while known and known[0][0] <= sent_by[received]:
                arrived.append(heappop(known)[1])
        for sent in call.sends:
            _, peer = ends_of(schedule, transfers, sent)
            if peer != rank:
                heappush(held.setdefault(peer, []), (taken_by[sent], sent))
        calls.append(replace(call, arrived=tuple(arrived)))
    return tuple(calls)
