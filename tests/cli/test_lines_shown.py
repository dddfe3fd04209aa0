"""Lines while a command works, and tables of what is here, have each number in its place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from distinct_results import Row, check_table, number, printed
from rich.table import Table

from trainyard.cli import doctor
from trainyard.cli.fleet.compare import _title
from trainyard.cli.reproduce import _body, _facts
from trainyard.cli.screen import Screen
from trainyard.cli.serve import bench
from trainyard.cli.training import _shown
from trainyard.job.run.config import Restart, StepMetrics
from trainyard.published import PaperTable
from trainyard.published import Row as PublishedRow
from trainyard.serve.run.bench.load_generator import BenchProgress


class Told(Screen):
    """A screen that keeps the news of what it waits for."""

    def __init__(self) -> None:
        super().__init__(as_json=False)
        self.news: list[tuple[str, str]] = []

    @contextmanager
    def waiting(self, stage: str) -> Iterator[Any]:
        self.news.append((stage, ""))
        yield lambda stage, part: self.news.append((stage, part))


def test_a_training_tells_every_so_many_steps_the_last_and_those_that_are_skipped(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Twelve lines are for 25 steps one of three."""
    screen = Told()
    with _shown(screen, 25) as (on_step, on_restart):
        for step in range(25):
            losses, memory = {"m:loss": 9.0 - step / 8}, (0,)
            on_step(StepMetrics(step, losses, 0.0, 0.5, 16.0, 2_048.0 + step, memory, memory, step == 4))
        on_restart(Restart("rank 1 died", 17, 2.75))
    told = [*range(0, 24, 3), 4, 24]
    assert capsys.readouterr().err.splitlines() == [
        *(
            f"step {step + 1}/25  loss {9 - step / 8:.3f}  {2_048 + step:,} tokens/s{'  skipped' if step == 4 else ''}"
            for step in sorted(told)
        ),
        "restarted from step 17 in 2.8 s: rank 1 died",
    ]
    assert screen.news == [
        ("starting the processes", ""),
        *(("training", f"step {step} of 25") for step in range(1, 26)),
    ]


def test_a_load_test_tells_what_was_sent_answered_and_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "_SHOWN_EVERY_S", 0.0)
    screen = Told()
    with bench._showing_progress(screen, 4_000) as tell:
        tell(BenchProgress(1_234, 1_111, 0))
        tell(BenchProgress(3_333, 2_222, 77))
    assert screen.news == [
        ("asking the server what it takes", ""),
        ("sending requests", "1,234 of 4,000, 1,111 answered"),
        ("sending requests", "3,333 of 4,000, 2,222 answered, 77 failed"),
    ]


def test_a_study_is_called_by_its_jobs_its_load_and_its_deadlines() -> None:
    facts = {"workload": "helios", "num_jobs": 310, "load": 0.85}
    assert _title(facts, (0.5, 1.75), "4x4, 7 seeds") == (
        "310 jobs of helios at load 0.85, deadlines after 0.5 to 1.75 lengths on 4x4, 7 seeds"
    )
    drawn = {"workload": "folder/t.csv", "num_jobs": 13, "load": None}
    assert _title(drawn, None, "4x4, 7 seeds") == "13 jobs drawn from t.csv on 4x4, 7 seeds"


def test_published_numbers_stand_before_ours() -> None:
    table = PaperTable("A, 2020", "ms", "simulated", lambda folder: (), 0.07, "they round")
    title, *lines = _body(table, [PublishedRow("first", 3.0, 4.5), PublishedRow("second", 7.125, 6.25)])
    assert isinstance(title, Table)
    rows: list[Row] = [
        [
            ("ms", name),
            ("theirs", number(theirs)),
            ("ours", number(ours)),
            ("ours / theirs", number(ours / theirs)),
        ]
        for name, theirs, ours in (("first", 3.0, 4.5), ("second", 7.125, 6.25))
    ]
    check_table(printed(title), rows)
    assert lines == ["ours: simulated", "they differ because: they round"]
    assert _facts(table) == {
        "source": "A, 2020",
        "unit": "ms",
        "method": "simulated",
        "caveat": "they round",
        "tolerance": 0.07,
        "is_slow": False,
    }


def test_what_is_here_has_a_row_as_in_the_document() -> None:
    outcome = doctor.act(doctor.Options(), Told())
    (table,) = outcome.body
    assert isinstance(table, Table)
    columns, rows = printed(table)
    assert columns == ("there", "part", "found, or what to do", "for")
    parts = outcome.document["parts"]
    assert rows == tuple(
        ("yes" if each["is_there"] else "no", each["part"], each["found"], each["verbs"]) for each in parts
    )
    assert len(parts) > 8
