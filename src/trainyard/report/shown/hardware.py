"""A cluster in a session of Python and in a notebook."""

from __future__ import annotations

from collections import Counter

from trainyard.hardware.cluster import Cluster
from trainyard.report.page import Table, tables_html
from trainyard.report.units import count_text

__all__ = ["html_of", "text_of"]


def text_of(cluster: Cluster) -> str:
    """One line: nodes and devices."""
    kinds = Counter(device.name for node in cluster.nodes for device in node.devices)
    devices = ", ".join(f"{count:,} {name}" for name, count in kinds.items())
    return f"<Cluster {cluster.name}: {count_text(cluster.num_nodes, 'node')} with {devices}>"


def html_of(cluster: Cluster) -> str:
    """A table of the kinds of nodes."""
    kinds = Counter(tuple(device.name for device in node.devices) for node in cluster.nodes)
    rows = tuple(
        (str(count), str(len(names)), ", ".join(dict.fromkeys(names))) for names, count in kinds.items()
    )
    return tables_html([Table(f"Cluster {cluster.name}", ("nodes", "devices of each", "type"), rows)])
