"""What ranks run can be read: calls in order, each op with its address, its message and where it writes."""

import re

import torch
from made_plan import made_plan
from torch import nn

from trainyard import load_model, plan
from trainyard.job.lower.lower import lower
from trainyard.job.planning import Planned
from trainyard.job.schedules import make_schedule
from trainyard.job.task import Task
from trainyard.program.model import Model
from trainyard.report.routines import routines_text


def planned() -> Planned:
    return plan(
        load_model("gpt-tiny", 4), "1x4xA100-80G", "megatron(tensor=2, pipeline=2, microbatch_rows=2)"
    )


def test_every_rank_and_message_is_told() -> None:
    found = plan(
        load_model("gpt-tiny", 4), "1x4xA100-80G", "megatron(tensor=2, pipeline=2, microbatch_rows=2)"
    )
    text = routines_text(lower(found.task.program(found.plan.rows_per_microbatch), found.plan))
    lines = text.splitlines()
    assert [line for line in lines if line.startswith("pipeline rank")] == [
        f"pipeline rank {rank}: 2 tensor" for rank in (0, 1)
    ]
    assert "  0F0 0F1 0B0 0B1 update" in lines
    assert any(line.startswith("  send ") and line.endswith("to stage 1") for line in lines)
    # The sum of the input's gradient is on its way while the weights' gradients are computed.
    start = next(i for i, line in enumerate(lines) if "# blocks.0.up:backward.all_reduce" in line)
    assert "runs beside what follows" in lines[start]
    waits = next(i for i in range(start, len(lines)) if " = wait(" in lines[i])
    assert any("= mm(" in line and "# blocks.0.up:backward.mm" in line for line in lines[start:waits])
    assert text.count("sum_over_stages(") == 2
    assert "update: parameters" in lines


def test_a_timeline_names_ops_as_the_routines_do() -> None:
    found = planned()
    text = routines_text(lower(found.task.program(found.plan.rows_per_microbatch), found.plan))
    graph = found.simulation.timeline.graph
    titles = [graph.title_of(task) for task in range(graph.num_tasks)]
    titles = [title for title in titles if re.match(r"\d[FB]\d blocks", title)]
    assert len(titles) > 5
    # Every microbatch runs the same ops.
    of_microbatch = [[t.replace(f"{m} ", " ", 1) for t in titles if f"{m} " in t[:4]] for m in (0, 1)]
    assert sorted(of_microbatch[0]) == sorted(of_microbatch[1])
    assert 2 * len(of_microbatch[0]) == len(titles)
    for title in of_microbatch[0]:
        action, _, ops = title.partition(" ")
        routine = text.partition(f"routine {action}\n")[2].partition("\nroutine")[0]
        assert all(f"# {op}\n" in routine for op in ops.split(" .. "))


def test_the_reduction_that_the_update_waits_for_is_said_to_start_with_the_last_microbatch() -> None:
    model = Model("line", nn.Linear(4, 4), lambda m, b: m(b["x"]).square().mean(), {"x": torch.ones(8, 4)})
    program = Task(model).program(4)
    lowered = lower(program, made_plan(program, 8, make_schedule("gpipe", 1, 2), data=2))
    text = routines_text(lowered)
    (given,) = (line for line in text.splitlines() if "= accumulate_grads(" in line)
    assert "(of the last microbatch; all_reduce of 80 bytes over data; runs beside what follows)" in given
    assert "wait_reduction('stage0.bucket0')  (waits for gradients of stage0.bucket0)" in text
