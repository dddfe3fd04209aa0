"""How measured steps are described and compared: by their own plans, without what their sources do not say."""

from __future__ import annotations

import csv
import json
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from shared_data import DATA, require_data

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from published.steps import steps, vtrain_step
from truth import ComparedStep, choices, errors, of_newest_record, tables

_COLUMNS = "params_b,num_gpus,global_batch,micro_batch,hidden,heads,layers,seq_len,tp,dp,pp,iter_ms"
_VALUES = "3.6,64,512,8,3072,32,30,2048,2,32,1,4000.0"
_TABLES = {
    "SimuMax, B200": "simumax_b200/measured",
    "NVIDIA examples": "nvidia_dle/training_throughput",
    "Lambda": "lambda_benchmark/pytorch_training_throughput",
    "vTrain, several nodes": "vtrain/iter_time_multi_node_a100",
}
_VTRAIN = dict(zip(_COLUMNS.split(","), _VALUES.split(","), strict=True))


STEP = ComparedStep("a source", "a run", "GPT", "a model", 4.0, 3.0, 10.0, 12.0)


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
    assert (
        f"data_parallel(degree=32, bucket_bytes={2**40})" in step.strategies
    )  # no sum of gradients is hidden
    assert "sublinear(segments=30)" in step.strategies


def test_errors_are_relative_and_signed() -> None:
    found = errors([-0.5, 0.1, 0.3])
    assert (found["rows"], found["short"]) == (3, 1)
    assert found["mean_absolute_error"] == pytest.approx(0.3)
    assert (found["median_absolute_error"], found["median_error"]) == (0.3, 0.1)
    assert found["worst_error"] == -0.5


def test_tables_are_by_source_and_by_kind_of_model() -> None:
    other = replace(STEP, source="another", kind="BERT", predicted_s=5.0, measured_gib=None)
    found = tables([STEP, other])
    assert found["time"]["a source"]["median_error"] == pytest.approx(-0.25)
    assert found["time"]["all of BERT"]["median_error"] == pytest.approx(0.25)
    assert found["time"]["all"]["rows"] == 2
    assert found["memory"]["all"] == found["memory"]["a source"]
    assert found["memory"]["all"]["median_error"] == pytest.approx(0.2)


def test_a_choice_is_judged_by_what_it_took() -> None:
    slow, alone = replace(STEP, measured_s=5.0, predicted_s=2.5), replace(STEP, model="another")
    assert choices([STEP, slow, alone]) == {"a model": {"plans": 2, "measured_to_best": 1.25}}


def test_sources_that_are_not_simulated_now_keep_their_rows(tmp_path: Path) -> None:
    other = replace(STEP, source="another")
    assert of_newest_record(tmp_path, "source") == ([], {})
    why = {"a source: too large": 3, "another: unknown": 2}
    for name, rows in (("20260101T000000Z", [STEP]), ("20260102T000000Z", [STEP, other])):
        record = {"results": {"rows": [vars(each) for each in rows], "rows_left_out": why}}
        (tmp_path / f"{name}-truth.json").write_text(json.dumps(record))
    assert of_newest_record(tmp_path, "source") == ([other], {"another: unknown": 2})
    assert of_newest_record(tmp_path, "") == ([], {})


def test_every_row_of_a_source_is_described_or_counted() -> None:
    left_out = Counter[str]()
    found = list(steps(require_data(DATA / "perf" / "vtrain").parents[2], 1, left_out))
    assert all(step.seconds or step.gib for step in found)
    described = Counter(step.source for step in found)
    for source, name in _TABLES.items():
        with (DATA / f"perf/{name}.csv").open() as file:
            num = sum(1 for _ in csv.DictReader(line for line in file if not line.startswith("#")))
        assert (
            described[source] + sum(n for why, n in left_out.items() if why.startswith(f"{source}: ")) == num
        )


def test_a_source_that_is_not_there_is_counted(tmp_path: Path) -> None:
    left_out = Counter[str]()
    assert list(steps(tmp_path, 1, left_out)) == []
    assert sum("is not there" in why for why in left_out) == 9
