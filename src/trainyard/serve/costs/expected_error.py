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


EXPECTED_ERRORS: tuple[ExpectedError, ...] = ()
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
