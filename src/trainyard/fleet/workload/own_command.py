"""Jobs of the own form that run a command of their own."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from trainyard.fleet.workload.command import PER_DEVICE, PER_NODE, Command, usual_processes
from trainyard.fleet.workload.paths import absolute
from trainyard.reading.limits import LONGEST_S, MOST_STEPS
from trainyard.reading.rows import Row

COMMAND_OPTIONS = ("folder", "processes", "grace_s")
"""Columns that only such jobs have, beside ``command``; they are fields of `Command`."""
_DEFAULTS = {field.name: field.default for field in fields(Command)}


def read_command(row: Row) -> Command | None:
    """The command of a job; None for a job without one. Empty fields are left out of the row.

    Raises
    ------
    FleetError
        If it cannot be run so; the message says where that stands.
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
    processes = given.get("processes", usual_processes(line))
    if processes not in (PER_DEVICE, PER_NODE):
        raise row.error("processes", f"{PER_DEVICE} or {PER_NODE}: for what the command is started once")
    rest: dict[str, Any] = {"steps": row.count("steps", 1, MOST_STEPS)} if "steps" in given else {}
    if "grace_s" in given:
        rest["grace_s"] = row.number("grace_s")
        if rest["grace_s"] > LONGEST_S:
            raise row.error("grace_s", f"a number of at most {LONGEST_S:g}")
    return Command(line, absolute(row, "folder", given.get("folder", ".")), processes, **rest)


def command_values(command: Command) -> dict[str, Any]:
    """What is not the default, by column."""
    values = {"command": command.line, "folder": command.folder}
    if command.processes != usual_processes(command.line):
        values["processes"] = command.processes
    rest = {"grace_s": command.grace_s, "steps": command.steps}
    return values | {name: value for name, value in rest.items() if value != _DEFAULTS[name]}
