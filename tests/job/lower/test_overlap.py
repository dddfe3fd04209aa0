"""Messages of a pass run beside ops that do not need them, or are waited for at once."""

from functools import cache

import pytest

from trainyard import load_model, plan
from trainyard.job.lower.lower import lower
from trainyard.job.lower.verify import verify
from trainyard.job.plan import PlanError, parse_plan
from trainyard.job.planning import Planned
from trainyard.program import spmd


@cache
def planned(overlap: bool) -> Planned:
    strategy = f"megatron(tensor=2, pipeline=2, microbatch_rows=2, overlap={overlap})"
    return plan(load_model("gpt-tiny", 4), "1x4xA100-80G", strategy)


def apart(found: Planned) -> int:
    """Starts of messages that something runs beside."""
    lowered = lower(found.task.program(found.plan.rows_per_microbatch), found.plan)
    verify(lowered)
    nodes = [n for s in lowered.stages for segment in s.segments.values() for n in segment.graph.nodes]
    starts = [n for n in nodes if n.target in spmd.STARTS.values()]
    assert len(starts) > 4
    return sum(n.next.target is not spmd.wait for n in starts)


def test_a_plan_says_whether_messages_are_waited_for_at_once() -> None:
    beside, at_once = planned(overlap=True), planned(overlap=False)
    assert apart(beside) > 0 == apart(at_once)
    assert beside.simulation.step_s < at_once.simulation.step_s
    assert beside.simulation.sent_bytes == at_once.simulation.sent_bytes
    text = at_once.plan.to_text()
    assert "traffic: {overlap: false}" in text
    assert parse_plan(text) == at_once.plan
    with pytest.raises(PlanError, match=r"overlap.*true or false"):
        parse_plan(text.replace("{overlap: false}", "{overlap: sometimes}"))
