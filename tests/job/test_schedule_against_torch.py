"""Our lists against those of torch.distributed.pipelining, which needs no process group to make them."""

from __future__ import annotations

from typing import Any

import pytest
import torch.distributed.pipelining.schedules as torch_schedules

from trainyard.job.schedule import KINDS, Schedule
from trainyard.job.schedules import make_schedule


def bare(class_name: str, **attributes: object) -> Any:
    """A schedule of torch's with only what its lists are made from; its __init__ wants real stages."""
    cls = getattr(torch_schedules, class_name)
    schedule = cls.__new__(cls)
    for name, value in attributes.items():
        setattr(schedule, name, value)
    return schedule


def words(actions: list[Any]) -> list[str]:
    """Its computations; it pads with None and appends gradient reductions."""
    return [str(a) for a in actions if a is not None and a.computation_type.value in KINDS]


def ours(schedule: Schedule) -> list[list[str]]:
    return [[str(action) for action in actions] for actions in schedule.actions]


@pytest.mark.parametrize("p", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("extra", [0, 1, 5])
@pytest.mark.parametrize(("name", "theirs"), [("gpipe", "ScheduleGPipe"), ("one_f_one_b", "Schedule1F1B")])
def test_one_stage_per_rank(name: str, theirs: str, p: int, extra: int) -> None:
    m = p + extra
    order = bare(theirs, _num_stages=p, _n_microbatches=m)._get_pipeline_order()
    # torch 2.13 numbers the last rank's forwards of 1F1B from 1, one further than there are microbatches; the
    # order is what is compared.
    forwards = [a.microbatch_index for a in order[p - 1] if a is not None and a.computation_type.value == "F"]
    order[p - 1] = [
        a._replace(microbatch_index=a.microbatch_index - forwards[0])
        if a is not None and a.computation_type.value == "F"
        else a
        for a in order[p - 1]
    ]
    assert [words(order[rank]) for rank in range(p)] == ours(make_schedule(name, p, m))


@pytest.mark.parametrize("p", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("groups", [1, 2, 3])
@pytest.mark.parametrize("v", [1, 2, 3])
def test_interleaved(p: int, groups: int, v: int) -> None:
    m = groups * p
    theirs = bare(
        "ScheduleInterleaved1F1B",
        n_local_stages=v,
        pp_group_size=p,
        microbatches_per_round=p,
        _n_microbatches=m,
    )
    lists = [words(theirs._calculate_single_rank_operations(rank)) for rank in range(p)]
    assert lists == ours(make_schedule("interleaved", p, m, v))


@pytest.mark.parametrize("p", [1, 2, 4, 8])
@pytest.mark.parametrize("m", [1, 4, 8, 17])
def test_zb_v(p: int, m: int) -> None:
    theirs = bare("ScheduleZBVZeroBubble", pp_group_size=p, num_stages=2 * p, _n_microbatches=m)
    lists = [words(theirs._calculate_single_rank_operations(rank)) for rank in range(p)]
    assert lists == ours(make_schedule("zb_v", p, m, 2))
