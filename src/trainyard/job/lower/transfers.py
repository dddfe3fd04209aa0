"""The values that stages send to each other, as their segments make and take them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import fx

from trainyard.job.lower.axes import ShardedStage, leaving
from trainyard.job.lower.calls import Transfer
from trainyard.job.lower.pieces import Layout, Shape
from trainyard.job.lower.segment import Segment
from trainyard.job.plan import PlanError
from trainyard.job.schedule import Kind
from trainyard.program.addresses import address
from trainyard.program.orders import order_mark
from trainyard.program.program import tensor_of

_ORDER: tuple[Kind, ...] = ("F", "I", "B", "W")


def make_transfers(
    sharded: Sequence[ShardedStage], segments: Sequence[Mapping[Kind, Segment]]
) -> tuple[Transfer, ...]:
    """All transfers, by the stage that takes them."""
    made: dict[str, _Leaving] = {}
    for stage, own in enumerate(sharded):
        found = segments[stage]
        after = {name: kind for kind in reversed(_ORDER) if kind in found for name in found[kind].outputs}
        lies = [p for o, p in zip(own.program.outputs, own.outputs, strict=True) if o.kind == "value"]
        for (_, node), placements in zip(leaving(own.program), lies, strict=True):
            layout = Layout.of(own.mesh, placements)
            whole = layout.shape_of_whole(tuple(tensor_of(node).shape), own.rank)
            made[node.name] = _Leaving(stage, after[node.name], node, whole, layout)
    transfers: dict[tuple[str, int], Transfer] = {}
    for target, found in enumerate(segments):
        for kind in (k for k in _ORDER if k in found):
            for slot in found[kind].values_taken:
                # What a stage keeps for itself is not among what leaves one.
                value = made.get(slot.name)
                if value is None or value.stage == target or (slot.name, target) in transfers:
                    continue
                # A value of an earlier stage arrives with the forward pass, even if only the backward uses it.
                is_forward = value.stage < target and value.node.meta["phase"] == "forward"
                taker = sharded[target]
                came = {axis: placements[slot.name] for axis, placements in taker.inputs.items()}
                needed = Layout.of(taker.mesh, came)
                transfers[slot.name, target] = value.sent_to(target, "F" if is_forward else kind, needed)
    return tuple(transfers.values())


class _Leaving(NamedTuple):
    """A value that leaves a stage, after a kind of action; of this shape when it is whole."""

    stage: int
    after: Kind
    node: fx.Node
    shape: Shape
    layout: Layout

    def sent_to(self, target: int, before: Kind, needed: Layout) -> Transfer:
        """Send to a stage where the value needs a given placement.

        Raises
        ------
        PlanError
            If its parts are in orders of their own, and would be divided anew.
        """
        if (
            order_mark(self.node).depends
            and needed != self.layout
            and (needed.placements or self.layout.placements)
        ):
            raise PlanError(
                f"stage {target} takes {address(self.node)} from stage {self.stage}, whose ranks divide it otherwise; "
                "it is in the order of a sort that each part of the rows does for itself. Begin the stage at another op, "
                "such as the first of a layer"
            )
        dtype = str(tensor_of(self.node).dtype).removeprefix("torch.")
        return Transfer(
            self.node.name, self.stage, target, self.after, before, dtype, self.shape, self.layout, needed
        )
