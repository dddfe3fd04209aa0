"""`trainyard fleet status`: the jobs of a daemon, its devices, its users, and what happened."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from trainyard.cli.bounds import COUNT
from trainyard.cli.fleet.server import ServerOptions
from trainyard.cli.screen import Outcome, Screen

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["Options", "act"]

_Document = Mapping[str, Any]


@dataclass(frozen=True)
class Options(ServerOptions):
    """List the jobs of a daemon in the order in which they were submitted, why jobs wait, and how many devices are in
    use. Of jobs that are over, only the last 1000 are listed."""

    user: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Only the jobs of this user; with --events, only the events of these jobs."""
    state: Annotated[str | None, tyro.conf.arg(metavar="STATE,STATE")] = None
    """Only jobs in these states: waiting, running, cancelling, cancelled, ended, refused or failed."""
    node: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Only jobs that have devices of this node."""
    summary: bool = False
    """Show the jobs and device time of each user and the devices in use of each node, instead of the jobs."""
    events: Annotated[int | None, tyro.conf.arg(metavar="N"), COUNT] = None
    """List the last N events, oldest first, instead of the jobs."""


def act(options: Options, screen: Screen) -> Outcome:
    """Ask and show."""
    client = options.client()
    if options.events is not None:
        _check_events(options)
        return _events(client.events(options.events, options.user))
    cluster, jobs = client.cluster(), client.jobs(options.user, options.state)
    if options.node is not None:
        names = _names_on(cluster, options.node)
        jobs = [job for job in jobs if job["name"] in names]
    title, document = _title(cluster), {"cluster": cluster, "jobs": jobs}
    if options.summary:
        return _summary(title, document)
    if not jobs:
        is_all = (options.user, options.state, options.node) == (None, None, None)
        none = "no jobs yet; `trainyard fleet submit FILE` brings some" if is_all else "no such jobs"
        return Outcome(document, (title, none))
    columns = ("job", "user", "state", "model", "because", "devices", "done", "time")
    return Outcome(document, (_table(title, columns, [_row(job) for job in jobs], 5),))


def _check_events(options: Options) -> None:
    """Refuse options that do not apply to events."""
    from trainyard.fleet.errors import FleetError

    if options.summary or (options.state, options.node) != (None, None):
        raise FleetError(
            "--events lists events, all or those of the jobs of --user; leave --state, --node and --summary out"
        )


def _names_on(cluster: _Document, node: int) -> frozenset[str]:
    """Return the names of the jobs that have devices of a node.

    Raises
    ------
    FleetError
        If there is no such node.
    """
    from trainyard.fleet.errors import FleetError

    nodes = cluster["nodes"]
    if not 0 <= node < len(nodes):
        raise FleetError(f"--node {node}: the nodes of {cluster['cluster']} are 0 to {len(nodes) - 1}")
    return frozenset(name for device in nodes[node]["devices"] for name in device["jobs"])


def _title(cluster: _Document) -> str:
    """Return the line above the jobs: devices in use, nodes that are away, and a problem of the daemon."""
    title = (
        f"{cluster['cluster']} under {cluster['policy']}: {cluster['num_devices_in_use']} of {cluster['num_devices']} "
        "devices in use"
    )
    if away := [str(node["node"]) for node in cluster["nodes"] if node["is_away"]]:
        title += f"; away: node {', '.join(away)}"
    return title + (f"; {cluster['problem']}" if cluster["problem"] else "")


def _row(job: _Document) -> tuple[str, ...]:
    from trainyard.report.units import duration_text, percent_text

    until_s = time.time() if job["finish_s"] is None else job["finish_s"]
    return (
        job["name"],
        job["user"],
        job["state"],
        job["model"],
        job["reason"],
        ", ".join(map(str, job["devices"])) or f"asked: {job['num_devices']}",
        percent_text(job["share_done"]) if job["steps"] is None else f"{job['steps_done']}/{job['steps']}",
        duration_text(max(0.0, until_s - job["arrival_s"])),
    )


def _events(newest_first: Sequence[_Document]) -> Outcome:
    """Return events in order of time."""
    events = newest_first[::-1]
    rows = [
        (f"{datetime.fromtimestamp(event['at_s']):%Y-%m-%d %H:%M:%S}", event["job"], event["text"])
        for event in events
    ]
    table = _table("events", ("when", "job", "what"), rows, 3) if rows else "no events"
    return Outcome({"events": events}, (table,))


def _summary(title: str, document: Mapping[str, Any]) -> Outcome:
    """Return tables of the jobs and devices of every user, and of the devices in use of every node."""
    from trainyard.report.units import duration_text

    users, nodes = _by_user(document["jobs"]), _by_node(document["cluster"], document["jobs"])
    user_rows = [
        (
            user["user"],
            *(str(user[what]) for what in ("waiting", "running", "over", "num_devices")),
            duration_text(user["attained_device_s"]),
        )
        for user in users
    ]
    node_rows = [
        (
            str(node["node"]),
            node["device_type"] + (", away" if node["is_away"] else ""),
            f"{node['num_devices_in_use']} of {node['num_devices']}",
            str(node["num_jobs"]),
        )
        for node in nodes
    ]
    tables = (
        _table("by user", ("user", "waiting", "running", "over", "devices", "device time"), user_rows, 1),
        _table("by node", ("node", "type", "devices in use", "jobs"), node_rows, 2),
    )
    return Outcome({**document, "by_user": users, "by_node": nodes}, (title, *tables))


def _by_user(jobs: Sequence[_Document]) -> list[dict[str, Any]]:
    """Count jobs and devices by user; a job that is being cancelled counts as running while it has devices."""
    found = []
    for user in sorted({job["user"] for job in jobs}):
        own = [job for job in jobs if job["user"] == user]
        states = Counter("over" if job["finish_s"] is not None else _kind(job) for job in own)
        found.append(
            {
                "user": user,
                **{kind: states[kind] for kind in ("waiting", "running", "over")},
                "num_devices": sum(len(job["devices"]) for job in own),
                "attained_device_s": sum(job["attained_device_s"] for job in own),
            }
        )
    return found


def _kind(job: _Document) -> str:
    return "running" if job["devices"] else "waiting"


def _by_node(cluster: _Document, jobs: Sequence[_Document]) -> list[dict[str, Any]]:
    """Count by node the jobs, and the devices that they have."""
    names, found = {job["name"] for job in jobs}, []
    for node in cluster["nodes"]:
        tenants = [names.intersection(device["jobs"]) for device in node["devices"]]
        found.append(
            {
                "node": node["node"],
                "device_type": node["device_type"],
                "is_away": node["is_away"],
                "num_devices": len(tenants),
                "num_devices_in_use": sum(map(bool, tenants)),
                "num_jobs": len(frozenset[str]().union(*tenants)),
            }
        )
    return found


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], text_columns: int) -> Table:
    from trainyard.report.tables import make_table

    return make_table(title, columns, rows, text_columns)
