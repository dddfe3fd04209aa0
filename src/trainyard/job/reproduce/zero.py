"""ZeRO, arXiv 1910.02054: model state per device."""

from __future__ import annotations

from collections.abc import Iterator

from trainyard.job.model_state import ADAM_MIXED, model_state_bytes
from trainyard.job.strategies.parallel.zero import DIVIDED
from trainyard.published import PaperTable, Row

TABLE_1: tuple[tuple[float, int, tuple[float, float, float]], ...] = (
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
"""Parameters, data-parallel ranks, and gigabytes per device with P_os, P_os+g and P_os+g+p."""


def _rows() -> Iterator[Row]:
    for params, ranks, gigabytes in TABLE_1:
        for stage, paper in zip((1, 2, 3), gigabytes, strict=True):
            ours = model_state_bytes(params, ADAM_MIXED, divided=DIVIDED[stage], num_ranks=ranks) / 1e9
            yield Row(f"{params / 1e9:g}B parameters, {ranks} ranks, stage {stage}", paper, ours)


TABLES = (
    PaperTable(
        "arXiv 1910.02054, table 1",
        "GB per device",
        "bytes of model state per parameter, 2 + 2 + 12 with Adam in mixed precision",
        _rows,
    ),
)
