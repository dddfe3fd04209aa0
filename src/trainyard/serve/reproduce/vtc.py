"""VTC: what clients receive under load, beside what their weights give them, and what the authors' program puts out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from trainyard.published import PaperTable, Row
from trainyard.serve.cache.block_cache import BlockCache
from trainyard.serve.instance import Instance
from trainyard.serve.policies.vllm import vllm
from trainyard.serve.policies.vtc import VTC
from trainyard.serve.reproduce.programs.vidur import STEP_TIME
from trainyard.serve.reproduce.programs.vtc_manager import TABLES as PROGRAM
from trainyard.serve.requests.request import Request, TracedRequest
from trainyard.serve.simulate_requests import simulate_requests

_END_S = 30.0
_RATE_PER_S = 15.0
_WEIGHTS = (1.0, 2.0, 3.0, 4.0)


def _requests() -> Iterator[TracedRequest]:
    """Return the requests of clients that all ask for more than they get."""
    for number in range(int(_RATE_PER_S * _END_S)):
        for client, weight in enumerate(_WEIGHTS):
            name = f"{client}: {number}"
            yield TracedRequest(
                Request(name, number / _RATE_PER_S, 256, 256, client=str(client), weight=weight), 128
            )


def _rows() -> Iterator[Row]:
    instance = Instance(vllm(max_requests=32, admission=VTC()), BlockCache(400, 16), prefix_caching=False)
    results = simulate_requests(_requests(), [instance], STEP_TIME)
    service: dict[str, float] = defaultdict(float)
    for each in results.served:
        if each.finished_s <= _END_S:
            service[each.request.client] += each.request.prompt_tokens + 2 * each.output_tokens
    for client, weight in enumerate(_WEIGHTS[1:], 1):
        yield Row(f"weight {weight:g}", weight, service[str(client)] / service["0"])


TABLES = (
    PaperTable(
        "Sheng et al., OSDI 2024, arXiv 2401.00588, section 4.3 and figure 16: service in proportion to weights",
        "service, as a multiple of that of a client of weight 1",
        f"simulated, four clients with {_RATE_PER_S:g} requests per second each, what ended within {_END_S:g} s",
        _rows,
        tolerance=0.1,
        caveat="requests that have not ended do not count",
    ),
    *PROGRAM,
)
