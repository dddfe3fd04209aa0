"""Each number of a step, predicted or trained, stands in its own column, field and unit: in tables, pages and JSON."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from distinct_results import Distinct
from page_figures import figures_of
from report_timelines import small_timeline
from shown_cells import (
    Cell,
    Row,
    cards_of,
    check_cell,
    check_facts,
    check_table,
    memory,
    number,
    printed,
    ratio,
    seconds,
    share,
    tables_of,
)

from trainyard.cli.training import _body, _document, _said
from trainyard.cost.ops import Sources
from trainyard.cost.overhead import OVERHEAD_KINDS
from trainyard.job.plan import Mesh, Plan, Stage
from trainyard.job.planning import Planned
from trainyard.job.run.config import Restart, StepMetrics, TrainConfig, TrainResult
from trainyard.job.schedules import make_schedule
from trainyard.job.setting import RunnerUp
from trainyard.job.simulation.memory import MEMORY_KINDS, TENSOR_KINDS
from trainyard.job.simulation.result import ShareMemory, Simulation
from trainyard.report.comparison_page import comparison_page
from trainyard.report.league import Contender, league_table
from trainyard.report.plan_page import plan_page
from trainyard.report.prediction import (
    contender_of,
    planned_document,
    runners_up_table,
    simulation_document,
    simulation_facts,
)

PLAN = Plan(
    "m",
    "print",
    "1x4xV100-32G",
    48,
    make_schedule("gpipe", 2, 3),
    (Stage("", Mesh.of(tensor=2)), Stage("b", Mesh.of(tensor=2))),
    made_by=("made",),
    reasons=("It is the only one.",),
)
PARTS = ("forward", "backward", "bubble")


def made_simulation(*, fits: bool = True) -> Simulation:
    """A step on two pipeline ranks, in which no two numbers are alike; the second is fuller."""
    make = Distinct()
    kinds = [{kind: make.whole() * 2**20 for kind in MEMORY_KINDS} for _ in range(2)]
    used = [sum(each.values()) for each in kinds]
    limits = (round(1.7 * used[0]), round((1.2 if fits else 0.9) * used[1]))
    return Simulation(
        PLAN,
        sum(times := [0.021, 0.037, 0.009]),
        small_timeline(),
        tuple(kinds),
        limits,
        dict(zip(PARTS, times, strict=True)),
        {"all_reduce": 0.0041},
        ({"send": 701}, {"send": 809}),
        (11 * 2**20, 17 * 2**20),
        (0.053, 0.061),
        7.3e12,
        0.317,
        Sources(12, {"aten.mm(4)": "too large"}, 5),
        (ShareMemory(1, "3 of 4 parts along data", 23 * 2**20, 29 * 2**20),),
    )


SIMULATED = made_simulation()
PEAKS = [sum(each.values()) for each in SIMULATED.memory]
FOUND = [
    RunnerUp("next", 0.0911, PEAKS[0], is_simulated=True),
    RunnerUp("last", 0.1433, 99 * 2**30, is_simulated=False),
]


def beside(*left_out: str) -> tuple[int, ...]:
    return tuple(sum(each[kind] for kind in each if kind not in left_out) for each in SIMULATED.memory)


def memory_row(rank: int) -> Cell:
    """Use and limit of a rank, and every kind, the largest first."""
    kinds = sorted(SIMULATED.memory[rank].items(), key=lambda item: -item[1])
    parts: list[Any] = [memory(PEAKS[rank]), " of ", memory(SIMULATED.memory_limit_bytes[rank])]
    for between, (kind, size) in zip([": ", *[", "] * (len(kinds) - 1)], kinds, strict=True):
        parts += [f"{between}{kind} ", memory(size)]
    return tuple(parts)


def facts() -> Row:
    step_s = 0.021 + 0.037 + 0.009
    parts = (("backward ", 0.037), (", forward ", 0.021), (", bubble ", 0.009))
    return [
        ("step time", (seconds(step_s), " (", number(48 / step_s), " rows/s)")),
        ("of which", tuple(each for name, part_s in parts for each in (name, share(part_s / step_s)))),
        ("MFU", share(0.317)),
        ("memory on pipeline rank 0", memory_row(0)),
        ("memory on pipeline rank 1", memory_row(1)),
        (
            "with 3 of 4 parts along data on pipeline rank 1",
            (memory(23 * 2**20), " of ", memory(29 * 2**20)),
        ),
        ("estimated", "1 of 13 ops instead of measured: aten.mm: too large"),
        (
            "measured",
            "5 of 12 ops while other work had the cores; they are measured again when the machine is quiet",
        ),
    ]


def runner_up_rows() -> list[Row]:
    return [
        [
            ("plan", each.name),
            ("step", seconds(each.step_s)),
            ("to best", ratio(each.step_s / 0.067)),
            (
                "memory per device",
                memory(each.memory_bytes) if how == "simulated" else (memory(99 * 2**30), ", too much"),
            ),
            ("how known", how),
        ]
        for each, how in zip(FOUND, ("simulated", "estimated"), strict=True)
    ]


def test_a_prediction_shows_each_number_under_its_name() -> None:
    check_facts(simulation_facts(SIMULATED), facts())
    check_table(printed(runners_up_table(FOUND, SIMULATED)), runner_up_rows())
    page = plan_page(PLAN, SIMULATED, FOUND)
    tables = tables_of(page)
    assert tables["Time and memory of a step"][0] == ("what", "predicted")
    check_facts([(name, text) for name, text in tables["Time and memory of a step"][1]], facts())
    check_table(tables["Also considered"], runner_up_rows())
    (plan, *others), wanted = cards_of(page), facts()
    assert plan[0] == "plan"
    check_facts(others, [wanted[0], wanted[2]])
    short = made_simulation(fits=False)
    cell = dict(simulation_facts(short))["memory on pipeline rank 1"].partition(" DOES NOT FIT: ")[2]
    check_cell(cell, (memory(PEAKS[1] - short.memory_limit_bytes[1]), " are missing"))


def test_a_document_of_a_prediction_has_each_number_in_its_field() -> None:
    unequal = {"pipeline": 1, "parts": "3 of 4 parts along data"}
    prediction = {
        "step_s": pytest.approx(0.067),
        "rows_per_s": pytest.approx(48 / 0.067),
        "mfu": 0.317,
        "fits": True,
        "breakdown_s": {"forward": 0.021, "backward": 0.037, "bubble": 0.009},
        "exposed_s": {"all_reduce": 0.0041},
        "memory_bytes": SIMULATED.memory,
        "peak_bytes": tuple(PEAKS),
        "allocated_bytes": beside(*OVERHEAD_KINDS),
        "reserved_bytes": beside("context", "communication buffers"),
        "memory_limit_bytes": (round(1.7 * PEAKS[0]), round(1.2 * PEAKS[1])),
        "shares": [unequal | {"peak_bytes": 23 * 2**20, "limit_bytes": 29 * 2**20}],
        "num_bytes": ({"send": 701}, {"send": 809}),
        "model_flops": 7.3e12,
        "ops": {"num_measured": 12, "estimated": {"aten.mm(4)": "too large"}, "num_disturbed": 5},
    }
    assert simulation_document(SIMULATED) == prediction
    task: Any = None  # of which nothing is told
    found = planned_document(Planned(PLAN, SIMULATED, task, tuple(FOUND), 3.3))
    assert found == {
        "model": "m",
        "cluster": "1x4xV100-32G",
        "made_by": ("made",),
        "pipeline": 2,
        "mesh": {"tensor": 2},
        "schedule": "gpipe",
        "num_microbatches": 3,
        "divided": (),
        "dtype": "float32",
        "reasons": ("It is the only one.",),
        "planning_s": 3.3,
        "fits": True,
        "prediction": prediction,
        "runners_up": [
            {"name": "next", "step_s": 0.0911, "memory_bytes": PEAKS[0], "is_simulated": True},
            {"name": "last", "step_s": 0.1433, "memory_bytes": 99 * 2**30, "is_simulated": False},
        ],
        "plan": PLAN.to_text(),
    }


def contenders(unit_s: float, unit_bytes: float) -> tuple[Contender, ...]:
    """The best, a slower one, and one that does not fit; times and sizes are of these units."""

    def sizes(*each: float) -> dict[str, int]:
        return {
            name: round(x * unit_bytes) for name, x in zip(("parameters", "activations"), each, strict=True)
        }

    def contender(
        name: str,
        plan: str,
        times: tuple[float, float],
        used: tuple[int, int],
        capacity: int,
        mfu: float,
        shortage: str = "",
    ) -> Contender:
        parts_s = {"forward": times[0] * unit_s, "bubble": times[1] * unit_s}
        fits = not shortage
        return Contender(
            name,
            plan,
            sum(times) * unit_s,
            parts_s,
            sizes(*used),
            round(capacity * unit_bytes),
            fits,
            mfu,
            shortage,
        )

    return (
        contender("slow", "data 2", (3.0, 2.0), (7, 11), 23, 0.23),
        contender("huge", "data 1", (2.0, 0.0), (17, 13), 29, 0.59, "Buy more."),
        contender("fast", "data 4", (1.5, 2.5), (3, 5), 31, 0.41),
    )


@pytest.mark.parametrize(
    ("unit", "unit_s", "size", "unit_bytes"),
    [("s", 1.0, "GiB", 2**30), ("ms", 1e-3, "MiB", 2**20), ("µs", 1e-6, "KiB", 2**10)],
)
def test_a_comparison_shows_each_number_in_its_unit(
    unit: str, unit_s: float, size: str, unit_bytes: float
) -> None:
    slow, huge, fast = contenders(unit_s, unit_bytes)
    page = comparison_page("title", (slow, huge, fast), {})
    rows: list[Row] = []
    for each, name, to_best, words, used in (
        (fast, "1 fast", ratio(1.0), "data 4", 8),
        (slow, "2 slow", ratio(1.25), "data 2", 18),
        (huge, "huge", "", "does not fit: data 1. Buy more.", 30),
    ):
        assert each.step_s is not None
        assert each.mfu is not None
        rows.append(
            [
                ("strategy", name),
                ("step", seconds(each.step_s)),
                ("to best", to_best),
                ("MFU", share(each.mfu)),
                ("memory per device", (memory(used * unit_bytes), " of ", memory(each.capacity_bytes))),
                ("plan", words),
            ]
        )
    check_table(printed(league_table("title", (slow, huge, fast))), rows)
    on_page = [
        [("strategy", each.name), *row[1:2], *row[3:5], ("plan", each.what)]
        for each, row in zip((fast, slow, huge), rows, strict=True)
    ]
    check_table(tables_of(page)["League table"], on_page)
    figures = figures_of(page)
    time, used = figures["Where a step's time goes"][0], figures["Memory of the fullest device"][0]
    assert bars_of(time) == {"forward": [1.5, 3.0, 2.0], "bubble": [2.5, 2.0, 0.0]}
    assert bars_of(used) == {"parameters": [3.0, 7.0, 17.0], "activations": [5.0, 11.0, 13.0]}
    assert time["layout"]["xaxis"]["title"]["text"] == f"predicted step time ({unit})"
    assert used["layout"]["xaxis"]["title"]["text"].startswith(f"memory ({size})")
    assert {each["hovertemplate"].split()[-1] for each in (*time["data"], *used["data"])} == {unit, size}
    assert [each["x"] for each in time["layout"]["annotations"]] == pytest.approx([4, 5, 2])
    assert [each["x"] for each in used["layout"]["annotations"]] == [8, 18, 30]
    assert [(each["x0"], each["x1"]) for each in used["layout"]["shapes"]] == [(31, 31), (23, 23), (29, 29)]
    labels = [each["text"] for each in used["layout"]["annotations"]]
    for text, total, more in zip(labels, (8, 18, 30), ("", "", " — does not fit"), strict=True):
        check_cell(text, (memory(total * unit_bytes), more))
    for each, text in zip((fast, slow, huge), time["layout"]["annotations"], strict=True):
        check_cell(text["text"], seconds(each.step_s or 0.0))
    assert time["layout"]["xaxis"]["range"][1] > 5
    assert used["layout"]["xaxis"]["range"][1] > 31


def bars_of(figure: dict[str, Any]) -> dict[str, list[float]]:
    return {each["name"]: each["x"] for each in figure["data"]}


def test_a_contender_has_the_numbers_of_its_fullest_rank() -> None:
    task: Any = None
    found = contender_of("made", Planned(PLAN, SIMULATED, task, (), 0.0))
    assert found == Contender(
        "made",
        found.what,
        SIMULATED.step_s,
        dict(SIMULATED.breakdown),
        dict(SIMULATED.memory[1]),
        SIMULATED.memory_limit_bytes[1],
        True,
        0.317,
        "",
    )
    assert found.what.endswith("gpipe, 3 microbatches")


METRICS = [
    StepMetrics(step, {"m:loss": 9.0 - step, "m:accuracy": 0.1 * step}, 1.1 + step, *of)
    for step, of in enumerate(
        [
            (9.7, 3.1, 301.0, (9 * 2**20, 2**20), (7, 6), False),
            (8.3, 4.3, 401.0, (8 * 2**20, 2**20), (5, 4), False),
            (7.9, 5.9, 503.0, (7 * 2**20, 2**20), (3, 2), True),
            (0.61, 67.0, 6_007.0, (31 * 2**20, 37 * 2**20), (41 * 2**20, 43 * 2**20), False),
            (0.47, 79.0, 7_001.0, (29 * 2**20, 53 * 2**20), (61 * 2**20, 47 * 2**20), True),
            (0.53, 71.0, 6_701.0, (19 * 2**20, 11 * 2**20), (57 * 2**20, 13 * 2**20), False),
        ]
    )
]
RESULT = TrainResult(tuple(METRICS), 2, (Restart("a rank died", 3, 4.5),), ("passed over",), Path("c/step-6"))


def test_a_training_shows_predicted_before_measured() -> None:
    """Medians are of the last three steps: those before them are to warm up."""
    first, table, remark, skipped, _, checkpoint, command = _body(
        SIMULATED, RESULT, "trainyard train m", TrainConfig(6)
    )
    assert first == "loss 9.000 at step 1, 4.000 at step 6"
    tensors = max(sum(each[kind] for kind in TENSOR_KINDS) for each in SIMULATED.memory)
    rows: list[Row] = [
        [("", name), ("predicted", predicted), ("measured", measured)]
        for name, predicted, measured in (
            ("step time", seconds(0.067), seconds(0.53)),
            ("peak memory of a process", memory(tensors), (memory(53 * 2**20), "*")),
            ("sent by a process in a step", memory(17 * 2**20), memory(57 * 2**20)),
        )
    ]
    check_table(printed(table), rows)
    assert remark.startswith("* resident")
    assert skipped == "2 of 6 steps were not finite; their updates were skipped"
    assert checkpoint == "checkpoint c/step-6; go on with"
    assert command == "  trainyard train m --checkpoint c --resume --steps 12"


def test_a_document_of_a_training_has_each_number_in_its_field() -> None:
    found = _document(SIMULATED, RESULT)
    metrics = found.pop("metrics")
    assert metrics[4] == {
        "step": 4,
        "losses": {"m:loss": 5.0, "m:accuracy": 0.4},
        "grad_norm": 5.1,
        "seconds": 0.47,
        "rows_per_s": 79.0,
        "tokens_per_s": 7_001.0,
        "peak_memory_bytes": (29 * 2**20, 53 * 2**20),
        "sent_bytes": (61 * 2**20, 47 * 2**20),
        "skipped": True,
        "learning_rate": 0.0,
        "data_s": 0.0,
        "forward_backward_s": 0.0,
        "wait_s": 0.0,
        "update_s": 0.0,
        "checkpoint_s": 0.0,
        "mfu": None,
        "loss_scale": None,
        "length": None,
        "evaluation": {},
        "evaluation_s": 0.0,
        "note": "",
    }
    assert found == {
        "prediction": simulation_document(SIMULATED),
        "predicted_sent_bytes": 17 * 2**20,
        "measured": {
            "step_s": 0.53,
            "peak_memory_bytes": 53 * 2**20,
            "sent_bytes": 57 * 2**20,
            "rows_per_s": 71.0,
            "tokens_per_s": 6_701.0,
        },
        "first_step": 2,
        "skipped_steps": 2,
        "restarts": [{"reason": "a rank died", "step": 3, "seconds": 4.5}],
        "notes": ("passed over",),
        "checkpoint": "c/step-6",
    }


def test_a_line_of_a_training_has_losses_and_a_rate() -> None:
    assert _said(METRICS[3]) == "loss 6.000  accuracy 0.300  6,007 tokens/s"
    assert _said(replace(METRICS[4], tokens_per_s=0.0)) == "loss 5.000  accuracy 0.400  79.0 rows/s  skipped"
