"""`trainyard fleet download`: public traces, from where their authors keep them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import tyro

from trainyard.cli.screen import Common, Outcome, Screen

__all__ = ["Options", "act"]


@dataclass(frozen=True)
class Options(Common):
    """List the public traces that can be fetched, or fetch one and check that it is what was published."""

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[NAME]")] = ""
    """A trace of the list."""
    folder: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path(".")
    """Where it is put, under the name that it has at home. What was broken off goes on where it stopped."""


def act(options: Options, screen: Screen) -> Outcome:
    """List, or fetch."""
    from trainyard.fleet.workload.download import TRACES, download
    from trainyard.report.units import bytes_text, percent_text

    if not options.name:
        return _listed()
    with screen.waiting(f"fetching {options.name}") as change:
        path = download(
            options.name,
            options.folder,
            tell=lambda done, size: change(
                f"fetching {options.name}, {percent_text(done / size)} of {bytes_text(size)}"
            ),
        )
    trace = TRACES[options.name]
    document = {"name": options.name, "path": str(path), **asdict(trace)}
    return Outcome(document, (f"{path}: {trace.about}", _next(path, trace.format)))


def _listed() -> Outcome:
    from trainyard.fleet.workload.download import TRACES
    from trainyard.report.tables import make_table
    from trainyard.report.units import bytes_text

    rows = [
        (name, trace.about, trace.format or "packed", bytes_text(trace.size_bytes))
        for name, trace in TRACES.items()
    ]
    table = make_table("public traces", ("name", "what it is", "format", "size"), rows, 3)
    document = {"traces": [{"name": name, **asdict(trace)} for name, trace in TRACES.items()]}
    return Outcome(document, (table, "trainyard fleet download NAME fetches one; --json says from where"))


def _next(path: Path, format: str) -> str:
    """What to do with a trace."""
    from shlex import quote

    from trainyard.fleet.workload.read import FORMATS

    if not format:
        return "unpack it; a trace that is inside can be simulated"
    command = f"simulate it with `trainyard fleet simulate --trace {quote(str(path))} --cluster C"
    if FORMATS[format].needs_profiles:
        return f"{command} --profiles FILE`, where FILE is {FORMATS[format].profiles}"
    return f"{command}`"
