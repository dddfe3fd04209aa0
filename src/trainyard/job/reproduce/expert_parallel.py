"""GShard, arXiv 2006.16668: sizes and speed of mixtures of up to 2,048 experts."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from trainyard.job.reproduce.simulated import setting_of, simulated
from trainyard.published import PaperTable, Row
from trainyard.zoo import moe

# Table 1: experts of each mixture, layers of encoder and decoder together, billions of weights.
_TABLE_1 = {
    (2048, 36): 600,
    (2048, 12): 200,
    (512, 36): 150,
    (512, 12): 50,
    (128, 36): 37,
    (128, 12): 12.5,
    (2048, 60): 1000,
}
# Table 3, batches of a million tokens: steps per second. The models of 12 layers need no rematerialisation (5.1).
_TABLE_3 = {(128, 12): 2.16, (512, 12): 3.28}
_TOKENS, _LENGTH = 2**20, 1024
_CORES_PER_CHIP = 2


def _config(experts: int, layers: int) -> moe.MoEConfig:
    """Appendix A.2; every other layer is a mixture."""
    return moe.MoEConfig(
        vocab=64000, context=_LENGTH, layers=layers, hidden=1024, heads=16, widening=8, experts=experts
    )


def _label(experts: int, layers: int) -> str:
    return f"MoE({experts}E, {layers}L)"


def _weights() -> Iterator[Row]:
    for (experts, layers), paper in _TABLE_1.items():
        with torch.device("meta"):
            count = sum(p.numel() for p in moe.MoE(_config(experts, layers)).parameters())
        yield Row(_label(experts, layers), paper, count / 1e9)


def _steps_per_s() -> Iterator[Row]:
    for (experts, layers), paper in _TABLE_3.items():
        chips = experts // _CORES_PER_CHIP  # the paper has a core for each expert
        model = ("moe", _config(experts, layers), _TOKENS // _LENGTH)
        setting = setting_of(moe.build, *model, cluster=f"1x{chips}xTPUv3")
        step_s = simulated(setting, f"expert_parallel(degree={chips})").step_s
        yield Row(f"{_label(experts, layers)}, {experts} cores", paper, 1 / step_s)


TABLES = (
    PaperTable(
        "arXiv 2006.16668, table 1, weights",
        "billions",
        "counted on decoders of as many layers, the models that are planned",
        _weights,
        tolerance=0.06,
        caveat="the paper rounds down: its experts alone are more",
    ),
    PaperTable(
        "arXiv 2006.16668, table 3, speed",
        "steps per second",
        "simulated on a torus of TPU v3, with sequences of 1,024 tokens; 2,048 cores are more than one torus has here",
        _steps_per_s,
        tolerance=0.5,
        caveat="the paper trains encoders with decoders, of which a token passes one half; ours are decoders of as many "
        "layers, routed in groups of one sequence, in bfloat16, with Adam and attention that is not fused",
        is_slow=True,
    ),
)
