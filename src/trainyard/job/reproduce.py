"""The papers' headline numbers beside ours, for ``trainyard reproduce``.

A table is here only if its numbers are printed in the paper; what ours are computed from (a formula that the
claim tests hold against the lowered plan, or a dry run of the schedule) stands in ``method``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch

from trainyard.job.footprint import ADAM_MIXED, model_state_bytes
from trainyard.job.plan import PlanError
from trainyard.job.schedules import dry_run, make_schedule
from trainyard.zoo import gpt


@dataclass(frozen=True)
class Row:
    """One number of the paper.

    Attributes
    ----------
    label : which one.
    paper, ours : in the table's unit.
    """

    label: str
    paper: float
    ours: float

    @property
    def ratio(self) -> float:
        """Ours over the paper's."""
        return self.ours / self.paper


@dataclass(frozen=True)
class PaperTable:
    """Numbers of one paper beside ours.

    Attributes
    ----------
    entry : name of the catalog entry.
    source : table or figure of the paper.
    unit : of both columns.
    method : how ours are computed.
    caveat : why they may differ; empty if they should not.
    """

    entry: str
    source: str
    unit: str
    method: str
    rows: tuple[Row, ...]
    caveat: str = ""


ZERO_TABLE_1: tuple[tuple[float, int, tuple[float, float, float]], ...] = (
    (7.5e9, 4, (52.5, 41.3, 30)),
    (7.5e9, 16, (35.6, 21.6, 7.5)),
    (7.5e9, 64, (31.4, 16.6, 1.88)),
    (7.5e9, 256, (30.4, 15.4, 0.47)),
    (7.5e9, 1024, (30.1, 15.1, 0.12)),
    (128e9, 4, (896, 704, 512)),
    (128e9, 16, (608, 368, 128)),
    (128e9, 64, (536, 284, 32)),
    (128e9, 256, (518, 263, 8)),
    (128e9, 1024, (513, 257, 2)),
    (1e12, 4, (7000, 5500, 4000)),
    (1e12, 16, (4750, 2875, 1000)),
    (1e12, 64, (4187, 2218, 250)),
    (1e12, 256, (4046, 2054, 62.5)),
    (1e12, 1024, (4011, 2013, 15.6)),
)
"""Table 1 of arXiv 1910.02054: parameters, data-parallel ranks, gigabytes per device for P_os, P_os+g, P_os+g+p."""


def _zero() -> PaperTable:
    rows = [
        Row(
            f"{params / 1e9:g}B parameters, {ranks} ranks, stage {stage}",
            paper,
            model_state_bytes(params, ADAM_MIXED, zero_stage=stage, num_ranks=ranks) / 1e9,
        )
        for params, ranks, gigabytes in ZERO_TABLE_1
        for stage, paper in zip((1, 2, 3), gigabytes, strict=True)
    ]
    method = "bytes of model state per parameter, 2 + 2 + 12 with Adam in mixed precision"
    return PaperTable("zero", "arXiv 1910.02054, table 1", "GB per device", method, tuple(rows))


