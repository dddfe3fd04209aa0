"""Options, list and progress of the verbs that fetch public traces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from trainyard.cli.outputs import Output
from trainyard.cli.screen import Common, Outcome
from trainyard.progress import Progress

if TYPE_CHECKING:
    from trainyard.reading.download import PublicFile

__all__ = ["DownloadOptions", "fetched", "listed"]


@dataclass(frozen=True)
class DownloadOptions(Common):
    """File to fetch, and the folder to put it in."""

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[NAME]")] = ""
    """A trace of the list."""
    folder: Annotated[Path, tyro.conf.arg(metavar="DIR"), Output.FOLDER] = Path(".")
    """Folder for the file, which keeps its published name. An interrupted download goes on where it stopped."""


def listed(files: Mapping[str, PublicFile], verb: str) -> Outcome:
    """Return all traces that can be fetched."""
    from trainyard.report.tables import make_table
    from trainyard.report.units import bytes_text

    rows = [
        (name, file.about, file.format or "speeds", bytes_text(file.size_bytes))
        for name, file in files.items()
    ]
    table = make_table("public traces", ("name", "what it is", "format", "size"), rows, 3)
    document = {"traces": [{"name": name, **asdict(file)} for name, file in files.items()]}
    return Outcome(document, (table, f"trainyard {verb} NAME fetches one; --json says from where"))


def fetched(files: Mapping[str, PublicFile], name: str, folder: Path, progress: Progress) -> Path:
    """Fetch a file; of an archive, the trace alone is unpacked.

    Parameters
    ----------
    progress : called with the part that is fetched.
    """
    from trainyard.reading.download import download, unpacked
    from trainyard.report.units import bytes_text, percent_text

    def tell(done: int, size: int) -> None:
        progress(f"fetching {name}", f"{percent_text(done / size)} of {bytes_text(size)}")

    path = download(files, name, folder, tell=tell)
    if not (inside := files[name].inside):
        return path
    progress(f"unpacking {inside}", "")
    return unpacked(path, inside)
