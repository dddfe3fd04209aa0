"""Training under any plan is training: losses, gradients, parameters and buffers equal eager PyTorch's."""

from collections.abc import Sequence
from typing import Any

import pytest
from exactness import Cell, differences

RELATIVE = 1e-5

FAST = [
    Cell("gpt-tiny", microbatches=4, recompute=True, clip_norm=0.3),
    Cell("gpt-tiny", data=2, zero=3, microbatches=2, clip_norm=0.3),
    Cell("gpt-tiny", tensor=2, tensor_style="vocabulary"),
    Cell("moe-tiny", data=2, zero=1, data_style="experts"),
    Cell("dlrm-tiny", data=2, data_style="embedding rows"),
    Cell("resnet-tiny", data=2, zero=1, microbatches=2),
    Cell("dlrm-tiny", pipeline=2, schedule="zero_bubble_h1", microbatches=4),
    Cell("gpt-tiny", pipeline=2, schedule="zb_v", per_rank=2, microbatches=4),
    Cell("gpt-tiny", data=2, pipeline=2, schedule="one_f_one_b", zero=3, microbatches=4, recompute=True),
    Cell("gpt-tiny", tensor=2, pipeline=2, schedule="one_f_one_b", microbatches=2, tensor_style="sequence"),
]

MODELS = (
    "gpt-tiny",
    "bert-tiny",
    "llama-tiny",
    "moe-tiny",
    "gnmt-tiny",
    "dlrm-tiny",
    "resnet-tiny",
    "vgg-tiny",
)
SCHEDULES = (
    ("gpipe", 1),
    ("one_f_one_b", 1),
    ("interleaved", 2),
    ("breadth_first", 2),
    ("zero_bubble_h1", 1),
    ("zb_v", 2),
)
MIXED = [
    Cell("gpt-tiny", data=2, tensor=2, zero=3, microbatches=2, recompute=True, clip_norm=0.3),
    Cell("gpt-tiny", data=2, tensor=2, zero=2, tensor_style="sequence"),
    Cell("gpt-tiny", data=2, tensor=2, zero=1, tensor_style="vocabulary", microbatches=2),
    Cell("bert-tiny", data=2, tensor=2, zero=1, microbatches=4),
    Cell("llama-tiny", data=2, tensor=2, zero=3, tensor_style="sequence", clip_norm=0.3),
    Cell("moe-tiny", data=2, tensor=2, data_style="experts", zero=1, clip_norm=0.3),
    Cell(
        "moe-tiny", data=2, pipeline=2, data_style="experts", zero=3, microbatches=4, schedule="one_f_one_b"
    ),
    Cell("moe-tiny", tensor=2, pipeline=2, microbatches=2, schedule="zero_bubble_h1"),
    Cell("gpt-tiny", tensor=2, pipeline=2, microbatches=2, schedule="zb_v", per_rank=2, clip_norm=0.3),
    Cell("gpt-tiny", tensor=2, pipeline=2, microbatches=2, tensor_style="vocabulary", recompute=True),
    Cell("gpt-tiny", data=2, pipeline=2, microbatches=4, zero=1, schedule="zb_v", per_rank=2, clip_norm=0.3),
    Cell("bert-tiny", data=2, pipeline=2, microbatches=4, zero=2, schedule="interleaved", per_rank=2),
    Cell("resnet-tiny", data=2, pipeline=2, microbatches=2, zero=1, schedule="one_f_one_b", recompute=True),
    Cell("resnet-tiny", data=2, tensor=2, zero=3, tensor_style="columns", clip_norm=0.3),
    Cell("dlrm-tiny", data=2, tensor=2, data_style="embedding rows", tensor_style="columns", zero=2),
    Cell("gnmt-tiny", data=2, pipeline=2, microbatches=2, zero=2, schedule="one_f_one_b"),
    Cell("gpt-tiny", data=4, zero=3, microbatches=2),
    Cell("llama-tiny", data=4, zero=2, recompute=True),
    Cell("gpt-tiny", tensor=4),
    Cell("gpt-tiny", tensor=4, tensor_style="vocabulary"),
    Cell("bert-tiny", tensor=4, tensor_style="sequence"),
    Cell("gpt-tiny", pipeline=4, schedule="one_f_one_b", microbatches=8, recompute=True),
    Cell("llama-tiny", pipeline=4, schedule="zb_v", per_rank=2, microbatches=8),
]
# What every model is trained under.
PLANS: tuple[dict[str, Any], ...] = (
    {"microbatches": 2, "recompute": True},
    {"data": 2, "microbatches": 2},
    {"data": 2, "zero": 3, "microbatches": 2},
    {"tensor": 2, "tensor_style": "columns"},
    {"tensor": 2, "tensor_style": "rows"},
    {"pipeline": 2, "microbatches": 2, "schedule": "one_f_one_b", "recompute": True},
    {"pipeline": 2, "microbatches": 2, "schedule": "zero_bubble_h1"},
)
# In CI, each plan for one or two models and each model under one or two plans, and every fourth mixture.
GRID = [
    (Cell(model, **plan), (i + j) % 5 == 0) for i, model in enumerate(MODELS) for j, plan in enumerate(PLANS)
]
SLOW = [
    Cell("bert-tiny", data=2, zero=3, microbatches=2, clip_norm=0.3),
    Cell("llama-tiny", pipeline=2, schedule="zb_v", per_rank=2, microbatches=4),
    Cell("llama-tiny", tensor=2, pipeline=2, schedule="one_f_one_b", microbatches=2, tensor_style="sequence"),
    Cell("gpt-tiny", data=2, zero=2, microbatches=2),
    Cell("llama-tiny", tensor=2, tensor_style="sequence"),
    *(Cell("gpt-tiny", data=2, zero=z, clip_norm=0.3) for z in (0, 1, 2, 3)),
    *(
        Cell(m, tensor=2, tensor_style="megatron")
        for m in ("gpt-tiny", "bert-tiny", "llama-tiny", "moe-tiny")
    ),
    *(
        Cell(m, tensor=2, tensor_style=s)
        for m in ("gpt-tiny", "bert-tiny")
        for s in ("sequence", "vocabulary")
    ),
    Cell("llama-tiny", tensor=2, tensor_style="head"),
    *(Cell("dlrm-tiny", data=2, data_style=f"embedding {s}") for s in ("rows", "columns")),
    *(Cell("gpt-tiny", pipeline=2, microbatches=4, schedule=s, per_rank=v) for s, v in SCHEDULES),
    *(cell for cell, in_ci in GRID if in_ci),
    *MIXED[::4],
]
LONG = [
    Cell("gnmt-tiny", tensor=2, tensor_style="head"),
    *(Cell("gpt-tiny", tensor=2, tensor_style=f"embedding {s}") for s in ("rows", "columns")),
    *(cell for cell, in_ci in GRID if not in_ci),
    *(cell for i, cell in enumerate(MIXED) if i % 4),
]


