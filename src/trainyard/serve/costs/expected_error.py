"""The errors to expect of simulated requests: ratios of measured to predicted latencies of three servers.

The ratios are those of the newest record of `benchmarks/serve_truth.py`. It compares closed loops of clients on three
servers with their simulations, by server, kind of model and source of step times. The table has no rows for profiles of
layers, which were compared with two runs of one server only.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

__all__ = ["EXPECTED_ERRORS", "ExpectedError", "TimeSource", "expected_errors"]

TimeSource = Literal["device", "kernels", "layers"]
"""The source of step times: the description of a device, times of single kernels, or profiles of a model's layers."""


class ExpectedError(NamedTuple):
    """Ratios of measured to predicted latencies of one server: eight of ten configurations lie between each pair.

    Attributes
    ----------
    server : the server, a batch policy of the catalog: vllm, sglang or trtllm.
    kind : the kind of models, ``dense`` or ``mixture``.
    source : the source of step times.
    num : number of measured configurations.
    ttft : the 10th and the 90th percentile of the ratio of mean times to first token.
    tpot : the same of mean times per output token.
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
    ExpectedError("sglang", "mixture", "device", 6, (1.6, 2.82), (0.99, 1.13)),
    ExpectedError("sglang", "mixture", "kernels", 6, (1.32, 2.19), (0.88, 1.1)),
    ExpectedError("trtllm", "dense", "device", 10, (1.46, 2.81), (0.9, 1.8)),
    ExpectedError("trtllm", "dense", "kernels", 10, (1.23, 2.69), (0.64, 1.39)),
    ExpectedError("trtllm", "mixture", "device", 11, (1.59, 5.58), (0.69, 1.25)),
    ExpectedError("trtllm", "mixture", "kernels", 11, (1.02, 4.17), (0.57, 1.09)),
)
"""The errors of each server, kind of model and source of step times with at least five measured configurations."""


def expected_errors(policies: Iterable[str], has_experts: bool, source: TimeSource) -> list[ExpectedError]:
    """List the errors to expect of some policies.

    Parameters
    ----------
    policies : as users write them, such as ``vllm(max_requests=64) + vtc``. A policy that no measured server has adds
        nothing.
    has_experts : whether the model has a mixture of experts.
    """
    servers = dict.fromkeys(policy.partition("+")[0].partition("(")[0].strip() for policy in policies)
    kind = "mixture" if has_experts else "dense"
    return [
        error
        for server in servers
        for error in EXPECTED_ERRORS
        if (error.server, error.kind, error.source) == (server, kind, source)
    ]
