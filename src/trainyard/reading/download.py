"""Fetching public files from where their authors keep them, checked against what they are known to contain."""

from __future__ import annotations

import hashlib
import http.client
import os
import shutil
import tarfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from trainyard.reading.errors import ReadingError

__all__ = ["GITHUB", "PublicFile", "download", "unpacked"]

GITHUB = "https://raw.githubusercontent.com"
"""Where files of repositories are, as they are in a commit."""
_PIECE = 1 << 20


@dataclass(frozen=True)
class PublicFile:
    """A file that its authors published, such as a trace.

    Attributes
    ----------
    about : one line.
    url : of the file.
    sha256 : of its bytes.
    size_bytes : how many those are.
    format : by which its reader goes; empty for what is no trace.
    inside : name of the trace in the archive that the file is; empty if it is the trace itself.
    """

    about: str
    url: str
    sha256: str
    size_bytes: int
    format: str = ""
    inside: str = ""

    @property
    def file_name(self) -> str:
        """At home."""
        return self.url.rpartition("/")[2]


def download(
    files: Mapping[str, PublicFile],
    name: str,
    folder: Path,
    *,
    timeout_s: float = 30.0,
    tell: Callable[[int, int], None] = lambda done, size: None,
) -> Path:
    """Fetch a file as its authors keep it; one that is there is only checked, and one that was broken off is continued.

    Parameters
    ----------
    files : by name.
    name : of the one that is wanted.
    folder : where it is put, under the name that it has at home; made if it is not there.
    timeout_s : for which the server may be silent.
    tell : hears how many bytes are there, and how many there will be, as they come.

    Returns
    -------
    The file. It is there only as a whole, with the right contents.

    Raises
    ------
    ReadingError
        If there is no such trace, it cannot be fetched or put there, or it is not what it should be.
    """
    if name not in files:
        raise ReadingError(f"no trace {name!r} to download; there are {', '.join(files)}")
    trace = files[name]
    target = folder / trace.file_name
    part = target.with_name(target.name + ".part")
    if target.exists():
        if _sha256(target) == trace.sha256:
            return target
        raise ReadingError(
            f"{target} is there, and is not trace {name!r}; move it away, or download to another folder"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ReadingError(f"cannot make folder {folder}: {error.strerror}; give another one") from error
    if not (part.exists() and part.stat().st_size == trace.size_bytes):
        _fetch(trace, part, timeout_s, tell)
    found = _sha256(part)
    if found != trace.sha256:
        part.unlink()
        raise ReadingError(
            f"{trace.url} has SHA-256 {found}, not {trace.sha256}: it was changed, or something on the way answered in "
            "its place. Nothing was kept"
        )
    os.replace(part, target)
    return target


def unpacked(archive: Path, inside: str) -> Path:
    """The trace of an archive, beside it; nothing else of what is in there is written.

    Parameters
    ----------
    archive : a tar file, whose contents were checked.
    inside : name of the trace, in whatever folder of the archive.

    Returns
    -------
    The file, under its own name. It is there only as a whole.

    Raises
    ------
    ReadingError
        If it is not in there, or cannot be unpacked.
    """
    target = archive.with_name(inside)
    part = target.with_name(target.name + ".part")
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                source = tar.extractfile(member) if member.isreg() else None
                if source is None or member.name.rpartition("/")[2] != inside:
                    continue
                if not target.exists():
                    with source, part.open("wb") as file:
                        shutil.copyfileobj(source, file, _PIECE)
                    os.replace(part, target)
                elif target.stat().st_size != member.size:
                    raise ReadingError(f"{target} is there, and is not from {archive}; move it away")
                return target
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise ReadingError(f"cannot unpack {inside} from {archive}: {error}") from error
    raise ReadingError(f"{archive} has no file {inside}; unpack it and look for the trace")


def _fetch(trace: PublicFile, part: Path, timeout_s: float, tell: Callable[[int, int], None]) -> None:
    """Append to ``part`` what is missing."""
    have = part.stat().st_size if part.exists() else 0
    have = have if have < trace.size_bytes else 0
    request = urllib.request.Request(trace.url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            # A server that does not continue sends the whole again.
            goes_on = have > 0 and answer.status == http.HTTPStatus.PARTIAL_CONTENT
            have = have if goes_on else 0
            with part.open("ab" if goes_on else "wb") as file:
                while have <= trace.size_bytes and (piece := answer.read(_PIECE)):
                    file.write(piece)
                    have += len(piece)
                    tell(have, trace.size_bytes)
    except urllib.error.HTTPError as error:
        raise ReadingError(
            f"{trace.url}: the server says {error.code} {error.reason}; it may have moved"
        ) from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise ReadingError(
            f"cannot fetch {trace.url}: {reason}. Check the network and call again, which goes on where it stopped; or "
            f"fetch it elsewhere and put it at {part.with_suffix('')}"
        ) from error
    if have != trace.size_bytes:
        raise ReadingError(
            f"{trace.url}: got {have} of {trace.size_bytes} bytes; call again, which goes on where it stopped"
            if have < trace.size_bytes
            else f"{trace.url} is longer than {trace.size_bytes} bytes: it was changed. Delete {part}"
        )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
