"""Level 2: many jobs on one cluster."""

from types import MappingProxyType
from typing import TYPE_CHECKING

from trainyard.lazy_names import lazy_names

if TYPE_CHECKING:
    from trainyard.fleet.api import FleetComparison as FleetComparison
    from trainyard.fleet.api import compare as compare
    from trainyard.fleet.api import draw_jobs as draw_jobs
    from trainyard.fleet.api import read_jobs as read_jobs
    from trainyard.fleet.api import simulate as simulate
    from trainyard.fleet.errors import FleetError as FleetError
    from trainyard.fleet.mechanism.costs import Costs as Costs
    from trainyard.fleet.mechanism.hazards import Hazards as Hazards
    from trainyard.fleet.records import FleetRun as FleetRun
    from trainyard.fleet.study import Study as Study
    from trainyard.fleet.workload.job import Job as Job
    from trainyard.fleet.workload.job import declared_job as declared_job

_HOME = MappingProxyType(
    {
        "Costs": "trainyard.fleet.mechanism.costs",
        "FleetComparison": "trainyard.fleet.api",
        "FleetError": "trainyard.fleet.errors",
        "FleetRun": "trainyard.fleet.records",
        "Hazards": "trainyard.fleet.mechanism.hazards",
        "Job": "trainyard.fleet.workload.job",
        "Study": "trainyard.fleet.study",
        "compare": "trainyard.fleet.api",
        "declared_job": "trainyard.fleet.workload.job",
        "draw_jobs": "trainyard.fleet.api",
        "read_jobs": "trainyard.fleet.api",
        "simulate": "trainyard.fleet.api",
    }
)

__all__ = [
    "Costs",
    "FleetComparison",
    "FleetError",
    "FleetRun",
    "Hazards",
    "Job",
    "Study",
    "compare",
    "declared_job",
    "draw_jobs",
    "read_jobs",
    "simulate",
]

__getattr__, __dir__ = lazy_names(__name__, _HOME, globals())
