"""Calls: what a pipeline rank runs in a step, in order, with the messages between stages that belong to each."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import NamedTuple

from trainyard.job.schedule import Action, Kind, Schedule


@dataclass(frozen=True)
class Transfer:
    """A value that one stage sends to another after an action, before an action of the other.

    Attributes
    ----------
    value : name of the value.
    source, target : stages.
    after, before : kinds of the actions.
    shape, dtype : of the part that one rank sends to its peer.
    """

    value: str
    source: int
    target: int
    after: Kind
    before: Kind
    shape: tuple[int, ...]
    dtype: str


class Delivery(NamedTuple):
    """A transfer, by its index, of one microbatch."""

    transfer: int
    microbatch: int


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
    """

    action: Action
    posts: tuple[Delivery, ...]
    receives: tuple[Delivery, ...]
    sends: tuple[Delivery, ...]
    arrived: tuple[Delivery, ...] = ()


def make_calls(schedule: Schedule, transfers: Sequence[Transfer]) -> tuple[tuple[Call, ...], ...]:
    """The calls of every pipeline rank.

    A rank posts what its next action receives one action ahead, and before it all that the same sender sends earlier:
    messages between two ranks keep their order.
    """
    leaving: dict[tuple[int, Kind], list[int]] = {}
    arriving: dict[tuple[int, Kind], list[int]] = {}
    for index, transfer in enumerate(transfers):
        leaving.setdefault((transfer.source, transfer.after), []).append(index)
        if schedule.rank_of(transfer.source) != schedule.rank_of(transfer.target):
            arriving.setdefault((transfer.target, transfer.before), []).append(index)
    sent: dict[tuple[int, int], deque[Delivery]] = {}
    for rank, actions in enumerate(schedule.actions):
        for action in actions:
            for index in leaving.get((action.stage, action.kind), ()):
                target = schedule.rank_of(transfers[index].target)
                sent.setdefault((rank, target), deque()).append(Delivery(index, action.microbatch))

    def deliveries(action: Action, of: dict[tuple[int, Kind], list[int]]) -> tuple[Delivery, ...]:
        return tuple(Delivery(index, action.microbatch) for index in of.get((action.stage, action.kind), ()))

    def calls(rank: int, actions: Sequence[Action]) -> tuple[Call, ...]:
        posted: set[Delivery] = set()
        found = []
        for i, action in enumerate(actions):
            posts: list[Delivery] = []
            for ahead in actions[i : i + 2]:
                for wanted in deliveries(ahead, arriving):
                    source = schedule.rank_of(transfers[wanted.transfer].source)
                    while wanted not in posted:
                        posts.append(sent[source, rank].popleft())
                        posted.add(posts[-1])
            found.append(
                Call(action, tuple(posts), deliveries(action, arriving), deliveries(action, leaving))
            )
        return tuple(found)

    found = [calls(rank, actions) for rank, actions in enumerate(schedule.actions)]
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
            known = held.get(schedule.rank_of(transfers[received.transfer].source), [])
            while known and known[0][0] <= sent_by[received]:
                arrived.append(heappop(known)[1])
        for sent in call.sends:
            peer = schedule.rank_of(transfers[sent.transfer].target)
            if peer != rank:
                heappush(held.setdefault(peer, []), (taken_by[sent], sent))
        calls.append(replace(call, arrived=tuple(arrived)))
    return tuple(calls)
