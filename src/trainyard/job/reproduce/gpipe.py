"""GPipe, arXiv 1811.06965: throughput by partitions and microbatches."""

from __future__ import annotations

from collections.abc import Iterator

from trainyard.job.schedules import dry_run, make_schedule
from trainyard.published import PaperTable, Row

# Table 2, Transformer-48 on TPUs: throughput over that of 2 partitions (K) and 1 microbatch (M).
_TABLE_2 = {
    (2, 1): 1.0,
    (4, 1): 1.07,
    (8, 1): 1.3,
    (2, 4): 1.7,
    (4, 4): 3.2,
    (8, 4): 4.8,
    (2, 32): 1.8,
    (4, 32): 3.4,
    (8, 32): 6.3,
}
# Table 3, 24-layer Transformer on P100s without NVLink: throughput over that of 2 partitions.
_TABLE_3 = {(2, 32): 1.0, (4, 32): 1.8, (8, 32): 3.3}


def _throughput(stages: int, microbatches: int) -> float:
    """Steps per second of work split evenly over stages and microbatches; forward 1, backward 3 with recomputation."""
    share_s = 1.0 / (stages * microbatches)
    run = dry_run(make_schedule("gpipe", stages, microbatches), {"F": share_s, "B": 3 * share_s})
    return 1.0 / run.makespan_s


def _rows(table: dict[tuple[int, int], float]) -> Iterator[Row]:
    base = _throughput(*next(iter(table)))
    for (stages, microbatches), paper in table.items():
        ours = _throughput(stages, microbatches) / base
        yield Row(f"{stages} partitions, {microbatches} microbatches", paper, ours)


_METHOD = "dry run of the schedule with equal stages and no communication"

TABLES = (
    PaperTable(
        "arXiv 1811.06965, table 2, Transformer-48 on TPUs",
        "throughput relative to 2 partitions, 1 microbatch",
        _METHOD,
        lambda: _rows(_TABLE_2),
        tolerance=0.4,
        caveat="with 4 microbatches the paper's ratios are above those of an ideal pipeline: it adjusted the batch to "
        "fit the memory, which may slow the base of one microbatch, and recomputed in the bubble (section 3.1)",
    ),
    PaperTable(
        "arXiv 1811.06965, table 3, 24-layer Transformer on GPUs without NVLink",
        "throughput relative to 2 partitions",
        _METHOD,
        lambda: _rows(_TABLE_3),
        tolerance=0.06,
        caveat="the paper's stages also send their results to each other, over PCIe",
    ),
)
