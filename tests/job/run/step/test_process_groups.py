"""Groups in which stages send to each other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from plans import OPTIMIZER, plan, program
from torch.testing._internal.distributed.fake_pg import FakeStore

from trainyard.job.lower.lower import lower
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
