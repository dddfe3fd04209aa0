"""Jobs in Trainyard's own form that run a command."""

from __future__ import annotations

from typing import Any

from trainyard.fleet.workload.command import PER_DEVICE, PER_NODE, Command, default_processes
from trainyard.fleet.workload.paths import absolute_path
from trainyard.reading.defaults import changed_fields
from trainyard.reading.limits import LONGEST_S, MOST_STEPS
from trainyard.reading.rows import Row

COMMAND_OPTIONS = ("folder", "processes", "grace_s")
"""Columns that only jobs with a command have, beside ``command``; they are fields of `Command`."""


def read_command(row: Row) -> Command | None:
    """Return the command of a job; None for a job without one. The row has no empty fields.

    Raises
    ------
    FleetError
        If the command or one of its options has no allowed value; the message says where.
    """
    given = row.fields
    if "command" not in given:
        for name in COMMAND_OPTIONS:
            if name in given:
                raise row.error(name, "nothing where no command is given")
        return None
    line = given["command"]
    if not line.strip() or "\0" in line:
        raise row.error("command", "a line of a shell")
    processes = given.get("processes", default_processes(line))
    if processes not in (PER_DEVICE, PER_NODE):
        raise row.error("processes", f"{PER_DEVICE} or {PER_NODE}: for what the command is started once")
    rest: dict[str, Any] = {"steps": row.count("steps", 1, MOST_STEPS)} if "steps" in given else {}
    if "grace_s" in given:
        rest["grace_s"] = row.number("grace_s")
        if rest["grace_s"] > LONGEST_S:
            raise row.error("grace_s", f"a number of at most {LONGEST_S:g}")
    return Command(line, absolute_path(row, "folder", given.get("folder", ".")), processes, **rest)


def command_fields(command: Command) -> dict[str, Any]:
    """Return the fields of a row that describe the command; defaults are left out."""
    values = {"command": command.line, "folder": command.folder}
    if command.processes != default_processes(command.line):
        values["processes"] = command.processes
    return values | changed_fields(command, ("grace_s", "steps"))