# Table 2 of arXiv 1811.06965, Transformer-48: throughput relative to two partitions and one microbatch.
_GPIPE_TABLE_2 = {
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


def _gpipe_throughput(stages: int, microbatches: int) -> float:
    """Steps per second of work split evenly over stages and microbatches; forward 1, backward 3 with recomputation."""
    share_s = 1.0 / (stages * microbatches)
    run = dry_run(make_schedule("gpipe", stages, microbatches), {"F": share_s, "B": 3 * share_s})
    return 1.0 / run.makespan_s


def _gpipe() -> PaperTable:
    base = _gpipe_throughput(2, 1)
    rows = [
        Row(f"{k} partitions, {m} microbatches", paper, _gpipe_throughput(k, m) / base)
        for (k, m), paper in _GPIPE_TABLE_2.items()
    ]
    return PaperTable(
        "gpipe",
        "arXiv 1811.06965, table 2, Transformer-48 on TPUs",
        "throughput relative to 2 partitions, 1 microbatch",
        "dry run of the schedule with equal stages and no communication",
        tuple(rows),
        "with 4 microbatches the paper's ratios are above those of an ideal pipeline: its base, one microbatch, is "
        "slower for reasons that a schedule does not show",
    )


# Hidden size and heads of the models of arXiv 2205.05198, table 3; t = 8, s = 2048.
_SELECTIVE_MODELS = {
    "22B": (6144, 64),
    "175B (GPT-3)": (12288, 96),
    "530B (MT-NLG)": (20480, 128),
    "1T": (25600, 160),
}
# Figure 7 as transcribed in Calculon's validation set (calculon-ai/calculon, Apache-2.0).
_SEQUENCE_PERCENT = {
    ("22B", "sequence parallel"): 66.84,
    ("22B", "selective"): 49.42,
    ("22B", "both"): 16.18,
    ("22B", "full recomputation"): 7.64,
    ("175B (GPT-3)", "full recomputation"): 8.71,
    ("530B (MT-NLG)", "both"): 20.27,
    ("1T", "selective"): 62.04,
    ("1T", "full recomputation"): 9.42,
}
# Section 5: "70% and 65%" of activation memory saved by selective recomputation for GPT-3 and MT-NLG.
_SELECTIVE_SAVED_PERCENT = {"175B (GPT-3)": 70.0, "530B (MT-NLG)": 65.0}


def _selective() -> PaperTable:
    sequence = 2048
    rows = []
    for name, paper in _SELECTIVE_SAVED_PERCENT.items():
        hidden, heads = _SELECTIVE_MODELS[name]
        scores = 5 * heads * sequence / hidden
        rows.append(Row(f"activation memory saved, {name}", paper, 100 * scores / (34 + scores)))
    return PaperTable(
        "selective_recompute",
        "arXiv 2205.05198, section 5",
        "percent",
        "s b h (34 + 5 a s / h) bytes per layer without, 34 s b h with",
        tuple(rows),
    )


def _sequence() -> PaperTable:
    sequence, t = 2048, 8
    rows = []
    for (name, technique), paper in _SEQUENCE_PERCENT.items():
        hidden, heads = _SELECTIVE_MODELS[name]
        scores = 5 * heads * sequence / hidden / t
        kept = {
            "sequence parallel": 34 / t + scores,
            "selective": 10 + 24 / t,
            "both": 34 / t,
            "full recomputation": 2.0,
        }
        ours = 100 * kept[technique] / (10 + 24 / t + scores)
        rows.append(Row(f"{name}, {technique}", paper, ours))
    return PaperTable(
        "sequence_parallel",
        "arXiv 2205.05198, figure 7",
        "percent of the activation memory with tensor parallelism alone",
        "table 2's bytes per layer, with t = 8",
        tuple(rows),
    )


# Table 1 of arXiv 2104.04473: layers, hidden size, heads, billions of parameters; V = 51200, s = 2048.
_MEGATRON_TABLE_1 = (
    (24, 2304, 24, 1.7),
    (30, 3072, 32, 3.6),
    (40, 6144, 48, 18.4),
    (60, 10240, 80, 76.1),
    (80, 12288, 96, 145.6),
    (105, 20480, 128, 529.6),
    (128, 25600, 160, 1008.0),
)


def _megatron() -> PaperTable:
    with torch.device("meta"):
        modules = [gpt.GPT(gpt.GPTConfig(51200, 2048, n, h, a)) for n, h, a, _ in _MEGATRON_TABLE_1]
    counts = [sum(p.numel() for p in module.parameters()) / 1e9 for module in modules]
    rows = [
        Row(f"{layers} layers of {hidden}", paper, count)
        for (layers, hidden, _, paper), count in zip(_MEGATRON_TABLE_1, counts, strict=True)
    ]
    return PaperTable(
        "megatron",
        "arXiv 2104.04473, table 1, number of parameters",
        "billions",
        "counted on the model that is planned",
        tuple(rows),
    )


TABLES: Mapping[str, Callable[[], PaperTable]] = MappingProxyType(
    {
        "zero": _zero,
        "gpipe": _gpipe,
        "megatron": _megatron,
        "sequence_parallel": _sequence,
        "selective_recompute": _selective,
    }
)
"""Tables by the name of their catalog entry."""


def paper_table(name: str) -> PaperTable:
    """The table of an entry.

    Raises
    ------
    PlanError
        If the entry has none.
    """
    if name not in TABLES:
        raise PlanError(f"no table of {name!r} to reproduce; there are tables of {', '.join(TABLES)}")
    return TABLES[name]()