def _groups(cells: Sequence[Cell], size: int = 8) -> list[list[Cell]]:
    """Cells of equally many ranks together, which are trained by the same processes."""
    found: list[list[Cell]] = []
    for count in sorted({cell.num_ranks for cell in cells}):
        same = [cell for cell in dict.fromkeys(cells) if cell.num_ranks == count]
        found += [same[i : i + size] for i in range(0, len(same), size)]
    return found


def _name(cells: list[Cell]) -> str:
    return f"{len(cells)} of {cells[0].num_ranks} ranks from {cells[0]}"


def _check(cells: Sequence[Cell], allowed: float) -> None:
    wrong = {
        cell: found
        for cell, found in differences(cells).items()
        if not all(size <= allowed for size, _ in found.values())
    }
    assert not wrong, wrong


@pytest.mark.parametrize("cells", _groups(FAST), ids=_name)
def test_equals_eager_training(cells: list[Cell]) -> None:
    _check(cells, RELATIVE)


@pytest.mark.slow
@pytest.mark.parametrize("cells", _groups([cell for cell in SLOW if cell not in FAST]), ids=_name)
def test_equals_eager_training_everywhere(cells: list[Cell]) -> None:
    _check(cells, RELATIVE)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("cells", _groups([cell for cell in LONG if cell not in FAST + SLOW]), ids=_name)
def test_equals_eager_training_in_all_mixtures(cells: list[Cell]) -> None:
    _check(cells, RELATIVE)


HALF = [
    Cell("gpt-tiny", dtype="bfloat16", data=2, zero=3, microbatches=2),
    Cell("llama-tiny", dtype="bfloat16", tensor=2, pipeline=2, microbatches=2, schedule="one_f_one_b"),
]


@pytest.mark.slow
@pytest.mark.parametrize("cell", HALF, ids=str)
def test_bfloat16_is_near_float32(cell: Cell) -> None:
    # bfloat16 has 8 bits: 2**-9 relative rounding of every activation, a few hundred roundings in a row.
    _check([cell], 0.05)
