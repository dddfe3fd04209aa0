"""Groups in which ranks communicate: what each collective gives, and in which groups stages send to each other."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest
import torch
import torch.distributed as dist
from plans import OPTIMIZER, plan, program
from torch.testing._internal.distributed.fake_pg import FakeStore

from trainyard.job.lower.lower import lower
from trainyard.job.run.processes.fork_server import run_ranks
from trainyard.job.run.step.process_groups import ProcessGroups


@pytest.fixture
def two_ranks() -> Iterator[None]:
    """The first of two ranks, which sends nothing for real."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("two_ranks")
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_on_gpus_each_direction_between_stages_has_a_group_of_its_own(device: str) -> None:
    own = plan(pipeline=2, microbatches=2)
    transfers = lower(program(2, own.dtype), own, OPTIMIZER).transfers
    groups = ProcessGroups(own, 0, torch.device(device), transfers=transfers)
    there, back = groups.pair_group(0, 1), groups.pair_group(1, 0)
    if device == "cuda":
        assert there is not None
        assert back is not None
        assert there is not back
    else:
        assert there is back is None


WHOLE = torch.arange(4.0 * 8 * 12).reshape(4, 8, 12)
CUTS = list(product(range(3), (1, 2)))
"""Dimensions, each in one piece, and in two blocks of which every rank has a part."""


def _part(whole: torch.Tensor, rank: int, dim: int, blocks: int) -> torch.Tensor:
    """The first or second half of each block, put together."""
    halves = [block.chunk(2, dim)[rank] for block in whole.chunk(blocks, dim)]
    return torch.cat(halves, dim)


def _collectives(rank: int) -> list[tuple[str, torch.Tensor, torch.Tensor]]:
    """What each collective gives, and what it has to give."""
    groups = ProcessGroups(plan(data=2), rank, torch.device("cpu"))
    own, found = (rank + 1) * WHOLE, []
    for reduction, factor in (("sum", 3.0), ("avg", 1.5), ("max", 2.0), ("min", 1.0)):
        started = groups.start_all_reduce(own, "data", reduction)
        found.append((reduction, groups.wait(started), factor * WHOLE))
    for dim, blocks in CUTS:
        cut, name = _part(WHOLE, rank, dim, blocks), f"{dim} in {blocks}"
        started = groups.start_all_gather(cut, "data", dim, blocks)
        found.append((f"gather {name}", groups.wait(started), WHOLE))
        started = groups.start_reduce_scatter(own, "data", dim, blocks)
        found.append((f"scatter {name}", groups.wait(started), 3 * cut))
        for to_dim, to_blocks in CUTS:
            started = groups.start_all_to_all(cut, "data", dim, blocks, to_dim, to_blocks)
            expected = _part(WHOLE, rank, to_dim, to_blocks)
            found.append((f"{name} to {to_dim} in {to_blocks}", groups.wait(started), expected))
    return found


def test_collectives_put_parts_together_in_their_order() -> None:
    by_rank = run_ranks(2, _collectives)
    for found in by_rank:
        assert len(found) == 4 + 6 * (2 + 6)
        for name, value, expected in found:
            assert torch.equal(value, expected), name
