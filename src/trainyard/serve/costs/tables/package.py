"""The Parquet tables of an installed aiconfigurator: where they are, which version of each is read, and their rows.

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

__all__ = ["DeviceTables", "Wanted", "systems_folder"]

Wanted = tuple[str, str, Any]
"""A column, how it is compared, and with what; a list of values is a tuple here."""

_MS = 1e-3
_NO_WINDOW: Wanted = ("window_size", "=", 0)
_NOT_MEASURED = {"latency", "power", "framework", "version", "device", "op_name", "kernel_source"}
"""Columns that say what a measurement gave or where it was made, not what was measured."""
_WHOLE = 0.5  # of the values of each column that any version has


@dataclass(frozen=True)
class DeviceTables:
    """The tables of one device and one server.

    Each op is read from the newest whole version of its table that has it. A version is whole if, in every column that
    describes what was measured (formats, shapes, splits, numbers of tokens), it has at least half as many different
    values as the version with the most. Versions that are not whole come after all whole ones.

    Attributes
    ----------
    root : the folder of the device's tables.
    backend, version : the server; a version that is named comes first, then older ones, then newer ones.
    """

    root: Path
    backend: str
    version: str = ""

    def folders(self, family: str, table: str, backend: str = "") -> list[Path]:
        """Folders of versions that have a table, the oldest first."""
        folder = self.root / family / (backend or self.backend)
        found = (path for path in folder.glob("*") if (path / f"{table}.parquet").exists())
        return sorted(found, key=version_key)

    def paths(self, family: str, table: str, backend: str = "") -> list[Path]:
        """Files of a table, in the order in which an op is looked for.

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
        """Seconds by some columns, of the rows that are wanted; None where no version has any.

        Raises
        ------
        ServeError
            If no version has the table.
        """
        for path in self.paths(family, table, backend):
            if (found := _grid(path, tuple(sizes), tuple(wanted))) is not None:
                return found
        return None


def systems_folder(folder: Path) -> Path:
    """Where the tables are, in the folder of the package or in that itself.

    Raises
    ------
    ServeError
        If they are not there.
    """
    for each in (folder, folder / "systems", folder / "aiconfigurator_core" / "systems"):
        if (each / "data").is_dir():
            return each
    raise ServeError(
        f"{folder} has no tables of kernels: allowed is the folder of an installed aiconfigurator_core, or its `systems`"
    )


def version_key(path: Path) -> tuple[tuple[int, str], ...]:
    """A sort key of a version's folder: numbers in its parts compare as numbers, candidates come before releases."""
    parts = path.name.replace("rc", ".-1.").split(".")
    return tuple((int(part), "") if part.lstrip("-").isdigit() else (0, part) for part in parts)


def _whole_first(paths: Sequence[Path], files: Sequence[Path]) -> list[Path]:
    """The same files, those that are whole among all versions first."""
    if len(files) == 1:
        return list(paths)
    most: dict[str, int] = {}
    for path in files:
        for column, num in _num_values(path).items():
            most[column] = max(num, most.get(column, 0))

    def is_partial(path: Path) -> bool:
        return any(num < _WHOLE * most[column] for column, num in _num_values(path).items())

    return sorted(paths, key=is_partial)


@lru_cache(maxsize=256)
def _num_values(path: Path) -> Mapping[str, int]:
    """How many different values each column has that describes what was measured."""
    parquet = _parquet()
    names = [name for name in parquet.read_schema(path).names if name not in _NOT_MEASURED]
    table = parquet.read_table(path, columns=names)
    return {name: len(table.column(name).unique()) for name in names}


@lru_cache(maxsize=512)
def _grid(path: Path, sizes: tuple[str, ...], wanted: tuple[Wanted, ...]) -> Grid | None:
    """Seconds by some columns, of the rows that are wanted; None if there are none, or a column is not there."""
    columns = _columns(path, (*sizes, "latency"), wanted)
    if not columns or not len(columns[0]):
        return None
    *points, latencies = columns
    return Grid(points_of(zip(zip(*points, strict=True), [each * _MS for each in latencies], strict=True)))


def _columns(path: Path, names: Sequence[str], wanted: Sequence[Wanted]) -> list[list[float]]:
    """Numbers in some columns, of the rows that are wanted; empty if a column is not there."""
    parquet = _parquet()
    there = set(parquet.read_schema(path).names)
    # Tables of devices on which no attention with a window was measured have no column for it.
    wanted = [each for each in wanted if each[0] in there or each != _NO_WINDOW]
    if not there.issuperset((*names, *(name for name, _, _ in wanted))):
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
