"""`trainyard serve download`: public traces of requests, from where their authors keep them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from shlex import quote

from trainyard.cli.downloading import DownloadOptions, fetched, listed
from trainyard.cli.screen import Outcome, Screen

__all__ = ["Options", "act"]


@dataclass(frozen=True)
class Options(DownloadOptions):
    """List public traces of requests, or fetch one and check it.

    The file is kept exactly as it was published.
    """


def act(options: Options, screen: Screen) -> Outcome:
    """List, or fetch."""
    from trainyard.serve.requests.download import TRACES

    if not options.name:
        return listed(TRACES, "serve download")
    with screen.waiting("fetching") as progress:
        path = fetched(TRACES, options.name, options.folder, progress)
    trace = TRACES[options.name]
    how = f"simulate it with `trainyard serve simulate --requests {quote(str(path))} --model M --cluster C`"
    document = {"name": options.name, "path": str(path), **asdict(trace)}
    return Outcome(document, (f"{path}: {trace.about}", how))
