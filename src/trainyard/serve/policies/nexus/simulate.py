"""Simulate requests on packed GPUs: each computes a batch of one of its sessions after the other, with early drop.

As in the authors' program a GPU does not wait for its cycle to end: it takes what has come, up to the batch of the
session.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainyard.compiling import lean
from trainyard.serve.policies.nexus.dispatch import first_in_time
from trainyard.serve.policies.nexus.packing import PackedDevice

__all__ = ["SessionOutcome", "simulate"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class SessionOutcome:
    """Outcome of the requests of a session.

    Attributes
    ----------
    num_asked : requests.
    num_good : of these, within their objective; the others were dropped.
    total_s : sum of the latencies of those that were served.
    """

    num_asked: int
    num_good: int
    total_s: float


def simulate(
    devices: tuple[PackedDevice, ...], arrival_s: Mapping[str, Floats], busy_s: Floats | None = None
) -> dict[str, SessionOutcome]:
    """Serve requests; those of a session go to its GPUs in turn, to each as its part of the rate is.

    Parameters
    ----------
    arrival_s : of the requests of every session, in ascending order, shape ``(requests,)``.
    busy_s : the time in which each GPU computes is added here, shape ``(GPUs,)``.

    Returns
    -------
    By session; no request of one that is on no GPU is good.
    """
    sent = [dict[str, Floats]() for _ in devices]
    for name, times_s in arrival_s.items():
        rates = [sum(s.rate_per_s for s in node.sessions if s.name == name) for node in devices]
        for place, part in _in_turn(times_s, rates).items():
            sent[place][name] = part
    good, total_s = dict.fromkeys(arrival_s, 0), dict.fromkeys(arrival_s, 0.0)
    for number, (node, given) in enumerate(zip(devices, sent, strict=True)):
        computed_s = _serve(node, given, good, total_s)
        if busy_s is not None:
            busy_s[number] += computed_s
    return {
        name: SessionOutcome(len(times_s), good[name], total_s[name]) for name, times_s in arrival_s.items()
    }


def _in_turn(times_s: Floats, rates: list[float]) -> dict[int, Floats]:
    """The requests of each GPU that has a part of the rate."""
    places = [place for place, rate in enumerate(rates) if rate > 0]
    if not places:
        return {}
    shares = np.array([rates[place] for place in places]) / sum(rates)
    chosen = np.empty(len(times_s), np.int64)
    _choose_in_turn(shares, np.zeros(len(places)), chosen)
    return {place: times_s[chosen == i] for i, place in enumerate(places)}


@lean
def _choose_in_turn(shares, behind, chosen):  # type: ignore[no-untyped-def]
    """Choose for each request the GPU that is most behind its share; the first of equal ones.

    Parameters
    ----------
    behind : requests that each GPU should have had and has not; at first none, shape ``(GPUs,)``.
    chosen : written here, shape ``(requests,)``.
    """
    for i in range(len(chosen)):
        most = 0
        for place in range(len(shares)):
            behind[place] += shares[place]
            if behind[place] > behind[most]:
                most = place
        behind[most] -= 1
        chosen[i] = most


def _serve(
    node: PackedDevice, sent: Mapping[str, Floats], good: dict[str, int], total_s: dict[str, float]
) -> float:
    """Serve the requests of a GPU, and count them; returns the time in which it computes."""
    served = [(s, b) for s, b in zip(node.sessions, node.batches, strict=True) if s.name in sent]
    if not served:
        return 0.0
    ends = np.cumsum([len(sent[session.name]) for session, _ in served])
    heads = np.concatenate([[0], ends[:-1]])
    largest = max(len(session.profile.latency_by_size_s) for session, _ in served)
    latency_s = np.stack(
        [
            np.pad(each, (0, largest - len(each)), mode="edge")
            for each in (session.profile.latency_by_size_s for session, _ in served)
        ]
    )
    num_good, sums_s = np.zeros(len(served), np.int64), np.zeros(len(served))
    computed_s: float = _serve_in_cycles(
        np.concatenate([sent[session.name] for session, _ in served]),
        heads,
        heads.copy(),
        ends,
        np.array([session.objective_s for session, _ in served]),
        np.array([session.profile.outside_s for session, _ in served]),
        np.array([batch for _, batch in served]),
        latency_s,
        num_good,
        sums_s,
    )
    for i, (session, _) in enumerate(served):
        good[session.name] += int(num_good[i])
        total_s[session.name] += float(sums_s[i])
    return computed_s


@lean
def _serve_in_cycles(  # type: ignore[no-untyped-def]
    arrival_s, heads, come, ends, objective_s, outside_s, batches, latency_s, num_good, sums_s
):
    """Compute a batch of each session after the other; good requests and their latencies are added up.

    Returns the time in which the GPU computes.

    Parameters
    ----------
    arrival_s : of the sessions one after the other, each in ascending order.
    heads, come, ends : of every session: its first request that waits, the first that has not come, and its end.
    latency_s : of batches, shape ``(sessions, sizes)``.
    """
    now_s, computed_s = 0.0, 0.0
    while True:
        next_s = np.inf
        for s in range(len(heads)):
            if heads[s] < ends[s]:
                next_s = min(next_s, arrival_s[heads[s]])
        if next_s == np.inf:
            return computed_s
        now_s = max(now_s, next_s)
        for s in range(len(heads)):
            while come[s] < ends[s] and arrival_s[come[s]] <= now_s:
                come[s] += 1
            allowed_s = objective_s[s] - outside_s[s]
            dropped, size = first_in_time(
                arrival_s, heads[s], come[s], allowed_s, now_s, batches[s], latency_s[s]
            )
            first, heads[s] = heads[s] + dropped, heads[s] + dropped + size
            if size:
                batch_s = latency_s[s, min(size, latency_s.shape[1] - 1)]
                now_s += batch_s
                computed_s += batch_s
                num_good[s] += size
                for i in range(first, first + size):
                    sums_s[s] += now_s + outside_s[s] - arrival_s[i]
