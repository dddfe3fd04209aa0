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
    """A mesh of up to three axes, each of which cuts a dimension that it divides, or none; in unequal shares, too."""
    left = list(SHAPE)
    axes: dict[str, int | tuple[int, ...]] = {}
    placements = {}
    for axis in draw(st.permutations(["a", "b", "c"]))[: draw(st.integers(0, 3))]:
        axes[axis] = draw(st.sampled_from([1, 2, 3, (1, 2), (3, 1), (1, 1, 2)]))
        num_parts = Mesh.of(**{axis: axes[axis]}).num_parts(axis)
        cut = Shard(draw(st.integers(0, 2)), draw(st.integers(1, 2)))
        if draw(st.booleans()) and left[cut.dim] % (cut.blocks * num_parts) == 0:
            placements[axis] = cut
            # What divides for all ranks divides for the one that has least.
            left[cut.dim] //= num_parts
    return Layout.of(Mesh.of(**axes), placements)


def parts(layout: Layout, whole: torch.Tensor) -> list[torch.Tensor]:
    found = []
    for rank in range(layout.mesh.num_ranks):
        part, shares = whole, layout.mesh.shares(rank)
        for axis, cut in layout.placements:
            part = take_part(
                part, shares[axis].first, cut.dim, cut.blocks, shares[axis].of, shares[axis].held
            )
        found.append(part)
    return found


@given(layouts(), layouts())
def test_what_is_sent_fills_every_part(source: Layout, target: Layout) -> None:
    whole = torch.arange(torch.Size(SHAPE).numel()).view(SHAPE)
    have, need = parts(source, whole), parts(target, whole)
    sent = pieces(SHAPE, source, target)
    for layout, found in ((source, have), (target, need)):
        assert [tuple(part.shape) for part in found] == [
            layout.shape_of_part(SHAPE, rank) for rank in range(layout.mesh.num_ranks)
        ]
        assert {layout.shape_of_whole(tuple(part.shape), r) for r, part in enumerate(found)} == {SHAPE}
    assert are_complete(sent, SHAPE, source, target)
    assert not are_complete(sent[1:], SHAPE, source, target)
    assert not are_complete((*sent, sent[0]), SHAPE, source, target)
    got = [torch.full_like(part, -1) for part in need]
    for piece in sent:
        value = narrowed(have[piece.sender], piece.sent, piece.sizes)
        narrowed(got[piece.receiver], piece.received, piece.sizes).copy_(value)
    for part, wanted in zip(got, need, strict=True):
        assert torch.equal(part, wanted)
    if source == target:
        assert [(p.sender, p.receiver) for p in sent] == [(rank, rank) for rank in range(len(have))]
