"""Boxes of all ranks tile the whole tensor, and say where each rank's part lies in it."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from trainyard.program.boxes import boxes
from trainyard.program.placement import REPLICATE, Shard, Share
from trainyard.program.spmd import take_part


@st.composite
def layouts(draw):
    sizes = {"data": draw(st.integers(1, 3)), "tensor": draw(st.integers(1, 3))}
    num_dims = draw(st.integers(1, 3))
    shape = [draw(st.integers(1, 2)) for _ in range(num_dims)]
    placements = {}
    for axis in ("tensor", "data"):
        if draw(st.booleans()):
            placement = Shard(draw(st.integers(0, num_dims - 1)), draw(st.integers(1, 3)))
            shape[placement.dim] *= placement.blocks * sizes[axis]
            placements[axis] = placement
        else:
            placements[axis] = REPLICATE
    return tuple(shape), placements, sizes


@given(layouts())
def test_boxes_tile_the_whole_and_match_the_parts(layout):
    shape, placements, sizes = layout
    whole = torch.arange(torch.Size(shape).numel()).view(shape)
    counts = torch.zeros(shape, dtype=torch.int64)
    for data in range(sizes["data"]):
        for tensor in range(sizes["tensor"]):
            index = {"data": data, "tensor": tensor}
            part = whole
            for axis in ("data", "tensor"):
                cut = placements[axis]
                if isinstance(cut, Shard):
                    part = take_part(part, index[axis], cut.dim, cut.blocks, sizes[axis])
            covered = torch.zeros(part.shape, dtype=torch.int64)
            for box in boxes(shape, placements, {a: Share(index[a], 1, n) for a, n in sizes.items()}):
                region = tuple(slice(o, o + n) for o, n in zip(box.offsets, box.sizes, strict=True))
                assert torch.equal(box.of(part), whole[region])
                counts[region] += 1
                box.of(covered).add_(1)
            assert torch.all(covered == 1)
    copies = 1
    for axis in ("data", "tensor"):
        copies *= 1 if isinstance(placements[axis], Shard) else sizes[axis]
    assert torch.all(counts == copies)
