"""Messages that one rank sends to other stages and receives from them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
import torch.distributed as dist

from trainyard.job.lower.calls import Delivery, ends_of
from trainyard.job.lower.lower import Lowered
from trainyard.job.lower.pieces import Piece
from trainyard.job.plan import PIPELINE
from trainyard.job.run.step.process_groups import ProcessGroups
from trainyard.program.boxes import narrowed


class _Arriving(NamedTuple):
    """A piece under way: the memory into which it comes, and where it belongs."""

    work: dist.Work
    memory: torch.Tensor
    place: torch.Tensor


class StageMessages:
    """Messages between stages, by delivery.

    Parameters
    ----------
    groups : of this rank; they count what it sends.
    device : on which values lie.
    """

    def __init__(self, lowered: Lowered, groups: ProcessGroups, device: torch.device) -> None:
        self.lowered, self.plan, self.groups, self.device = lowered, lowered.plan, groups, device
        own = self.place = groups.rank - lowered.plan.ranks(groups.index(PIPELINE)).start
        # The pieces of each transfer with their numbers, as both ends count them.
        self.sent = [[(i, p) for i, p in enumerate(t.pieces) if p.sender == own] for t in lowered.transfers]
        self.received = [
            [(i, p) for i, p in enumerate(t.pieces) if p.receiver == own] for t in lowered.transfers
        ]
        self.num_tags = max((len(t.pieces) for t in lowered.transfers), default=0)
        self.sending: dict[Delivery, list[tuple[dist.Work, torch.Tensor]]] = {}
        self.receiving: dict[Delivery, tuple[torch.Tensor, list[_Arriving]]] = {}

    def post(self, delivery: Delivery) -> None:
        """Be ready to receive."""
        transfer = self.lowered.transfers[delivery.transfer]
        shape = transfer.need.shape_of_part(transfer.shape, self.place)
        value = torch.empty(shape, dtype=getattr(torch, transfer.dtype), device=self.device)
        arriving = []
        for tag, piece, sender, _ in self._pieces(delivery, self.received):
            place = narrowed(value, piece.received, piece.sizes)
            memory = place if place.is_contiguous() else torch.empty_like(place)
            group = self.groups.pair_group(sender, self.groups.rank)
            work = dist.irecv(memory, sender, group=group, tag=tag)
            assert work is not None
            arriving.append(_Arriving(work, memory, place))
        self.receiving[delivery] = value, arriving

    def receive(self, delivery: Delivery) -> torch.Tensor:
        """Return the received value when it is there."""
        value, arriving = self.receiving.pop(delivery)
        for work, memory, place in arriving:
            self.groups.finish(work)
            if memory is not place:
                place.copy_(memory)
        return value

    def send(self, delivery: Delivery, value: torch.Tensor) -> None:
        """Send this rank's pieces of a value; they are held until they have arrived: gloo drops what is freed."""
        self.sending[delivery] = []
        for tag, piece, _, receiver in self._pieces(delivery, self.sent):
            part = narrowed(value, piece.sent, piece.sizes).contiguous()
            group = self.groups.pair_group(self.groups.rank, receiver)
            work = dist.isend(part, receiver, group=group, tag=tag)
            assert work is not None
            self.sending[delivery].append((work, part))
            self.groups.sent_bytes += part.numel() * part.element_size()

    def _pieces(
        self, delivery: Delivery, own: list[list[tuple[int, Piece]]]
    ) -> Iterator[tuple[int, Piece, int, int]]:
        """Return the tags and pieces of this rank in a delivery, with the ranks that send and receive them."""
        source, target = ends_of(self.plan.schedule, self.lowered.transfers, delivery)
        senders, receivers = self.plan.ranks(source), self.plan.ranks(target)
        first = (delivery.transfer * self.plan.num_microbatches + delivery.microbatch) * self.num_tags
        for i, piece in own[delivery.transfer]:
            yield first + i, piece, senders[piece.sender], receivers[piece.receiver]

    def let_go(self, arrived: Iterable[Delivery]) -> None:
        """Let go of what has been sent. Gloo says that only of what is waited for, which here takes no time."""
        for delivery in arrived:
            for work, _ in self.sending.pop(delivery, ()):
                work.wait()
        for delivery in [d for d, sent in self.sending.items() if all(w.is_completed() for w, _ in sent)]:
            del self.sending[delivery]

    def wait_sends(self) -> None:
        """Until all that this rank sent has left."""
        for sent in self.sending.values():
            for work, _ in sent:
                self.groups.finish(work)
        self.sending.clear()
