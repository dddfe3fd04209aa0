"""What the queues of VTC's program put out under its manager, beside ours.

Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024; Ying1123/VTC-artifact at 192c2e2, in logical time.
Two clients ask for 256 tokens after prompts of 256, one 15 times a second, the other 30 times, for a minute.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from trainyard.published import PaperTable, Row
from trainyard.serve.admission import Admission, FirstCome
from trainyard.serve.batch import Batch
from trainyard.serve.cache.block_cache import BlockCache
from trainyard.serve.instance import Instance
from trainyard.serve.replicas.vtc_manager import QueueVTC, VTCManager
from trainyard.serve.reproduce.programs.vidur import STEP_TIME
from trainyard.serve.requests.request import Request, TracedRequest
from trainyard.serve.results import Results
from trainyard.serve.simulate_requests import simulate_requests

__all__ = ["ADMISSIONS", "TABLES", "Moment", "Service", "served"]

ADMISSIONS: Mapping[str, Admission] = {"fcfs": FirstCome(), "vtc": QueueVTC()}
"""By their names in the program."""

_STOP_S = 60.0


class Moment(NamedTuple):
    """The end of a step.

    Attributes
    ----------
    at_s : when it was.
    tokens : service that each client has received, in tokens.
    num_decodes, num_prefills : steps of each kind so far.
    """

    at_s: float
    tokens: Mapping[str, float]
    num_decodes: int
    num_prefills: int


class Service:
    """What each client received, step by step.

    Attributes
    ----------
    moments : ends of all steps.
    """

    def __init__(self, instance: Instance) -> None:
        self.moments: list[Moment] = []
        self._instance, self._tokens = instance, defaultdict[str, float](float)
        self._num_decodes = self._num_prefills = 0
        self._last: tuple[bool, list[tuple[str, int]]] | None = None

    def seen(self, _: int, now_s: float, batch: Batch) -> None:
        """The step before ended before this one began."""
        self.end_last(now_s)
        running = self._instance.queues.running
        is_decode = all(running[item.request].decodes for item in batch.items)
        clients = [(running[item.request].request.client, item.stop - item.start) for item in batch.items]
        self._last = is_decode, clients

    def end_last(self, now_s: float) -> None:
        """The last step ended, at the latest now."""
        if self._last is None:
            return
        is_decode, clients = self._last
        for client, num in clients:
            self._tokens[client] += 2 if is_decode else num + 2
        self._num_decodes += is_decode
        self._num_prefills += not is_decode
        self.moments.append(Moment(now_s, dict(self._tokens), self._num_decodes, self._num_prefills))

    def after_decodes(self, num: int) -> Moment:
        """The end of the decode of that number, from 1."""
        return next(each for each in self.moments if each.num_decodes == num)

    def stopped(self, at_s: float) -> Moment:
        """The first end of a step at that time or later."""
        return next(each for each in self.moments if each.at_s >= at_s)


def served(admission: Admission) -> tuple[Results, Service]:
    """All requests, in an order of admission."""
    instance = Instance(VTCManager(admission), BlockCache(100_000, 1))
    service = Service(instance)
    results = simulate_requests(
        _requests(), [instance], replace(STEP_TIME, attention_s=0.0), seen=service.seen
    )
    service.end_last(results.end_s)
    return results, service


def _requests() -> Iterator[TracedRequest]:
    arrivals = [(i / 15, "c0") for i in range(900)] + [(i / 30, "c1") for i in range(1800)]
    for number, (arrival_s, client) in enumerate(sorted(arrivals)):
        yield TracedRequest(Request(str(number), arrival_s, 256, 256, client=client), 256)


def _service_rows() -> Iterator[Row]:
    _, fair = served(ADMISSIONS["vtc"])
    theirs = {2000: (63700, 57906), 4000: (123588, 119040), 6000: (183428, 180480)}
    for num, tokens in theirs.items():
        found = fair.after_decodes(num).tokens
        yield Row(f"client of 15 requests a second, after {num} decode steps", tokens[0], found["c0"])
        yield Row(f"client of 30 requests a second, after {num} decode steps", tokens[1], found["c1"])
    _, first = served(ADMISSIONS["fcfs"])
    for name, gap, service in (("VTC", 3106, fair), ("first come, first served", 154742, first)):
        found = service.stopped(_STOP_S).tokens
        yield Row(f"difference after {_STOP_S:g} s, {name}", gap, abs(found["c0"] - found["c1"]))


def _time_rows() -> Iterator[Row]:
    results, _ = served(ADMISSIONS["vtc"])
    ttft_s = defaultdict(list)
    for each in results.served:
        ttft_s[each.request.client].append(each.ttft_s)
    yield Row("end of the last request", 269.518680, results.end_s)
    for client, rate, theirs_s in (("c0", 15, 59.021002), ("c1", 30, 126.338071)):
        mean_s = sum(ttft_s[client]) / len(ttft_s[client])
        yield Row(f"mean time to first token, client of {rate} requests a second", theirs_s, mean_s)
    e2e_s = results.of_served(lambda each: each.e2e_s)
    yield Row("mean time to last token", 105.789353, float(e2e_s.mean()))


_SOURCE = "The authors' program of VTC, OSDI 2024, its queues in logical time, 2,700 requests of two clients"
_METHOD = "simulated by the rules of the program, the same requests and step time"

TABLES = (
    PaperTable(
        f"{_SOURCE}, service",
        "tokens: those of prompts, and twice those generated",
        _METHOD,
        _service_rows,
        tolerance=0.0,
        is_slow=True,
    ),
    PaperTable(f"{_SOURCE}, times", "s", _METHOD, _time_rows, tolerance=1e-6, is_slow=True),
)
"""What clients receive, and how long they wait."""
