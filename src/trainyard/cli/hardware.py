"""`trainyard hardware`: this machine measured, a cluster described, or the known devices."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Annotated

import tyro
from rich.console import RenderableType

from trainyard.cli.screen import Common, Outcome, Screen

__all__ = ["Options", "act"]


@dataclass(frozen=True)
class Options(Common):
    """Describe a cluster; without one, this machine as it was measured, and the known devices."""

    cluster: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[CLUSTER]")] = ""
    """Text form such as 4x8xA100-80G or local:2, or a YAML file."""
    yaml: bool = False
    """Print the cluster as a YAML file that can be edited and used as --cluster."""
    measure: bool = False
    """Measure this machine (no other) anew, and forget what was measured on it: it may have become faster or slower."""


def act(options: Options, screen: Screen) -> Outcome:
    """Describe what was asked for."""
    from trainyard.hardware import HardwareError, forget_measurements, parse_cluster

    if options.measure:
        if options.cluster and not options.cluster.startswith("local"):
            raise HardwareError(
                f"--measure measures this machine, and {options.cluster} is not that; leave CLUSTER out, or give local:N"
            )
        forget_measurements()
    if options.cluster:
        with screen.waiting("looking at the cluster"):
            cluster = parse_cluster(options.cluster)
        text = cluster.to_yaml() if options.yaml else cluster.describe()
        document = {
            "cluster": cluster.name,
            "num_devices": cluster.num_devices,
            "num_nodes": cluster.num_nodes,
            "devices": {device.name: device.to_dict() for node in cluster.nodes for device in node.devices},
        }
        return Outcome(document, (text.rstrip(),))
    return _this_machine(screen)


def _this_machine(screen: Screen) -> Outcome:
    from trainyard.cost.measurements import Measurements
    from trainyard.hardware import DEVICES, local_profile
    from trainyard.report.tables import device_table, facts_table, machine_facts, measured_ops_table

    with screen.waiting("measuring this machine") as progress:
        profile = local_profile(progress)
    entries, now_s = Measurements.read().entries, time.time()
    document = {
        "machine": profile.to_dict(),
        "ops": {key: asdict(entry) for key, entry in entries.items()},
        "devices": {name: spec.to_dict() for name, spec in DEVICES.items()},
    }
    body: list[RenderableType] = [facts_table("this machine", machine_facts(profile, now_s)), ""]
    if entries:
        body += [measured_ops_table(entries, now_s), ""]
    return Outcome(document, (*body, device_table(tuple(DEVICES.values()))))
