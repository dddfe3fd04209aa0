"""The time between steps in which the devices wait for the host: scheduling, inputs, sampled tokens, output.

A server that schedules a step while the one before runs leaves no such time, as long as the host is faster than the
devices: vLLM since 0.14 by default (asynchronous scheduling), SGLang since 0.4 and TensorRT-LLM with its overlap
scheduler. Older versions of vLLM did one after the other.

Periods of steps of vLLM 0.15.1 on H100 (inference-sim, `blis_vllm_steps`; only decodes) are longer than the sum of their
kernels in aiconfigurator-core 0.12.0 by -0.4 to +0.3 ms for 8 to 96 requests of CodeLlama 34B on two devices (14.0 to
16.7 ms), and by 0.2 to 1.4 ms for 8 to 64 requests of Llama 2 70B on four (16.2 to 19.2 ms). Nothing is fitted to them:
`overlapped` adds nothing.

Fidelity: a server that launches every kernel from Python (``enforce_eager``) is bound by the host within a step, which is
left out; so is the time of a client's connection, of tokenizing and of streaming, in processes of their own. Published
times are of the hosts and models that the sources name.

References
----------
vLLM, pull requests 19970 and 23569 (asynchronous scheduling; inputs prepared while a step runs). vLLM 0.5.3: issue 6854
("5-13ms of GPU bubble"; the trace shown has 4 ms at each decode) and issue 6913 (Llama 3 70B on four H100: processing
outputs takes 0.2 ms for one request and 3.4 ms for 32). vLLM 0.6.4: issue 10634 (Llama 2 7B, 256 requests: 5 to 6 ms
between two decodes).
"""

from __future__ import annotations

from types import MappingProxyType
from typing import NamedTuple

from trainyard.reading import ReadingError
from trainyard.reading.quantities import parse_seconds
from trainyard.serve.errors import ServeError

__all__ = ["HOST_TIMES", "OVERLAPPED", "HostTime", "host_time_of"]


class HostTime(NamedTuple):
    """Seconds between two steps in which the devices wait: of each step, and of each request in it."""

    step_s: float
    request_s: float

    def seconds(self, num_requests: int) -> float:
        """After a step of so many requests."""
        return self.step_s + num_requests * self.request_s

    def __str__(self) -> str:
        return f"{1e3 * self.step_s:.3g} ms of the host after each step, and {1e6 * self.request_s:.3g} us per request"


OVERLAPPED = HostTime(0.0, 0.0)
"""The host works while the devices do."""

HOST_TIMES = MappingProxyType(
    {
        "overlapped": OVERLAPPED,
        "vllm-0.5": HostTime(4e-3, (3.4e-3 - 0.2e-3) / 31),
        "vllm-0.6": HostTime(0.0, 5.5e-3 / 256),
    }
)
"""Host times by server. Of vLLM 0.6 only a sum is published; it is taken as a time of each request."""


def host_time_of(text: str) -> HostTime:
    """The host time of a server by its name, or seconds of a step and of each request, such as ``2ms+20us``.

    Raises
    ------
    ServeError
        If it is neither.
    """
    if text in HOST_TIMES:
        return HOST_TIMES[text]
    step, _, request = text.partition("+")
    try:
        return HostTime(parse_seconds(step), parse_seconds(request) if request else 0.0)
    except ReadingError as error:
        raise ServeError(
            f"host time {text!r}; allowed are {', '.join(HOST_TIMES)}, or seconds of a step and of each request in it, "
            "such as 2ms+20us"
        ) from error
