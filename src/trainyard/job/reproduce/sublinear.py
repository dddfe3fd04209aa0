"""Sublinear memory, arXiv 1604.06174: a residual network of a thousand layers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from trainyard.job.optimizer import OptimizerConfig
from trainyard.job.reproduce.simulated import setting_of, simulated
from trainyard.published import PaperTable, Row
from trainyard.zoo import resnet

# The abstract: memory without and with the plan, and the additional running time.
_PLAIN_GIB, _SUBLINEAR_GIB, _EXTRA_PERCENT = 48.0, 7.0, 30.0
# Blocks per stage of the authors' example (dmlc/mxnet-memonger), five times as many: 995 convolutions.
_BLOCKS = (15, 120, 180, 15)
_ROWS = 32  # section 5.2


@cache
def _steps() -> tuple[tuple[float, float], tuple[float, float]]:
    """Seconds and GiB of a step, without a plan and with the one that algorithm 3 finds."""
    model = ("resnet-1000", resnet.ResNetConfig(blocks=_BLOCKS), _ROWS)
    setting = setting_of(resnet.build, *model, cluster="1x1xP100", dtype="float32")
    plain = simulated(setting, "data_parallel", OptimizerConfig("sgd"))
    planned = simulated(setting, "sublinear(budget_bytes=0)", OptimizerConfig("sgd"))
    return (plain.step_s, plain.peak_memory_bytes / 2**30), (
        planned.step_s,
        planned.peak_memory_bytes / 2**30,
    )


def _memory() -> Iterator[Row]:
    (_, plain), (_, planned) = _steps()
    yield Row("1,000 layers, 32 images", _PLAIN_GIB, plain)
    yield Row("the same with a sublinear plan", _SUBLINEAR_GIB, planned)


def _extra_time() -> Iterator[Row]:
    (plain_s, _), (planned_s, _) = _steps()
    yield Row("1,000 layers, 32 images", _EXTRA_PERCENT, 100 * (planned_s / plain_s - 1))


_NETWORK = "of ResNet with 5 x (3, 24, 36, 3) blocks on a P100, in float32 with SGD"

TABLES = (
    PaperTable(
        "arXiv 1604.06174, abstract, memory of a 1,000-layer residual network",
        "GiB",
        f"simulated peak {_NETWORK}; the plan is algorithm 3's",
        _memory,
        tolerance=0.3,
        caveat="the paper does not say how the layers are spread over the four stages, and has the workspace of "
        "convolutions and of the driver in its memory",
        is_slow=True,
    ),
    PaperTable(
        "arXiv 1604.06174, abstract and figure 7, additional running time",
        "percent",
        f"simulated step {_NETWORK}",
        _extra_time,
        tolerance=0.25,
        caveat="the paper's GPU, a Titan X, is no preset",
        is_slow=True,
    ),
)
