"""How measured steps are described and compared: by their own plans, without what their sources do not say."""

from __future__ import annotations

import csv
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from shared_data import DATA, require_data

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from published.steps import Step, steps, vtrain_step
from truth import Compared, choices, errors, tables

_COLUMNS = "params_b,num_gpus,global_batch,micro_batch,hidden,heads,layers,seq_len,tp,dp,pp,iter_ms"
_VALUES = "3.6,64,512,8,3072,32,30,2048,2,32,1,4000.0"
_VTRAIN = dict(zip(_COLUMNS.split(","), _VALUES.split(","), strict=True))


@pytest.fixture
def step() -> Step:
    """A measured step of 4 s on 10 GiB."""
    return replace(vtrain_step(_VTRAIN), gib=10.0)


def test_a_row_becomes_the_plan_that_was_run() -> None:
    step = vtrain_step(_VTRAIN)
    assert (step.source, step.seconds, step.rows) == ("vTrain, several nodes", 4.0, 512)
    assert (step.sizes.hidden, step.sizes.layers, step.sizes.heads, step.sizes.context) == (
        3072,
        30,
        32,
        2048,
    )
    assert step.cluster == "8x8xA100-80G@4x200Gb"
    assert step.strategies.startswith(
        "megatron(tensor=2, pipeline=1, data=32, microbatch_rows=8, stages_per_rank=1, overlap=False)"
    )
    assert "sublinear(segments=30)" in step.strategies


def test_errors_are_relative_and_signed() -> None:
    found = errors([-0.5, 0.1, 0.3])
    assert (found["rows"], found["short"]) == (3, 1)
    assert found["mean_absolute_error"] == pytest.approx(0.3)
    assert (found["median_absolute_error"], found["median_error"]) == (0.3, 0.1)
    assert found["worst_error"] == -0.5


def test_tables_are_by_source_and_by_kind_of_model(step: Step) -> None:
    other = replace(step, source="another", kind="BERT", gib=None)
    found = tables([Compared(step, 3.0, 12.0), Compared(other, 5.0, 12.0)])
    assert found["time"][step.source]["median_error"] == pytest.approx(-0.25)
    assert found["time"]["all of BERT"]["median_error"] == pytest.approx(0.25)
    assert found["time"]["all"]["rows"] == 2
    assert found["memory"]["all"] == found["memory"][step.source]
    assert found["memory"]["all"]["median_error"] == pytest.approx(0.2)


def test_a_choice_is_judged_by_what_it_took(step: Step) -> None:
    slow, alone = replace(step, seconds=5.0), replace(step, model="another")
    found = choices([Compared(step, 3.0, 1.0), Compared(slow, 2.5, 1.0), Compared(alone, 1.0, 1.0)])
    assert found == {step.model: {"plans": 2, "measured_to_best": 1.25}}


def test_every_row_of_a_source_is_described_or_counted() -> None:
    left_out = Counter[str]()
    found = list(steps(require_data(DATA / "perf" / "vtrain").parents[2], left_out))
    assert all(step.seconds or step.gib for step in found)
    by_source = Counter(step.source for step in found)
    for source, name in (("SimuMax, B200", "perf/simumax_b200/measured"), ("nanotron", "")):
        if name:
            with (DATA / f"{name}.csv").open() as file:
                num = len(list(csv.DictReader(file)))
            assert by_source[source] + sum(n for why, n in left_out.items() if why.startswith(source)) == num
    with (DATA / "perf/vtrain/iter_time_multi_node_a100.csv").open() as file:
        assert by_source["vTrain, several nodes"] == len(list(csv.DictReader(file)))


def test_a_source_that_is_not_there_is_counted(tmp_path: Path) -> None:
    left_out = Counter[str]()
    assert list(steps(tmp_path, left_out)) == []
    assert sum("is not there" in why for why in left_out) == 9
