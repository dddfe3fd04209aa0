"""The queues of VTC's program under its manager, beside what they put out."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any

import pytest
from served import table
from shared_data import DATA, needs_data

from trainyard.serve.batch import Batch
from trainyard.serve.cache.block_cache import BlockCache
from trainyard.serve.instance import Instance
from trainyard.serve.replicas.vtc_manager import QueueVTC, VTCManager
from trainyard.serve.reproduce.programs.vidur import STEP_TIME
from trainyard.serve.reproduce.programs.vtc_manager import ADMISSIONS, served
from trainyard.serve.requests.request import Request, TracedRequest
from trainyard.serve.simulate import simulate_requests


@needs_data(DATA)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == "vtc" else pytest.mark.long) for name in sorted(ADMISSIONS)],
)
def test_service_is_as_in_the_program(name):
    results, service = served(ADMISSIONS[name])
    stopped, whole = (row for row in table(DATA / "reference/serve/vtc.csv") if row["policy"] == name)

    assert results.end_s == pytest.approx(float(whole["end_s"]), rel=1e-6)
    last = service.moments[-1]
    assert (last.num_decodes, last.num_prefills) == (int(whole["decode_steps"]), int(whole["prefill_steps"]))
    _means_are(results.served, whole)

    end = service.stopped(float(stopped["stop_s"]))
    assert end.at_s == pytest.approx(float(stopped["end_s"]), rel=1e-6)
    assert (end.num_decodes, end.num_prefills) == (
        int(stopped["decode_steps"]),
        int(stopped["prefill_steps"]),
    )
    assert abs(end.tokens["c0"] - end.tokens["c1"]) == int(stopped["service_gap_tokens"])
    done = [each for each in results.served if each.finished_s <= end.at_s]
    assert len(done) == int(stopped["finished"])
    _means_are(done, stopped)

    for row in table(DATA / "reference/serve/vtc_service.csv"):
        if row["policy"] == name:
            moment = service.after_decodes(int(row["decode_steps"]))
            assert moment.at_s == pytest.approx(float(row["t_s"]), abs=1e-3)
            assert [moment.tokens["c0"], moment.tokens["c1"]] == [
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


def _arena() -> list[TracedRequest]:
    """The first requests of the program's own trace, ten times as fast, so that clients wait."""
    rows = table(DATA / "serving/vtc/arena_real_trace.csv")[:400]
    return [
        TracedRequest(
            Request(row["req_id"], 0.1 * float(row["arrival_s"]), prompt, output, client=row["client"]),
            output,
        )
        for row in rows
        for prompt, output in [(int(row["prompt_len"]), int(row["output_len"]))]
    ]


def _admitted_by_the_program(requests: list[TracedRequest]) -> list[str]:
    """Names in the order of admission, by the rules of the program in logical time."""
    coming, queues, counters, running, order = deque(requests), {}, {}, [], []
    now_s, num_decodes = 0.0, 0

    def admit() -> list[list[Any]]:
        batch, passed = [], set()
        while len(passed) < len(counters) and len(running) + len(batch) < 128:
            client = min((each for each in counters if each not in passed), key=lambda each: counters[each])
            if not queues[client]:
                passed.add(client)
                continue
            first = queues[client][0]
            tokens = sum(request.prompt_tokens for request, _ in batch) + first.prompt_tokens
            held = [(r.prompt_tokens + n, r.max_tokens - n - 1) for r, n in running]
            held += [(r.prompt_tokens + 1, r.max_tokens - 1) for r in (*(r for r, _ in batch), first)]
            held.sort(key=lambda each: -each[1])
            total = most = 0
            for place, (num, rest) in enumerate(held, 1):
                total += num
                most = max(most, rest * place + total)
            if tokens > 4096 or most >= 10_000:
                break
            queues[client].popleft()
            counters[client] += first.prompt_tokens
            batch.append([first, 0])
        return batch

    while coming or running or any(queues.values()):
        while coming and coming[0].request.arrival_s <= now_s:
            each = coming.popleft().request
            queue = queues.setdefault(each.client, deque())
            own = counters.setdefault(each.client, 0)
            others = [
                counters[client] for client, waiting in queues.items() if waiting and client != each.client
            ]
            if not queue and others:
                counters[each.client] = max(own, min(others))
            queue.append(each)
        batch = admit() if not running or num_decodes >= 10 else []
        if batch:
            order += [request.name for request, _ in batch]
            now_s += 6e-3 + 3e-5 * sum(request.prompt_tokens for request, _ in batch)
            running += batch
            num_decodes = 0
            stepped = batch
        elif running:
            now_s += 6e-3 + 5e-5 * len(running) + 2e-8 * sum(r.prompt_tokens + n for r, n in running)
            for request, _ in running:
                counters[request.client] += 2
            num_decodes += 1
            stepped = running
        else:
            now_s = coming[0].request.arrival_s
            continue
        for each in stepped:
            each[1] += 1
        running = [[request, num] for request, num in running if num < request.max_tokens]
    return order


@needs_data(DATA)
def test_clients_with_equal_counters_are_admitted_as_in_the_program():
    requests = _arena()
    instance = Instance(VTCManager(QueueVTC()), BlockCache(100_000, 1))
    order: dict[str, None] = {}

    def seen(_: int, now_s: float, batch: Batch) -> None:
        order.update((instance.queues.running[item.request].request.name, None) for item in batch.items)

    simulate_requests(requests, [instance], replace(STEP_TIME, attention_s=0.0), seen=seen)
    assert list(order) == _admitted_by_the_program(requests)
