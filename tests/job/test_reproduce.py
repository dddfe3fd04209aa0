"""Published tables of level 1 are as others transcribed them."""

import csv

from shared_data import DATA, require_data

from trainyard.job.reproduce import megatron, selective_recompute

MEASURED = DATA / "perf"


def transcribed(name: str) -> list[dict[str, str]]:
    """Rows of a published table that others have transcribed."""
    with require_data(MEASURED / name).open() as file:
        rows = list(csv.DictReader(file))
    assert rows
    return rows


def test_megatron_table_1_is_as_others_transcribed_it() -> None:
    cases = {case.layers: case for case in megatron.TABLE_1}
    for row in transcribed("megatron_scaling/a100_weak_scaling.csv"):
        numbers = {key: float(value) for key, value in row.items() if key != "model"}
        case = cases[int(numbers["layers"])]
        assert (case.params_b, case.hidden, case.heads) == (
            numbers["params_b"],
            numbers["hidden"],
            numbers["heads"],
        )
        assert (case.tensor, case.pipeline, case.gpus) == (numbers["tp"], numbers["pp"], numbers["gpus"])
        assert (case.batch, case.microbatch) == (numbers["global_batch"], numbers["micro_batch"])
        assert (case.tflops, case.percent) == (numbers["tflops_per_gpu"], numbers["pct_of_peak"])


def test_iteration_times_are_as_others_transcribed_them() -> None:
    for row in transcribed("calculon_megatron/iteration_time_a100.csv"):
        case = selective_recompute.TABLE_5[row["model"].split("-")[1]]
        ours = case.full_s if row["recompute_mode"] == "full" else case.present_s
        assert (ours, case.pipeline, case.microbatch, case.chunks) == (
            float(row["iter_s"]), int(row["pp"]), int(row["micro_batch"]), int(row["interleave"])
        )  # fmt: skip
