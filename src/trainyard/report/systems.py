"""The published systems of all levels, seen alike: for pages, lists and the command line."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from trainyard.fleet import catalog as fleet_catalog
from trainyard.job import catalog as job_catalog
from trainyard.naming import Names
from trainyard.published import PaperTable, System
from trainyard.serve import catalog as serve_catalog


@dataclass(frozen=True)
class Level:
    """One level of the product, and its systems.

    Attributes
    ----------
    number, about : which one.
    systems : of its catalog.
    reproduce : package with a module for every system, named as it, that declares ``TABLES``.
    kind : of a system, in a few words.
    command : that uses a system.
    runs : where a system runs.
    """

    number: int
    about: str
    systems: Sequence[System]
    reproduce: str
    kind: Callable[[Any], str]
    command: Callable[[Any], str]
    runs: Callable[[Any], str]

    @property
    def title(self) -> str:
        return f"level {self.number}"

    def tables(self, name: str) -> tuple[PaperTable, ...]:
        """Others' numbers beside ours for a system, at least one table; only its module is imported, nothing computed."""
        found: tuple[PaperTable, ...] = import_module(f"{self.reproduce}.{name}").TABLES
        return found


def usage(entry: job_catalog.Entry) -> str:
    """Return the name of a strategy on the command line, with the strategies that it needs before it."""
    return f"{entry.after} + {entry.name}" if entry.after else entry.name


def _kind(entry: fleet_catalog.Entry) -> str:
    when = f"every {entry.round_s:g} s" if entry.round_s else "at every event"
    return f"decides {when}, {'shares devices' if entry.shares else 'whole devices'}"


def _command(entry: serve_catalog.Entry) -> str:
    """Return the command of a policy of batches or of placement, else its use in Python."""
    if entry.decides in ("batches", "admission"):
        return (
            "trainyard serve simulate --requests TRACE --model llama3-8b --cluster 1x4xA100-80G "
            f"--policy '{entry.name}'"
        )
    if entry.decides == "placement":
        return (
            "trainyard serve place resnet50:1000/s:50ms,bert-base:400/s:100ms --cluster 1x4xA100-80G "
            f"--policy '{entry.name}'"
        )
    factory = entry.factory
    parameters = inspect.signature(factory).parameters.values()
    given = ", ".join(p.name for p in parameters if p.default is p.empty)
    return f"from {factory.__module__} import {factory.__name__}\n\n{factory.__name__}({given})"


LEVELS: tuple[Level, ...] = (
    Level(
        1,
        "one model on many devices",
        job_catalog.CATALOG,
        "trainyard.job.reproduce",
        lambda entry: str(entry.family),
        lambda entry: f"trainyard plan gpt-tiny --cluster 1x4xA100-80G --strategies '{usage(entry)}'",
        lambda entry: "on PyTorch processes and in simulation" if entry.runs else "in simulation only",
    ),
    Level(
        2,
        "many jobs on one cluster",
        fleet_catalog.CATALOG,
        "trainyard.fleet.reproduce",
        _kind,
        lambda entry: f"trainyard fleet simulate --trace TRACE --cluster 4x4 --policy '{entry.name}'",
        lambda entry: entry.runs,
    ),
    Level(
        3,
        "many requests on many models",
        serve_catalog.CATALOG,
        "trainyard.serve.reproduce",
        lambda entry: f"decides about {entry.decides}",
        _command,
        lambda entry: entry.runs,
    ),
)
"""All levels that have systems."""

_NAMES: Names[Any] = Names(
    [system for level in LEVELS for system in level.systems],
    "system",
    "systems",
    "zero",
    ValueError,
    (),
    "nothing",
)


def find(name: str) -> tuple[Level, System]:
    """A system of any level, by name.

    Raises
    ------
    ValueError
        If there is none; the message lists the known names, close ones first.
    """
    _NAMES.find(name)
    return next((level, system) for level in LEVELS for system in level.systems if system.name == name)


def factory_of(system: System) -> Callable[..., Any]:
    """Return the function that makes a system from its options; for a placement, those of ``serve place``."""
    if isinstance(system, serve_catalog.Entry) and system.decides == "placement":
        from trainyard.serve.placing.policies import PLACERS

        return next(each.factory for each in PLACERS if each.name == system.name)
    return system.factory


def options(system: System) -> list[str]:
    """Keywords of a system with their defaults, as code."""
    parameters = inspect.signature(factory_of(system)).parameters.values()
    return [_option(p) for p in parameters]


def _option(parameter: inspect.Parameter) -> str:
    # The default that a dataclass makes anew every time is not in its signature.
    made = parameter.default is parameter.empty or repr(parameter.default) == "<factory>"
    return parameter.name if made else f"{parameter.name}={parameter.default!r}"
