"""What becomes of requests on packed GPUs: each computes a batch of one of its sessions after the other, with early drop.

As in the authors' program a GPU does not wait for its cycle to end: it takes what has come, up to the batch of the
session.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainyard.serve.policies.nexus.dispatch import early_drop
from trainyard.serve.policies.nexus.packing import PackedDevice

__all__ = ["SessionOutcome", "simulate"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class SessionOutcome:
    """What became of the requests of a session.

    Attributes
    ----------
    num_asked : requests.
    num_good : of these, within their objective; the others were dropped.
    total_s : sum of the latencies of those that were served.
    """

    num_asked: int
    num_good: int
    total_s: float


def simulate(devices: tuple[PackedDevice, ...], arrival_s: Mapping[str, Floats]) -> dict[str, SessionOutcome]:
    """Serve requests; those of a session go to its GPUs in turn, to each as its part of the rate is.

    Parameters
    ----------
    arrival_s : of the requests of every session, in ascending order, shape ``(requests,)``.

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
    for node, given in zip(devices, sent, strict=True):
        _serve(node, given, good, total_s)
    return {
        name: SessionOutcome(len(times_s), good[name], total_s[name]) for name, times_s in arrival_s.items()
    }


def _in_turn(times_s: Floats, rates: list[float]) -> dict[int, Floats]:
    """The requests of each GPU that has a part of the rate."""
    places = [place for place, rate in enumerate(rates) if rate > 0]
    if not places:
        return {}
    shares = np.array([rates[place] for place in places]) / sum(rates)
    behind, chosen = np.zeros(len(places)), np.empty(len(times_s), np.int64)
    for i in range(len(times_s)):
        behind += shares
        chosen[i] = at = int(behind.argmax())
        behind[at] -= 1
    return {place: times_s[chosen == i] for i, place in enumerate(places)}


def _serve(
    node: PackedDevice, sent: Mapping[str, Floats], good: dict[str, int], total_s: dict[str, float]
) -> None:
    """Serve the requests of a GPU, and count them."""
    heads = dict.fromkeys(sent, 0)
    now_s = 0.0
    while waiting := [sent[name][head] for name, head in heads.items() if head < len(sent[name])]:
        now_s = max(now_s, float(min(waiting)))
        for session, batch in zip(node.sessions, node.batches, strict=True):
            name = session.name
            if name not in sent:
                continue
            come = int(np.searchsorted(sent[name], now_s, "right"))
            there_s = sent[name][heads[name] : come]
            due_s = (there_s + (session.objective_s - session.profile.outside_s)).tolist()
            dropped, size = early_drop(due_s, now_s, batch, session.profile)
            heads[name] += dropped + size
            if size:
                now_s += session.profile.latency(size)
                good[name] += size
                latency_s = now_s + session.profile.outside_s - there_s[dropped : dropped + size]
                total_s[name] += float(latency_s.sum())
