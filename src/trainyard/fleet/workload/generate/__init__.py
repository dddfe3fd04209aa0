"""Workloads drawn from published distributions, one file per publication. The same seed gives the same jobs."""

from trainyard.fleet.workload.generate.gavel import gavel_jobs
from trainyard.fleet.workload.generate.helios import helios_jobs
from trainyard.fleet.workload.generate.philly import philly_jobs
from trainyard.fleet.workload.generate.tiresias import tiresias_jobs

__all__ = ["gavel_jobs", "helios_jobs", "philly_jobs", "tiresias_jobs"]
