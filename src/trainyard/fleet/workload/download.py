"""Fetching public traces from where their authors keep them, checked against what they are known to contain.

Only files whose SHA-256 is known are in the table. The traces of Helios and of ElasticFlow have to be fetched by hand,
and so have the sensitivities of Synergy, which its authors keep in their program.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import shutil
import tarfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from trainyard.fleet.errors import FleetError

_GITHUB = "https://raw.githubusercontent.com"
_PIECE = 1 << 20


@dataclass(frozen=True)
class Trace:
    """A public trace.

    Attributes
    ----------
    about : one line.
    url : of the file.
    sha256 : of its bytes.
    size_bytes : how many those are.
    format : of ``read_workload``; empty for what is no trace.
    inside : name of the trace in the archive that the file is; empty if it is the trace itself.
    profiles : name, in the same table, of the measured speeds that the trace needs.
    """

    about: str
    url: str
    sha256: str
    size_bytes: int
    format: str = ""
    inside: str = ""
    profiles: str = ""

    @property
    def file_name(self) -> str:
        return self.url.rpartition("/")[2]


TRACES: dict[str, Trace] = {
    "philly": Trace(
        "Microsoft Philly, 117,325 jobs, in an archive with telemetry (Jeon et al., ATC 2019)",
        "https://media.githubusercontent.com/media/msr-fiddle/philly-traces/master/trace-data.tar.gz",
        "2037ccf63a725a02be718b0e1aeee6142c90b7f62d0d849295120e9f6ba13d2c",
        1055988361,
        "philly",
        inside="cluster_job_log",
    ),
    "philly-small": Trace(
        "82,247 jobs of Philly, as Pollux used them (Qiao et al., OSDI 2021)",
        f"{_GITHUB}/petuum/adaptdl/de25dcc90c350b8ade3a710e437a651a8d2efae6/simulator/traces/philly.csv",
        "ebffb3dd1589bdf4e7bcd74496201c5ded1d557d498ee14f560463f37ec353da",
        3444496,
        "pollux-philly",
    ),
    "tiresias-60": Trace(
        "The 60 jobs of Tiresias' simulator (Gu et al., NSDI 2019)",
        f"{_GITHUB}/SymbioticLab/Tiresias/b0ef8449aaa1ad1a61b922de3ab65fd87a3dcf2e/simulator/60_job.csv",
        "17575949a6e570960db42bc5576739de9c334ed4c664859841c4f01ede38bd1b",
        1871,
        "tiresias",
    ),
    "synergy-100": Trace(
        "100 jobs of Synergy's testbed (Mohan et al., OSDI 2022)",
        f"{_GITHUB}/msr-fiddle/synergy/a5276ca1947c429e03ce19c57a8709a160b536bd/simulator/deploy_trace/"
        "static_100job_6_3_1100.0",
        "eb1ba6821efa27b26ab4bad91080feee8e0416b9c841f0e87925721c4a63f7a1",
        2480,
        "synergy",
    ),
    "alibaba-openb": Trace(
        "8,152 pods of Alibaba that share GPUs (Weng et al., ATC 2023)",
        f"{_GITHUB}/alibaba/clusterdata/50a91c7c74abe3b658188dc78ac1dd302970d40c/cluster-trace-gpu-v2023/csv/"
        "openb_pod_list_default.csv",
        "1ee7ed79c27a3b0861cda8ddba86a004c6aba904caafa329a76ae93ca63834a8",
        575468,
        "alibaba",
    ),
    "shockwave-120": Trace(
        "120 jobs of Shockwave with changing batch sizes (Zheng et al., NSDI 2023)",
        f"{_GITHUB}/uw-mad-dash/shockwave/e07dd205c52afe9981a4f092051c1d0f844ebf3d/scheduler/traces/reproduce/"
        "120_0.2_5_100_40_25_0,0.5,0.5_0.6,0.3,0.09,0.01_multigpu_dynamic.trace",
        "f5728b8c038c330d21b98bc5930949d21769bd956e2ad457a4eb167dd33f34d6",
        18720,
        "shockwave",
        profiles="shockwave-throughputs",
    ),
    "shockwave-throughputs": Trace(
        "Speeds of the jobs of Shockwave's traces, for --profiles",
        f"{_GITHUB}/uw-mad-dash/shockwave/e07dd205c52afe9981a4f092051c1d0f844ebf3d/scheduler/tacc_throughputs.json",
        "6fee2da4f81c8e777e9513987d982fd0a11a155107360e6168b0e8fd593a83ce",
        1239492,
    ),
    "gavel-96": Trace(
        "96 jobs of Gavel's physical cluster (Narayanan et al., OSDI 2020)",
        f"{_GITHUB}/stanford-futuredata/gavel/master/scheduler/traces/physical_cluster/max_min_fairness.trace",
        "dc13589c23c7b77d37d3d1014ff499e0c1ffca2959ce35d0e4ce70b71247424b",
        14458,
        "gavel",
        profiles="gavel-throughputs",
    ),
    "gavel-throughputs": Trace(
        "Speeds of the jobs of Gavel's traces on V100, P100 and K80, for --profiles and `fleet compare --workload gavel`",
        f"{_GITHUB}/stanford-futuredata/gavel/master/scheduler/simulation_throughputs.json",
        "17111f7295f03265fd9e5118d7eba31e3dd9d6e50a2e215c13ad3d3f91f74381",
        1240176,
    ),
}
"""By name."""


def download(
    name: str,
    folder: Path,
    *,
    traces: dict[str, Trace] = TRACES,
    timeout_s: float = 30.0,
    tell: Callable[[int, int], None] = lambda done, size: None,
) -> Path:
    """Fetch a file as its authors keep it; one that is there is only checked, and one that was broken off is continued.

    Parameters
    ----------
    name : of the trace.
    folder : where it is put, under the name that it has at home; made if it is not there.
    timeout_s : for which the server may be silent.
    tell : hears how many bytes are there, and how many there will be, as they come.

    Returns
    -------
    The file. It is there only as a whole, with the right contents.

    Raises
    ------
    FleetError
        If there is no such trace, it cannot be fetched or put there, or it is not what it should be.
    """
    if name not in traces:
        raise FleetError(f"no trace {name!r} to download; there are {', '.join(traces)}")
    trace = traces[name]
    target = folder / trace.file_name
    part = target.with_name(target.name + ".part")
    if target.exists():
        if _sha256(target) == trace.sha256:
            return target
        raise FleetError(
            f"{target} is there, and is not trace {name!r}; move it away, or download to another folder"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FleetError(f"cannot make folder {folder}: {error.strerror}; give another one") from error
    if not (part.exists() and part.stat().st_size == trace.size_bytes):
        _fetch(trace, part, timeout_s, tell)
    found = _sha256(part)
    if found != trace.sha256:
        part.unlink()
        raise FleetError(
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
    FleetError
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
                    raise FleetError(f"{target} is there, and is not from {archive}; move it away")
                return target
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise FleetError(f"cannot unpack {inside} from {archive}: {error}") from error
    raise FleetError(f"{archive} has no file {inside}; unpack it and look for the trace")


def _fetch(trace: Trace, part: Path, timeout_s: float, tell: Callable[[int, int], None]) -> None:
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
        raise FleetError(
            f"{trace.url}: the server says {error.code} {error.reason}; it may have moved"
        ) from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise FleetError(
            f"cannot fetch {trace.url}: {reason}. Check the network and call again, which goes on where it stopped; or "
            f"fetch it elsewhere and put it at {part.with_suffix('')}"
        ) from error
    if have != trace.size_bytes:
        raise FleetError(
            f"{trace.url}: got {have} of {trace.size_bytes} bytes; call again, which goes on where it stopped"
            if have < trace.size_bytes
            else f"{trace.url} is longer than {trace.size_bytes} bytes: it was changed. Delete {part}"
        )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
