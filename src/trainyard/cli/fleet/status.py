"""`trainyard fleet status`: the jobs of a daemon, and its devices."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainyard.cli.fleet.server import ServerOptions
from trainyard.cli.screen import Outcome, Screen

__all__ = ["Options", "act"]


@dataclass(frozen=True)
class Options(ServerOptions):
    """List the jobs of a daemon as they were submitted, all that are not over and the last 1000 of the others, and say
    how many devices are in use."""


def act(options: Options, screen: Screen) -> Outcome:
    """Ask and show."""
    from trainyard.report.tables import make_table

    client = options.client()
    cluster, jobs = client.cluster(), client.jobs()
    title = (
        f"{cluster['cluster']} under {cluster['policy']}: {cluster['num_devices_in_use']} of {cluster['num_devices']} "
        "devices in use"
    )
    if away := [str(node["node"]) for node in cluster["nodes"] if node["is_away"]]:
        title += f"; away: node {', '.join(away)}"
    if cluster["problem"]:
        title += f"; {cluster['problem']}"
    if not jobs:
        return Outcome(
            {"cluster": cluster, "jobs": jobs},
            (title, "no jobs yet; `trainyard fleet submit FILE` brings some"),
        )
    columns = ("job", "user", "state", "model", "because", "devices", "steps", "time")
    table = make_table(title, columns, [_row(job) for job in jobs], text_columns=5)
    return Outcome({"cluster": cluster, "jobs": jobs}, (table,))


def _row(job: Mapping[str, Any]) -> tuple[str, ...]:
    from trainyard.report.units import duration_text

    until_s = time.time() if job["finish_s"] is None else job["finish_s"]
    return (
        job["name"],
        job["user"],
        job["state"],
        job["model"],
        job["reason"],
        ", ".join(map(str, job["devices"])) or f"asked: {job['num_devices']}",
        f"{job['steps_done']}/{job['steps']}",
        duration_text(max(0.0, until_s - job["arrival_s"])),
    )
