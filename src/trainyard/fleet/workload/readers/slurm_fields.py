"""Fields of Slurm's accounting records: resources, times, and what devices they are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from trainyard.fleet.errors import FleetError
from trainyard.reading.rows import Row

_ELAPSED = re.compile(r"(?:(\d{1,9})-)?(?:(\d{1,9}):)?(\d{1,9}):(\d\d)(?:\.\d+)?", re.ASCII)
_NUMBER = re.compile(r"\d{1,15}(?:\.\d{1,15})?", re.ASCII)
_MEMORY = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)([KMGTP]?)", re.ASCII)
_SUFFIXES = " KMGTP"
_MOST_DIGITS = 9
_NO_LIMITS = ("", "UNLIMITED", "Partition_Limit", "INVALID", "None", "Unknown")
_GPU, _TYPED, _PARTS = "gres/gpu", "gres/gpu:", ("gres/shard", "gres/mps")
# Names of slices by NVIDIA's MIG say how many there are of a GPU: a100_1g.5gb, h100_3g.40gb+me, a100_2g, mig-1g-5gb.
_SLICE = re.compile(
    r"(?:.*[^0-9a-z])?(?:mig|[1-9]g(?:[._-]?\d{1,4}gb)?(?:[+._-]me\w*)?)(?:[^0-9a-z].*)?",
    re.ASCII | re.IGNORECASE,
)


class Resources(NamedTuple):
    """Devices, processors and memory that a job had.

    Attributes
    ----------
    devices : whole GPUs by type; "" for those of which it is not said.
    num_parts : slices (by MIG), shards, or hundredths (by MPS) of GPUs.
    cpus, memory_bytes : in all; 0 where it is not said, or all that its nodes had.
    """

    devices: Mapping[str, int]
    num_parts: int
    cpus: float
    memory_bytes: float

    @property
    def num_devices(self) -> int:
        return sum(self.devices.values())


class _UnreadableError(ValueError):
    """A field that is not what it should be: its column, and what is allowed."""


def resources(row: Row) -> Resources:
    """Read what a job got by AllocTRES or, if that says nothing of it, asked for by ReqTRES.

    ``gres/gpu`` is the sum of all ``gres/gpu:TYPE``, if it is there: without, they are added up.
    """
    _require(row, "AllocTRES", "ReqTRES")
    try:
        return _resources(row.fields.get("AllocTRES", ""), row.fields.get("ReqTRES", ""))
    except _UnreadableError as error:
        raise row.error(*error.args) from error


@lru_cache(maxsize=1 << 12)  # most jobs ask for what others asked for, too
def _resources(allocated: str, requested: str) -> Resources:
    got, asked = _by_name("AllocTRES", allocated), _by_name("ReqTRES", requested)
    column = (
        "AllocTRES" if any(name.startswith(_TYPED) or name in (_GPU, *_PARTS) for name in got) else "ReqTRES"
    )
    named = got if column == "AllocTRES" else asked
    typed = {
        name.removeprefix(_TYPED): _count(column, name, text)
        for name, text in named.items()
        if name.startswith(_TYPED)
    }
    slices = sum(count for name, count in typed.items() if _SLICE.fullmatch(name))
    devices = {name: count for name, count in typed.items() if count and not _SLICE.fullmatch(name)}
    total = _count(column, _GPU, named.get(_GPU, "0"))
    if total > slices + sum(devices.values()):
        devices[""] = total - slices - sum(devices.values())
    cpus, memory = ({**asked, **got}.get(name, "0") for name in ("cpu", "mem"))
    return Resources(
        devices,
        slices + sum(_count(column, name, named.get(name, "0")) for name in _PARTS),
        _cpus("AllocTRES" if "cpu" in got else "ReqTRES", cpus),
        _memory_bytes("AllocTRES" if "mem" in got else "ReqTRES", memory),
    )


def elapsed_s(row: Row) -> float:
    """Time on its nodes, without that for which it was suspended."""
    if "ElapsedRaw" in row.fields:
        return row.number("ElapsedRaw")
    _require(row, "ElapsedRaw", "Elapsed")
    seconds = _duration_s(row.fields["Elapsed"])
    if seconds is None:
        raise row.error("Elapsed", "a time such as 1-02:30:00")
    return seconds


def limit_s(row: Row) -> float | None:
    """Read the time limit that the user gave; None if there is none (0 is none, too), or it is the partition's."""
    raw = row.fields.get("TimelimitRaw", "")
    if _NUMBER.fullmatch(raw):
        return float(raw) * 60 or None
    text = raw or row.fields.get("Timelimit", "")
    limit_s = _duration_s(text)
    if limit_s is None and text not in _NO_LIMITS:
        column = "TimelimitRaw" if raw else "Timelimit"
        raise row.error(column, "minutes, a time such as 1-02:30:00, UNLIMITED or Partition_Limit")
    return limit_s or None


def _duration_s(text: str) -> float | None:
    found = _ELAPSED.fullmatch(text)
    if found is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def _require(row: Row, *names: str) -> None:
    """Refuse a file that has none of some columns.

    Raises
    ------
    FleetError
        If it has none.
    """
    if not any(name in row.fields for name in names):
        raise FleetError(f"{row.path}, line 1: no column {' or '.join(names)}; add it to --format")


def _by_name(column: str, text: str) -> dict[str, str]:
    """Resources such as ``cpu=16,gres/gpu=2,mem=64G`` by their names."""
    parts = [part.partition("=") for part in text.split(",") if part]
    if not all(equals for _, equals, _ in parts):
        raise _UnreadableError(column, "a list such as cpu=16,gres/gpu=2,mem=64G")
    return {key: value for key, _, value in parts}


def _count(column: str, name: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > _MOST_DIGITS:
        raise _UnreadableError(column, f"{name}= and a whole number of at most {_MOST_DIGITS} digits")
    return int(text)


def _cpus(column: str, text: str) -> float:
    if _NUMBER.fullmatch(text) is None:
        raise _UnreadableError(column, "cpu= and a number such as 16")
    return float(text)


def _memory_bytes(column: str, text: str) -> float:
    found = _MEMORY.fullmatch(text)
    if found is None:
        raise _UnreadableError(column, "mem= and a size such as 64G")
    number, suffix = found.groups()
    # Slurm's units are powers of 1024, and sizes without a letter are mebibytes.
    return float(number) * 1024.0 ** _SUFFIXES.index(suffix or "M")
