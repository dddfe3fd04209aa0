"""The same requests under the same policies, simulated and served, on one machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trainyard.serve.cache.block_cache import BlockCache
from trainyard.serve.catalog import parse_policies
from trainyard.serve.compare import PolicyRun
from trainyard.serve.instance import Instance
from trainyard.serve.requests.request import TracedRequest
from trainyard.serve.run.causal_model import CausalModel
from trainyard.serve.run.engine import EngineOptions
from trainyard.serve.run.measure import measured_step_time
from trainyard.serve.run.serve_trace import serve_trace
from trainyard.serve.simulate_requests import simulate_requests
from trainyard.serve.step_time import LinearStepTime
from trainyard.serve.summary import Distribution, Summary

__all__ = ["SimulatedAndServed", "simulated_and_served"]


@dataclass(frozen=True, eq=False)
class SimulatedAndServed:
    """Two runs of one policy.

    Attributes
    ----------
    name : of the policy, with its options.
    step_time : with which was simulated; measured right before the requests were served.
    simulated, served : the runs.
    """

    name: str
    step_time: LinearStepTime
    simulated: PolicyRun
    served: PolicyRun

    def errors(self) -> dict[str, float]:
        """Relative errors of the simulation; positive if it is above the measured value."""
        found = {}
        for name in ("ttft", "tpot", "e2e"):
            ours: Distribution = getattr(self.simulated.summary, name)
            measured: Distribution = getattr(self.served.summary, name)
            found[f"{name}_mean"] = ours.mean_s / measured.mean_s - 1
            found[f"{name}_p99"] = ours.p99_s / measured.p99_s - 1
        return found


def simulated_and_served(
    policies: str,
    requests: Sequence[TracedRequest],
    model: CausalModel,
    options: EngineOptions,
    tell: Callable[[str], None] = lambda what: None,
) -> tuple[SimulatedAndServed, ...]:
    """Simulate and serve requests under each policy; serving takes as long as the requests come, or longer.

    Parameters
    ----------
    policies : as `parse_policies` reads them.
    requests : in the order of their arrival, with the tokens of their prompts; none continues another one.
    tell : is told what comes next.

    Raises
    ------
    ServeError
        If the text does not name policies, or a policy cannot serve the requests.
    """
    found = []
    longest = max(traced.request.prompt_tokens for traced in requests)
    for name, policy in parse_policies(policies):
        tell(f"measuring steps for {name}")
        step_time = measured_step_time(model, max(16, min(longest, model.context // 2)))
        tell(f"simulating {name}")
        cache = BlockCache(options.num_blocks, options.block_tokens, options.num_host_blocks)
        instance = Instance(
            policy, cache, options.max_model_len or model.context, prefix_caching=options.prefix_caching
        )
        simulated = simulate_requests(requests, [instance], step_time)

        def told(num: int, name: str = name) -> None:
            tell(f"serving {name}, {num:,} of {len(requests):,} requests")

        served = serve_trace(requests, model, policy, options, tell=told)
        runs = (
            PolicyRun(f"{name}, {how}", policy, results, Summary.of(results, 1))
            for how, results in (("simulated", simulated), ("served", served))
        )
        found.append(SimulatedAndServed(name, step_time, *runs))
    return tuple(found)
