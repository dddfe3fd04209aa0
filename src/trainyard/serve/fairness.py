"""Fairness between clients that compete.

References
----------
Y. Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024, section 3: fairness is about clients that have
requests waiting at the same time; service is counted in tokens, a generated one twice.
R. Jain et al., "A Quantitative Measure of Fairness", DEC TR-301, 1984: (sum x)^2 / (n sum x^2).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from trainyard.serve.results import Served

__all__ = ["fairness"]

Floats = NDArray[np.float64]

_PROMPT, _OUTPUT = 1.0, 2.0


def fairness(served: Iterable[Served]) -> float:
    """Jain's index of the service that clients got per second, and by their weights, while they competed.

    A client competes while it and another client have requests waiting for their first step. A request is taken to be
    served evenly from its first step to its first token, and from there to its last one.

    Returns
    -------
    1 where all clients that ever competed got the same, down to one over their number; NaN where none ever did.
    """
    by_client: dict[str, list[Served]] = defaultdict(list)
    for each in served:
        by_client[each.request.client].append(each)
    clients = [_Requests(own) for own in by_client.values()]
    if len(clients) < 2:
        return float("nan")
    edges_s = np.unique(np.concatenate([each.edges_s for each in clients]))
    middle_s = (edges_s[1:] + edges_s[:-1]) / 2
    num_waiting = np.zeros(len(middle_s), np.int64)
    for client in clients:
        num_waiting += client.waits(middle_s)
    rates = []
    for client in clients:
        is_competing = client.waits(middle_s) & (num_waiting > 1)
        competed_s = np.append(0.0, np.cumsum(np.diff(edges_s) * is_competing))
        if competed_s[-1] > 0:
            rates.append(client.service(edges_s, competed_s) / float(competed_s[-1]))
    return _jain(np.array(rates)) if rates else float("nan")


def _jain(rates: Floats) -> float:
    if not rates.any():
        return 1.0
    rates = (
        rates / rates.max()
    )  # the index stays the same; squares of what small weights make would be too large
    return float(rates.sum() ** 2 / (len(rates) * (rates**2).sum()))


class _Requests:
    """The requests of a client.

    Attributes
    ----------
    edges_s : when it begins and ceases to have any that waits, in turn.
    """

    def __init__(self, own: Sequence[Served]) -> None:
        columns = [(e.arrival_s, e.scheduled_s, e.first_token_s, e.finished_s, e.request.weight) for e in own]
        arrival_s, self._scheduled_s, self._first_token_s, self._finished_s, weight = np.array(columns).T
        self._prompt = _PROMPT * np.array([e.request.prompt_tokens for e in own]) / weight
        self._output = _OUTPUT * np.array([e.output_tokens for e in own]) / weight
        order = np.argsort(arrival_s, kind="stable")
        arrival_s, latest_s = arrival_s[order], np.maximum.accumulate(self._scheduled_s[order])
        is_first = np.append(True, arrival_s[1:] > latest_s[:-1])
        is_last = np.append(is_first[1:], True)
        self.edges_s: Floats = np.column_stack((arrival_s[is_first], latest_s[is_last])).ravel()

    def waits(self, times_s: Floats) -> NDArray[np.bool_]:
        """Whether any of them waits, at some times."""
        found: NDArray[np.bool_] = np.searchsorted(self.edges_s, times_s, "right") % 2 == 1
        return found

    def service(self, edges_s: Floats, competed_s: Floats) -> float:
        """Sum the service in a part of the time, which is given by how much of it lies before each of some times."""
        total = 0.0
        for tokens, start_s, end_s in (
            (self._prompt, self._scheduled_s, self._first_token_s),
            (self._output, self._first_token_s, self._finished_s),
        ):
            overlap_s = np.interp(end_s, edges_s, competed_s) - np.interp(start_s, edges_s, competed_s)
            share = np.divide(overlap_s, end_s - start_s, out=np.zeros_like(overlap_s), where=end_s > start_s)
            total += float((tokens * share).sum())
        return total
