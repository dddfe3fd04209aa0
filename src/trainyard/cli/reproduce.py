"""`trainyard reproduce`: published numbers of a system next to ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.console import RenderableType

from trainyard.cli.screen import Common, Outcome, Screen

if TYPE_CHECKING:
    from trainyard.published import PaperTable, Row

__all__ = ["Options", "act"]


@dataclass(frozen=True)
class Options(Common):
    """Print published numbers of a system next to ours; without a name, list all tables."""

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[NAME]")] = ""
    """A system that `trainyard papers` lists."""
    files: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")] = None
    """Fetched files, for tables that are computed from them; without it, the commands that fetch them are printed."""


def act(options: Options, screen: Screen) -> Outcome:
    """Compute ours and print both, or list what there is."""
    from trainyard.report.systems import find

    if not options.name:
        return _listed()
    level, system = find(options.name)
    body: list[RenderableType] = []
    documents = []
    tables = level.tables(system.name)
    _check_files(tables, options.files)
    for table in tables:
        if table.files is not None and not (options.files and table.files.are_in(options.files)):
            body += [
                f"{table.source}: computed from files that have to be fetched",
                table.files.command(system.name),
                "",
            ]
            documents.append({**_facts(table), "fetch": table.files.command(system.name), "rows": []})
            continue
        rows = _computed(table, options.files, screen)
        body += [*_body(table, rows), ""]
        documents.append({**_facts(table), "rows": [{**asdict(row), "ratio": row.ratio} for row in rows]})
    document = {"system": system.name, "level": level.number, "tables": documents}
    return Outcome(document, tuple(body[:-1]))


def _check_files(tables: Sequence[PaperTable], folder: Path | None) -> None:
    """Check that a folder has the files of some table; files of one system may come from several places."""
    files = [table.files for table in tables if table.files is not None]
    if folder is None or not files:
        return
    meant = [each for each in files if any((folder / path).exists() for path in each.paths)]
    for each in meant or files[:1]:
        each.check(folder)


def _listed() -> Outcome:
    from trainyard.report.systems import LEVELS

    found = [
        (level, system.name, table)
        for level in LEVELS
        for system in level.systems
        for table in level.tables(system.name)
    ]
    lines = [f"{level.number}  {name:24}{table.source}{_cost(table)}" for level, name, table in found]
    documents = [{"system": name, "level": level.number, **_facts(table)} for level, name, table in found]
    return Outcome({"tables": documents}, lines)


def _cost(table: PaperTable) -> str:
    if table.files is not None:
        return " (from fetched files)"
    return " (simulates: slow)" if table.is_slow else ""


def _computed(table: PaperTable, folder: Path | None, screen: Screen) -> list[Row]:
    """Compute the rows, and show how far they are."""
    rows: list[Row] = []
    with screen.waiting(table.source) as progress:
        for row in table.computed(folder):
            rows.append(row)
            progress(table.source, f"{row.label} is {row.ours:.4g}")
    return rows


def _body(table: PaperTable, rows: Sequence[Row]) -> list[RenderableType]:
    from trainyard.report.tables import make_table
    from trainyard.report.units import number_text

    texts = [
        (row.label, number_text(row.theirs, 6), number_text(row.ours, 5), f"{row.ratio:.2f}") for row in rows
    ]
    body: list[RenderableType] = [
        make_table(table.source, (table.unit, "theirs", "ours", "ours / theirs"), texts),
        f"ours: {table.method}",
    ]
    if table.caveat:
        body.append(f"they differ because: {table.caveat}")
    return body


def _facts(table: PaperTable) -> dict[str, Any]:
    return {
        "source": table.source,
        "unit": table.unit,
        "method": table.method,
        "caveat": table.caveat,
        "tolerance": table.tolerance,
        "is_slow": table.is_slow,
    }
