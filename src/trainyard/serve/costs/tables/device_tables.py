"""The Parquet tables of an installed aiconfigurator: their folders, the version of each that is read, and their rows.

A table is ``systems/data/SYSTEM/FAMILY/BACKEND/VERSION/NAME_perf.parquet``, with a row for each measured kernel and its
latency in milliseconds. Nothing of the package is imported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from trainyard.distribution import install_command
from trainyard.serve.costs.tables.grid import Grid, points_of
from trainyard.serve.errors import ServeError

__all__ = ["DeviceTables", "Wanted", "systems_folder", "version_key"]

Wanted = tuple[str, str, Any]
"""A filter of rows: column, comparison ("=" or "in"), and the value; the values of "in" are a tuple."""

_MS = 1e-3
_NO_WINDOW: Wanted = ("window_size", "=", 0)
_NOT_MEASURED = {"latency", "power", "framework", "version", "device", "op_name", "kernel_source"}
"""Columns about the result and the circumstances of a measurement, not its subject."""
_WHOLE_SHARE = 0.5
"""A version is whole if each column has at least this share of the values of the version with the most."""


@dataclass(frozen=True)
class DeviceTables:
    """The tables of one device and one server.

    Each op is read from the newest whole version of its table that has it. A version is whole if, in every column that
    describes the measured kernel (formats, shapes, splits, numbers of tokens), it has at least half as many different
    values as the version with the most. Versions that are not whole come after all whole ones.

    Attributes
    ----------
    root : the folder of the device's tables.
    backend : the server.
    version : the version of the server that is read first, then older ones, then newer ones; "" for the newest first.
    """

    root: Path
    backend: str
    version: str = ""

    def folders(self, family: str, table: str, backend: str = "") -> list[Path]:
        """List the folders of versions that have a table, the oldest first."""
        folder = self.root / family / (backend or self.backend)
        versions = (path for path in folder.glob("*") if (path / f"{table}.parquet").exists())
        return sorted(versions, key=version_key)

    def paths(self, family: str, table: str, backend: str = "") -> list[Path]:
        """List the files of a table, in the order in which an op is looked for.

        Raises
        ------
        ServeError
            If no version has the table.
        """
        folders = self.folders(family, table, backend)
        if not folders:
            others = sorted(
                path.name for path in (self.root / family).glob("*") if any(path.glob(f"*/{table}.parquet"))
            )
            raise ServeError(
                f"{self.root / family / (backend or self.backend)} has no {table}.parquet; give the folder of an "
                f"installed aiconfigurator, and after a colon a server that it has: {', '.join(others) or 'none'}"
            )
        files = [folder / f"{table}.parquet" for folder in folders]
        newest = files[::-1]
        if self.version and not backend:
            limit = version_key(Path(self.version))
            older = [path for path in newest if version_key(path.parent) <= limit]
            newest = older + [path for path in files if path not in older]
            if newest[0].parent.name == self.version:
                return newest[:1] + _whole_first(newest[1:], files)
        return _whole_first(newest, files)

    def grid(
        self, family: str, table: str, sizes: Sequence[str], wanted: Sequence[Wanted], backend: str = ""
    ) -> Grid | None:
        """Return the seconds of the wanted rows by some columns; None where no version has such rows.

        Parameters
        ----------
        family, table, backend : of the table; by default the server's own.
        sizes : columns of the grid.
        wanted : filters of rows.

        Raises
        ------
        ServeError
            If no version has the table.
        """
        for path in self.paths(family, table, backend):
            if (grid := _grid(path, tuple(sizes), tuple(wanted))) is not None:
                return grid
        return None


def systems_folder(folder: Path) -> Path:
    """Find the folder ``systems``: the given folder itself, or a part of the package.

    Raises
    ------
    ServeError
        If it is not there.
    """
    for each in (folder, folder / "systems", folder / "aiconfigurator_core" / "systems"):
        if (each / "data").is_dir():
            return each
    raise ServeError(
        f"{folder} has no tables of kernels: allowed is the folder of an installed aiconfigurator_core, or its `systems`"
    )


def version_key(path: Path) -> tuple[tuple[int, str], ...]:
    """Return a sort key of a version's folder: parts compare as numbers, and candidates come before releases."""
    parts = path.name.replace("rc", ".-1.").split(".")
    return tuple((int(part), "") if part.lstrip("-").isdigit() else (0, part) for part in parts)


def _whole_first(paths: Sequence[Path], files: Sequence[Path]) -> list[Path]:
    """Sort files of a table: whole versions come first, in the given order.

    Parameters
    ----------
    paths : the files to sort.
    files : the table in all versions.
    """
    if len(files) == 1:
        return list(paths)
    most: dict[str, int] = {}
    for path in files:
        for column, num in _num_values(path).items():
            most[column] = max(num, most.get(column, 0))

    def is_partial(path: Path) -> bool:
        return any(num < _WHOLE_SHARE * most[column] for column, num in _num_values(path).items())

    return sorted(paths, key=is_partial)


@lru_cache(maxsize=256)
def _num_values(path: Path) -> Mapping[str, int]:
    """Count the different values of each column that describes the measured kernel."""
    parquet = _parquet()
    names = [name for name in parquet.read_schema(path).names if name not in _NOT_MEASURED]
    table = parquet.read_table(path, columns=names)
    return {name: len(table.column(name).unique()) for name in names}


@lru_cache(maxsize=512)
def _grid(path: Path, sizes: tuple[str, ...], wanted: tuple[Wanted, ...]) -> Grid | None:
    """Return the seconds of the wanted rows by some columns; None if there are none, or a column is missing."""
    columns = _columns(path, (*sizes, "latency"), wanted)
    if not columns or not len(columns[0]):
        return None
    *points, latencies = columns
    return Grid(points_of(zip(zip(*points, strict=True), [each * _MS for each in latencies], strict=True)))


def _columns(path: Path, names: Sequence[str], wanted: Sequence[Wanted]) -> list[list[float]]:
    """Return the numbers in some columns of the wanted rows; no columns if one of them is missing."""
    parquet = _parquet()
    known = set(parquet.read_schema(path).names)
    # Where no attention with a window was measured, a table has no column for it.
    wanted = [each for each in wanted if each[0] in known or each != _NO_WINDOW]
    if not known.issuperset((*names, *(name for name, _, _ in wanted))):
        return []
    filters = [(name, sign, list(value) if sign == "in" else value) for name, sign, value in wanted]
    table = parquet.read_table(path, columns=list(names), filters=filters)
    return [[float(each) for each in table.column(name).to_pylist()] for name in names]


def _parquet() -> Any:
    try:
        from pyarrow import parquet
    except ModuleNotFoundError as error:
        raise ServeError(
            f"tables of kernels in Parquet files need pyarrow, which is not installed: {install_command('kernels')}"
        ) from error
    return parquet
