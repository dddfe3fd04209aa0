"""What all benchmarks have in common: the option `--smallest`, and dated records of what was measured where.

Of every benchmark the newest record lies under `benchmarks/records`. With `--smallest` a benchmark does all that it does
on sizes that take seconds, to see that it runs, and writes no record: its figures say nothing about speed.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from trainyard.distribution import VERSION

_HERE = Path(__file__).resolve().parent
TRAINYARD = str(Path(sys.executable).parent / "trainyard")
"""The command that lies beside this Python."""

RECORDS = _HERE / "records"

NOT_HERE = 3
"""Exit status of a benchmark that needs something that is not here."""

_PACKAGES = ("torch", "numba", "numpy", "scipy", "highspy")


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser of a benchmark's options that has `--smallest`."""
    options = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument(
        "--smallest",
        action="store_true",
        help="take the smallest sizes, to see that all of it runs; write no record",
    )
    return options


def not_here(what: str) -> NoReturn:
    """End because something that a benchmark needs is not here.

    Parameters
    ----------
    what : is missing, and how to get it; one line.
    """
    print(f"cannot be measured here: {what}", file=sys.stderr)
    raise SystemExit(NOT_HERE)


def finish(name: str, results: Mapping[str, Any], smallest: bool) -> None:
    """Write the record of a benchmark and say where it is; write none of the smallest sizes."""
    print(
        "the smallest sizes: no record is written"
        if smallest
        else f"written to {write_record(name, results)}"
    )


def write_record(name: str, results: Mapping[str, Any], folder: Path = RECORDS) -> Path:
    """Write the results of a benchmark with the time, the machine, the versions and the commit, in place of older ones.

    Parameters
    ----------
    name : str
        What was measured; the file is called `<UTC date and time>-<name>.json`.
    results : mapping
        Anything JSON can hold; say the unit in every key.
    folder : Path
        Made if it is not there.

    Returns
    -------
    Path
        The file that was written.
    """
    now = datetime.datetime.now(datetime.UTC)
    record = {
        "name": name,
        "measured_at": now.isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": machine(),
        "versions": versions(),
        "results": dict(results),
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{now:%Y%m%dT%H%M%SZ}-{name}.json"
    older = [file for file in folder.glob(f"*Z-{name}.json") if file != path]
    path.write_text(json.dumps(record, indent=2) + "\n")
    for file in older:
        file.unlink()
    return path


def commit() -> str | None:
    """Hash of the checked-out commit, and `+changes` if tracked files differ; None outside a repository."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(_HERE), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "HEAD") + ("+changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def machine() -> dict[str, Any]:
    """Processor model, number of cores, memory and system of this machine."""
    import psutil

    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "system": platform.platform(),
    }


def versions() -> dict[str, str | None]:
    """Versions of Python and of the packages that matter for speed; None where one is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version(), "trainyard": VERSION}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    return found


def _cpu_model() -> str:
    listing = Path("/proc/cpuinfo")
    if listing.exists():
        for line in listing.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
