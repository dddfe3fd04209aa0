"""Every system of the catalog has tables of its paper, and ours are as near as they claim."""

import csv
import doctest
import pkgutil
from pathlib import Path

import pytest

from trainyard.job import reproduce
from trainyard.job.catalog import CATALOG
from trainyard.job.plan import PlanError
from trainyard.job.reproduce import PaperTable, Row, megatron, paper_tables, selective_recompute

NAMES = [entry.name for entry in CATALOG]
SHARED = {"simulated", "table"}
MEASURED = Path(__file__).parents[2] / ".." / "shared" / "data" / "perf"


def tables(names: list[str], slow: bool) -> list[object]:
    """Tables as parameters; a name without a module is a failure of its own test, not of the collection."""
    modules = {module.name for module in pkgutil.iter_modules(reproduce.__path__)}
    return [
        pytest.param(table, id=f"{name}: {table.source}", marks=[pytest.mark.slow] if slow else [])
        for name in names
        if name in modules
        for table in paper_tables(name)
        if table.is_slow == slow
    ]


@pytest.mark.parametrize("name", NAMES)
def test_every_system_has_tables(name: str) -> None:
    for table in paper_tables(name):
        assert table.source.startswith("arXiv ") or ", 20" in table.source
        assert table.unit
        assert table.method
        # What is further off than rounding is explained.
        assert table.caveat or table.tolerance <= 0.03
    assert paper_tables(name)


def test_every_module_is_that_of_a_system() -> None:
    assert {module.name for module in pkgutil.iter_modules(reproduce.__path__)} == {*NAMES, *SHARED}


def test_an_unknown_system_is_refused() -> None:
    with pytest.raises(PlanError, match="known: zero"):
        paper_tables("zer0")


def test_example() -> None:
    assert doctest.testmod(reproduce).failed == 0


def check(table: PaperTable) -> list[Row]:
    """Every number is within the tolerance, and where the paper's is largest, so is ours."""
    rows = list(table.rows())
    assert len({row.label for row in rows}) == len(rows) > 0
    errors = {row.label: row.ratio - 1 for row in rows}
    assert max(map(abs, errors.values())) <= table.tolerance, errors
    largest = max(rows, key=lambda row: row.ours)
    assert largest.paper == max(row.paper for row in rows)
    return rows


@pytest.mark.parametrize("table", tables(NAMES, slow=False))
def test_ours_are_near_the_papers(table: PaperTable) -> None:
    rows = check(table)
    assert min(rows, key=lambda row: row.paper).ours == pytest.approx(min(row.ours for row in rows))


@pytest.mark.parametrize("table", tables(NAMES, slow=True))
def test_simulated_steps_are_near_the_papers(table: PaperTable) -> None:
    check(table)


def transcribed(name: str) -> list[dict[str, str]]:
    """Rows of a published table that others have transcribed."""
    path = MEASURED / name
    if not path.is_file():
        pytest.skip(f"{path} is not here")
    with path.open() as file:
        return list(csv.DictReader(file))


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
