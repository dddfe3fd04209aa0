"""Level 3: many requests on many models."""

from types import MappingProxyType
from typing import TYPE_CHECKING

from trainyard.lazy_names import lazy_names

if TYPE_CHECKING:
    from trainyard.serve.api import ServingComparison as ServingComparison
    from trainyard.serve.api import deployment_of as deployment_of
    from trainyard.serve.api import draw_requests as draw_requests
    from trainyard.serve.api import plan as plan
    from trainyard.serve.api import read_requests as read_requests
    from trainyard.serve.api import simulate as simulate
    from trainyard.serve.compare import PolicyRun as PolicyRun
    from trainyard.serve.deployment import Deployment as Deployment
    from trainyard.serve.errors import DoesNotFitError as DoesNotFitError
    from trainyard.serve.errors import ServeError as ServeError
    from trainyard.serve.planning.plan import ServingPlan as ServingPlan
    from trainyard.serve.requests.request import Request as Request
    from trainyard.serve.requests.request import TracedRequest as TracedRequest
    from trainyard.serve.summary import Summary as Summary

_HOME = MappingProxyType(
    {
        "Deployment": "trainyard.serve.deployment",
        "DoesNotFitError": "trainyard.serve.errors",
        "PolicyRun": "trainyard.serve.compare",
        "Request": "trainyard.serve.requests.request",
        "ServeError": "trainyard.serve.errors",
        "ServingComparison": "trainyard.serve.api",
        "ServingPlan": "trainyard.serve.planning.plan",
        "Summary": "trainyard.serve.summary",
        "TracedRequest": "trainyard.serve.requests.request",
        "deployment_of": "trainyard.serve.api",
        "draw_requests": "trainyard.serve.api",
        "plan": "trainyard.serve.api",
        "read_requests": "trainyard.serve.api",
        "simulate": "trainyard.serve.api",
    }
)

__all__ = [
    "Deployment",
    "DoesNotFitError",
    "PolicyRun",
    "Request",
    "ServeError",
    "ServingComparison",
    "ServingPlan",
    "Summary",
    "TracedRequest",
    "deployment_of",
    "draw_requests",
    "plan",
    "read_requests",
    "simulate",
]

__getattr__, __dir__ = lazy_names(__name__, _HOME, globals())
