"""`trainyard hardware`: this machine measured, a cluster described, or the known devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro

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
    from trainyard.hardware import DEVICES, HardwareError, forget_measurements, local_profile, parse_cluster
    from trainyard.report.tables import device_table, facts_table, machine_facts

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
            "devices": {device.name: device.to_dict() for device in cluster.devices},
        }
        return Outcome(document, (text.rstrip(),))
    with screen.waiting("measuring this machine") as change:
        profile = local_profile(lambda what, fraction: change(f"measuring {what} ({fraction:.0%})"))
    document = {
        "machine": profile.to_dict(),
        "devices": {name: spec.to_dict() for name, spec in DEVICES.items()},
    }
    return Outcome(
        document,
        (facts_table("this machine", machine_facts(profile)), "", device_table(tuple(DEVICES.values()))),
    )
