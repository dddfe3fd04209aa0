"""The queues of VTC's program under its manager, beside what they put out."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import pytest
from served import DATA, STEP, needs_data, table

from trainyard.serve.admission import Admission, FirstCome
from trainyard.serve.batch import Batch
from trainyard.serve.cache.block_cache import BlockCache
from trainyard.serve.instance import Instance
from trainyard.serve.replicas.vtc_manager import QueueVTC, VTCManager
from trainyard.serve.requests.request import Request, TracedRequest
from trainyard.serve.simulate import simulate_requests

_ADMISSIONS: dict[str, Admission] = {"fcfs": FirstCome(), "vtc": QueueVTC()}


def _requests():
    arrivals = [(i / 15, "c0") for i in range(900)] + [(i / 30, "c1") for i in range(1800)]
    for number, (arrival_s, client) in enumerate(sorted(arrivals)):
        yield TracedRequest(Request(str(number), arrival_s, 256, 256, client=client), 256)


class _Service:
    """What each client received, by decode steps; decodes so far, and when each step ended."""

    def __init__(self, instance: Instance) -> None:
        self.instance, self.tokens = instance, defaultdict[str, float](float)
        self.num_decodes = self.num_prefills = 0
        self.after: dict[int, tuple[float, dict[str, float]]] = {}
        self.stops: list[tuple[float, dict[str, float], int, int]] = []
        self._last: Batch | None = None

    def seen(self, _: int, now_s: float, batch: Batch) -> None:
        """The step before ended before this one began."""
        self.end_last(now_s)
        self._last = batch
        self._clients = {
            i.request: self.instance.queues.running[i.request].request.client for i in batch.items
        }
        self._is_decode = all(self.instance.queues.running[i.request].decodes for i in batch.items)

    def end_last(self, now_s: float) -> None:
        if self._last is None:
            return
        for item in self._last.items:
            self.tokens[self._clients[item.request]] += 2 if self._is_decode else item.stop - item.start + 2
        self.num_decodes += self._is_decode
        self.num_prefills += not self._is_decode
        if self._is_decode:
            self.after[self.num_decodes] = now_s, dict(self.tokens)
        self.stops.append((now_s, dict(self.tokens), self.num_decodes, self.num_prefills))


@needs_data
@pytest.mark.parametrize("name", sorted(_ADMISSIONS))
def test_service_is_as_in_the_program(name):
    instance = Instance(VTCManager(_ADMISSIONS[name]), BlockCache(100_000, 1))
    service = _Service(instance)
    results = simulate_requests(_requests(), [instance], replace(STEP, attention_s=0.0), seen=service.seen)
    service.end_last(results.end_s)
    stopped, whole = (row for row in table(DATA / "reference/serve/vtc.csv") if row["policy"] == name)

    assert results.end_s == pytest.approx(float(whole["end_s"]), rel=1e-6)
    assert (service.num_decodes, service.num_prefills) == (
        int(whole["decode_steps"]),
        int(whole["prefill_steps"]),
    )
    _means_are(results.served, whole)

    end_s, tokens, *nums = next(each for each in service.stops if each[0] >= float(stopped["stop_s"]))
    assert end_s == pytest.approx(float(stopped["end_s"]), rel=1e-6)
    assert nums == [int(stopped["decode_steps"]), int(stopped["prefill_steps"])]
    assert abs(tokens["c0"] - tokens["c1"]) == int(stopped["service_gap_tokens"])
    done = [each for each in results.served if each.finished_s <= end_s]
    assert len(done) == int(stopped["finished"])
    _means_are(done, stopped)

    for row in table(DATA / "reference/serve/vtc_service.csv"):
        if row["policy"] == name:
            now_s, tokens = service.after[int(row["decode_steps"])]
            assert now_s == pytest.approx(float(row["t_s"]), abs=1e-3)
            assert [tokens["c0"], tokens["c1"]] == [
                int(row["service_c0_tokens"]),
                int(row["service_c1_tokens"]),
            ]


def _means_are(served, said):
    for client in ("c0", "c1"):
        ttft_s = [each.ttft_s for each in served if each.request.client == client]
        assert sum(ttft_s) / len(ttft_s) == pytest.approx(float(said[f"ttft_mean_{client}_s"]), rel=1e-6)
    for what in ("ttft", "e2e"):
        times_s = [getattr(each, f"{what}_s") for each in served]
        assert sum(times_s) / len(times_s) == pytest.approx(float(said[f"{what}_mean_s"]), rel=1e-6)
