"""What error to expect of simulated requests: how far measured servers were from what is predicted for them.

The ratios are those of the newest record of `benchmarks/serve_truth.py`, which compares means of closed loops of equal
requests on three servers with their simulations, by server, kind of model and source of step times. Profiles of layers
were compared with two runs of one server only, so the table has none of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

__all__ = ["EXPECTED_ERRORS", "ExpectedError", "TimeSource", "expected_errors"]

TimeSource = Literal["device", "kernels", "layers"]
"""The description of a device, times of single kernels, or profiles of a model's layers."""


class ExpectedError(NamedTuple):
    """What was measured, over what is predicted: of ten configurations, eight were within each pair of ratios.

    Attributes
    ----------
    server : whose scheduler is simulated: vllm, sglang or trtllm.
    kind : of models, ``dense`` or ``mixture``.
    source : of step times.
    num : configurations that were measured.
    ttft, tpot : ratios of the first and the last tenth; of the mean time to first token, and per output token.
    """

    server: str
    kind: str
    source: TimeSource
    num: int
    ttft: tuple[float, float]
    tpot: tuple[float, float]

    def __str__(self) -> str:
        return (
            f"8 of 10 measured configurations of {self.server} had {_range(self.ttft)} times the TTFT and "
            f"{_range(self.tpot)} times the TPOT that is predicted ({self.num}, {self.kind})"
        )


def _range(ratios: tuple[float, float]) -> str:
    return f"{ratios[0]:.2f} to {ratios[1]:.2f}"


EXPECTED_ERRORS: tuple[ExpectedError, ...] = (
    ExpectedError("vllm", "dense", "device", 9, (1.06, 4.54), (0.99, 1.3)),
    ExpectedError("vllm", "dense", "kernels", 9, (1.09, 3.45), (0.79, 1.12)),
    ExpectedError("vllm", "mixture", "device", 19, (2.07, 4.0), (0.94, 1.58)),
    ExpectedError("vllm", "mixture", "kernels", 19, (0.83, 2.43), (0.78, 1.37)),
    ExpectedError("sglang", "mixture", "device", 6, (0.83, 2.8), (0.99, 1.3)),
    ExpectedError("sglang", "mixture", "kernels", 6, (0.69, 2.19), (0.88, 1.23)),
    ExpectedError("trtllm", "dense", "device", 10, (1.46, 2.81), (0.9, 1.8)),
    ExpectedError("trtllm", "dense", "kernels", 10, (1.23, 2.69), (0.64, 1.39)),
    ExpectedError("trtllm", "mixture", "device", 11, (1.59, 5.58), (0.69, 1.25)),
    ExpectedError("trtllm", "mixture", "kernels", 11, (1.02, 4.17), (0.57, 1.09)),
)
"""One for each server, kind of model and source of which there are at least five configurations."""


def expected_errors(policies: Iterable[str], has_experts: bool, source: TimeSource) -> list[ExpectedError]:
    """The errors to expect of some policies, by their names; none of those that no measured server has."""
    servers = dict.fromkeys(each.partition("+")[0].partition("(")[0].strip() for each in policies)
    kind = "mixture" if has_experts else "dense"
    return [
        each
        for server in servers
        for each in EXPECTED_ERRORS
        if (each.server, each.kind, each.source) == (server, kind, source)
    ]
