"""`trainyard fleet download`: public traces, from where their authors keep them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from trainyard.cli.downloading import DownloadOptions, fetched, listed
from trainyard.cli.screen import Outcome, Screen

__all__ = ["Options", "act"]


@dataclass(frozen=True)
class Options(DownloadOptions):
    """List the public traces that can be fetched, or fetch one, with the speeds that it needs, and check it.

    The file is kept exactly as it was published.
    """


def act(options: Options, screen: Screen) -> Outcome:
    """List, or fetch."""
    from trainyard.fleet.workload.download import TRACES

    if not options.name:
        return listed(TRACES, "fleet download")
    with screen.waiting("fetching") as progress:
        path = fetched(TRACES, options.name, options.folder, progress)
        trace = TRACES[options.name]
        profiles = fetched(TRACES, trace.profiles, options.folder, progress) if trace.profiles else None
    document = {"name": options.name, "path": str(path), "profiles_path": profiles and str(profiles)}
    return Outcome(document | asdict(trace), (f"{path}: {trace.about}", _next(path, trace.format, profiles)))


def _next(path: Path, format: str, profiles: Path | None) -> str:
    """Return the advice what to do with a trace."""
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
