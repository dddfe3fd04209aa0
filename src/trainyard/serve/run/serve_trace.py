"""A trace of requests, served by an engine in real time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from trainyard.serve.errors import ServeError
from trainyard.serve.policy import BatchPolicy
from trainyard.serve.requests.request import Request, TracedRequest
from trainyard.serve.results import Results
from trainyard.serve.run.causal_model import CausalModel
from trainyard.serve.run.engine import Engine, EngineOptions
from trainyard.serve.run.outputs import NewToken, StepRecord
from trainyard.serve.run.sampling import SamplingParams

__all__ = ["serve_trace"]

_GREEDY = SamplingParams(temperature=0.0)


def serve_trace(
    requests: Sequence[TracedRequest],
    model: CausalModel,
    policy: BatchPolicy,
    options: EngineOptions,
    seen: Callable[[StepRecord], None] = lambda record: None,
    tell: Callable[[int], None] = lambda num: None,
) -> Results:
    """Serve requests when they come.

    Parameters
    ----------
    requests : in the order of their arrival, with the tokens of their prompts; none continues another one or has an
        adapter.
    seen : is told of every step.
    tell : is told how many requests have come.

    Returns
    -------
    The same as `simulate_requests` gives; times are seconds from the beginning.

    Raises
    ------
    ServeError
        If a request continues another one, or has an adapter.
    """
    results, began_s = Results(), time.perf_counter()

    def step_seen(record: StepRecord) -> None:
        results.num_steps += bool(record.batch.items)
        results.busy_s += record.end_s - record.start_s
        seen(record)

    engine = Engine(model, policy, options, lambda: time.perf_counter() - began_s, step_seen, results.finish)
    coming, num_come = list(reversed(requests)), 0
    by_number: dict[int, Request] = {}
    while coming or engine.has_work:
        now_s = time.perf_counter() - began_s
        while coming and coming[-1].request.arrival_s <= now_s:
            request = coming.pop().request
            _require_servable(request)
            tell(num_come := num_come + 1)
            try:
                by_number[engine.add(request, _GREEDY, arrival_s=request.arrival_s)] = request
            except ServeError as error:
                results.refuse(request, str(error))
        if not engine.has_work and coming:
            time.sleep(max(0.0, coming[-1].request.arrival_s - now_s))
        for each in engine.step():
            if not isinstance(each, NewToken):
                results.refuse(by_number[each.request], each.why)
    return results


def _require_servable(request: Request) -> None:
    why = ""
    if request.parent:
        why = f"continues {request.parent!r}; allowed are requests that come at a time of their own"
    elif request.adapter:
        why = (
            f"has the adapter {request.adapter!r}, and none is loaded here; allowed are requests without one"
        )
    if why:
        raise ServeError(f"request {request.name!r} {why}")
