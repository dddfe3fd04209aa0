"""`trainyard fleet download`: public traces, from where their authors keep them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import tyro

from trainyard.cli.outputs import Output
from trainyard.cli.screen import Common, Outcome, Screen

__all__ = ["Options", "act"]


@dataclass(frozen=True)
class Options(Common):
    """List the public traces that can be fetched, or fetch one, with the speeds that it needs, and check it.

    What is kept is what was published, to the byte.
    """

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[NAME]")] = ""
    """A trace of the list."""
    folder: Annotated[Path, tyro.conf.arg(metavar="DIR"), Output.FOLDER] = Path(".")
    """Where it is put, under the name that it has at home. What was broken off goes on where it stopped."""


def act(options: Options, screen: Screen) -> Outcome:
    """List, or fetch."""
    from trainyard.fleet.workload.download import TRACES, download, unpacked
    from trainyard.report.units import bytes_text, percent_text

    if not options.name:
        return _listed()
    with screen.waiting("fetching") as change:

        def fetched(name: str) -> Path:
            return download(
                name,
                options.folder,
                tell=lambda done, size: change(
                    f"fetching {name}, {percent_text(done / size)} of {bytes_text(size)}"
                ),
            )

        path, trace = fetched(options.name), TRACES[options.name]
        profiles = fetched(trace.profiles) if trace.profiles else None
        if trace.inside:
            change(f"unpacking {trace.inside}")
            path = unpacked(path, trace.inside)
    document = {"name": options.name, "path": str(path), "profiles_path": profiles and str(profiles)}
    return Outcome(document | asdict(trace), (f"{path}: {trace.about}", _next(path, trace.format, profiles)))


def _listed() -> Outcome:
    from trainyard.fleet.workload.download import TRACES
    from trainyard.report.tables import make_table
    from trainyard.report.units import bytes_text

    rows = [
        (name, trace.about, trace.format or "speeds", bytes_text(trace.size_bytes))
        for name, trace in TRACES.items()
    ]
    table = make_table("public traces", ("name", "what it is", "format", "size"), rows, 3)
    document = {"traces": [{"name": name, **asdict(trace)} for name, trace in TRACES.items()]}
    return Outcome(document, (table, "trainyard fleet download NAME fetches one; --json says from where"))


def _next(path: Path, format: str, profiles: Path | None) -> str:
    """What to do with a trace."""
    from shlex import quote

    from trainyard.fleet.workload.read import FORMATS

    if not format:
        return "it is for --profiles of the traces that refer to it"
    command = f"simulate it with `trainyard fleet simulate --trace {quote(str(path))} --cluster C"
    if profiles is not None:
        return f"{command} --profiles {quote(str(profiles))}`"
    if FORMATS[format].needs_profiles:
        return f"{command} --profiles FILE`, where FILE is {FORMATS[format].profiles}"
    return f"{command}`"
