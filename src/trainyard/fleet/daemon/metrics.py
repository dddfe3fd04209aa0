"""What the daemon tells Prometheus, asked of the store when Prometheus asks."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from trainyard.fleet.daemon.store import Store
from trainyard.fleet.daemon.tables import State
from trainyard.hardware.cluster import Cluster


class _Jobs(Collector):
    def __init__(self, store: Store, cluster: Cluster) -> None:
        self.store, self.cluster = store, cluster

    def collect(self) -> Iterator[Metric]:
        jobs = GaugeMetricFamily("trainyard_jobs", "Jobs by state", labels=("state",))
        counts = self.store.counts()
        for state, count in counts.items():
            jobs.add_metric([state], count)
        yield jobs
        used = {
            device
            for r in self.store.jobs(State.RUNNING, State.CANCELLING)
            if r.grant
            for device in r.grant.devices
        }
        yield GaugeMetricFamily("trainyard_devices", "Devices that can be used", self.cluster.num_devices)
        yield GaugeMetricFamily("trainyard_nodes_away", "Nodes that cannot be used", len(self.cluster.away))
        yield GaugeMetricFamily("trainyard_devices_in_use", "Devices that jobs have", len(used))
        jct_s, queueing_s, device_s = self.store.totals()
        for name, text, value in (
            ("jobs_ended", "Jobs that ended", counts[State.ENDED]),
            ("completion_seconds", "Sum of times from arrival to end, of jobs that ended", jct_s),
            (
                "queueing_seconds",
                "Sum of times from arrival to first devices, of jobs that ended",
                queueing_s,
            ),
            ("device_seconds", "Devices times time that jobs had that ended", device_s),
        ):
            yield CounterMetricFamily(f"trainyard_{name}", text, value)


def metrics_text(store: Store, cluster: Cluster) -> bytes:
    """All of it, in the text format of Prometheus."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Jobs(store, cluster))
    return generate_latest(registry)
