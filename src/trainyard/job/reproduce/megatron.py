"""Megatron-LM, arXiv 2104.04473: sizes and throughput of ten models from one billion to a trillion parameters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import torch

from trainyard.job.reproduce.simulated import gradients_at_the_end, megatron_text, setting_of, simulated
from trainyard.published import PaperTable, Row
from trainyard.zoo import gpt

_VOCAB, _SEQUENCE = 51200, 2048
_PEAK_TFLOPS = 312.0  # A100, 16 bit, as the paper has it


@dataclass(frozen=True)
class Case:
    """A row of table 1; microbatch and interleaving are of the authors' scripts (Megatron-LM, examples/sc21).

    Attributes
    ----------
    params_b : billions of parameters.
    tensor, pipeline, gpus, batch : t, p, n and B.
    microbatch : b, rows.
    chunks : v, stages per pipeline rank.
    tflops, percent : achieved per GPU, and of its peak.
    """

    params_b: float
    heads: int
    hidden: int
    layers: int
    tensor: int
    pipeline: int
    gpus: int
    batch: int
    microbatch: int
    chunks: int
    tflops: float
    percent: float

    @property
    def config(self) -> gpt.GPTConfig:
        """Sizes of the model."""
        return gpt.GPTConfig(_VOCAB, _SEQUENCE, self.layers, self.hidden, self.heads)

    @property
    def strategies(self) -> str:
        """The paper's plan; every layer is recomputed, and no sum of gradients is hidden."""
        data = self.gpus // (self.tensor * self.pipeline)
        return megatron_text(
            *(self.tensor, self.pipeline, data, self.microbatch),
            *(gradients_at_the_end(data), f"sublinear(segments={self.layers})"),
            stages_per_rank=self.chunks,
        )

    @property
    def flops(self) -> float:
        """Count the operations of a step with recomputation, equation 3."""
        size = self.batch * _SEQUENCE * self.layers * self.hidden**2
        return 96 * size * (1 + _SEQUENCE / (6 * self.hidden) + _VOCAB / (16 * self.layers * self.hidden))

    @property
    def label(self) -> str:
        """Model and GPUs."""
        return f"{self.params_b:g}B parameters, {self.gpus} GPUs"


TABLE_1 = (
    Case(1.7, 24, 2304, 24, 1, 1, 32, 512, 16, 1, 137, 44),
    Case(3.6, 32, 3072, 30, 2, 1, 64, 512, 16, 1, 138, 44),
    Case(7.5, 32, 4096, 36, 4, 1, 128, 512, 16, 1, 142, 46),
    Case(18.4, 48, 6144, 40, 8, 1, 256, 1024, 8, 1, 135, 43),
    Case(39.1, 64, 8192, 48, 8, 2, 512, 1536, 4, 1, 138, 44),
    Case(76.1, 80, 10240, 60, 8, 4, 1024, 1792, 2, 3, 140, 45),
    Case(145.6, 96, 12288, 80, 8, 8, 1536, 2304, 2, 2, 148, 47),
    Case(310.1, 128, 16384, 96, 8, 16, 1920, 2160, 1, 2, 155, 50),
    Case(529.6, 128, 20480, 105, 8, 35, 2520, 2520, 1, 3, 163, 52),
    Case(1008.0, 160, 25600, 128, 8, 64, 3072, 3072, 1, 1, 163, 52),
)
_SIMULATED = TABLE_1[:7]  # the largest three take minutes


@cache
def step_s(case: Case) -> float:
    """Simulated seconds of a step on DGX A100s."""
    cluster = f"{case.gpus // 8}x8xA100-80G"
    setting = setting_of(gpt.build, "gpt", case.config, case.batch, cluster=cluster)
    return simulated(setting, case.strategies).step_s


def _sizes() -> Iterator[Row]:
    for case in TABLE_1:
        with torch.device("meta"):
            count = sum(p.numel() for p in gpt.GPT(case.config).parameters())
        yield Row(f"{case.layers} layers of {case.hidden}", case.params_b, count / 1e9)


def _tflops(case: Case) -> float:
    return case.flops / step_s(case) / case.gpus / 1e12


_METHOD = (
    "simulated step with the paper's degrees and batch on DGX A100s, each layer recomputed, microbatches and "
    "interleaving of the authors' scripts; floating-point operations by the paper's equation 3; the seven "
    "smallest of ten models"
)
_CAVEAT = (
    "ours has no data loading, logging or variation between kernels, and recomputes only what the backward pass "
    "needs: not a layer's last product, which equation 3 counts"
)

TABLES = (
    PaperTable(
        "arXiv 2104.04473, table 1, number of parameters",
        "billions",
        "counted on the model that is planned",
        _sizes,
    ),
    PaperTable(
        "arXiv 2104.04473, table 1, achieved throughput",
        "teraFLOP/s per GPU",
        _METHOD,
        lambda: (Row(case.label, case.tflops, _tflops(case)) for case in _SIMULATED),
        tolerance=0.25,
        caveat=_CAVEAT,
        is_slow=True,
    ),
    PaperTable(
        "arXiv 2104.04473, table 1, share of the peak",
        "percent",
        _METHOD,
        lambda: (Row(case.label, case.percent, 100 * _tflops(case) / _PEAK_TFLOPS) for case in _SIMULATED),
        tolerance=0.25,
        caveat=_CAVEAT,
        is_slow=True,
    ),
)
