"""Pieces of all senders put together are the parts of all receivers."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from trainyard.job.lower.pieces import Layout, are_complete, pieces
from trainyard.job.plan import Mesh
from trainyard.program.boxes import narrowed
from trainyard.program.placement import Shard
from trainyard.program.spmd import take_part

SHAPE = (12, 6, 4)


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """A mesh of up to three axes, each of which cuts a dimension that it divides, or none."""
    left = list(SHAPE)
    sizes, placements = {}, {}
    for axis in draw(st.permutations(["a", "b", "c"]))[: draw(st.integers(0, 3))]:
        sizes[axis] = draw(st.integers(1, 3))
        cut = Shard(draw(st.integers(0, 2)), draw(st.integers(1, 2)))
        if draw(st.booleans()) and left[cut.dim] % (cut.blocks * sizes[axis]) == 0:
            placements[axis] = cut
            left[cut.dim] //= sizes[axis]
    return Layout.of(Mesh.of(**sizes), placements)


def parts(layout: Layout, whole: torch.Tensor) -> list[torch.Tensor]:
    found = []
    for rank in range(layout.mesh.num_ranks):
        part, where = whole, layout.mesh.coordinate(rank)
        for axis, cut in layout.placements:
            part = take_part(part, where[axis], cut.dim, cut.blocks, layout.mesh.size(axis))
        found.append(part)
    return found


@given(layouts(), layouts())
def test_what_is_sent_fills_every_part(source: Layout, target: Layout) -> None:
    whole = torch.arange(torch.Size(SHAPE).numel()).view(SHAPE)
    have, need = parts(source, whole), parts(target, whole)
    sent = pieces(SHAPE, source, target)
    shapes = tuple(have[0].shape), tuple(need[0].shape)
    assert shapes == (source.shape_of_part(SHAPE), target.shape_of_part(SHAPE))
    assert source.shape_of_whole(shapes[0]) == SHAPE
    assert are_complete(sent, *shapes, len(have), len(need))
    got = [torch.full_like(part, -1) for part in need]
    for piece in sent:
        value = narrowed(have[piece.sender], piece.sent, piece.sizes)
        narrowed(got[piece.receiver], piece.received, piece.sizes).copy_(value)
    for found, wanted in zip(got, need, strict=True):
        assert torch.equal(found, wanted)
    if source == target:
        assert [(p.sender, p.receiver) for p in sent] == [(rank, rank) for rank in range(len(have))]
