"""`trainyard reproduce`: a paper's headline numbers next to ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.console import RenderableType

from trainyard.cli.screen import Common, Outcome, Screen

if TYPE_CHECKING:
    from trainyard.job.reproduce import PaperTable, Row

__all__ = ["Options", "act"]


@dataclass(frozen=True)
class Options(Common):
    """Print a paper's headline numbers next to ours; without a name, list the papers' tables."""

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[NAME]")] = ""
    """A system that `trainyard papers` lists."""


def act(options: Options, screen: Screen) -> Outcome:
    """Compute ours and print both, or list what there is."""
    from trainyard.job.reproduce import paper_tables

    if not options.name:
        return _listed()
    body: list[RenderableType] = []
    documents = []
    for table in paper_tables(options.name):
        rows = _computed(table, screen)
        body += [*_body(table, rows), ""]
        documents.append({**_facts(table), "rows": [{**asdict(row), "ratio": row.ratio} for row in rows]})
    return Outcome({"system": options.name, "tables": documents}, tuple(body[:-1]))


def _listed() -> Outcome:
    from trainyard.job.catalog import CATALOG
    from trainyard.job.reproduce import paper_tables

    tables = [(entry.name, table) for entry in CATALOG for table in paper_tables(entry.name)]
    lines = [f"{name:24}{table.source}{' (simulates: slow)' * table.is_slow}" for name, table in tables]
    return Outcome({"tables": [{"system": name, **_facts(table)} for name, table in tables]}, lines)


def _computed(table: PaperTable, screen: Screen) -> list[Row]:
    """The rows; on a terminal it is seen how far they are."""
    rows: list[Row] = []
    with screen.waiting(table.source) as tell:
        for row in table.rows():
            rows.append(row)
            tell(f"{table.source}: {row.label} is {row.ours:.4g}")
    return rows


def _body(table: PaperTable, rows: Sequence[Row]) -> list[RenderableType]:
    from trainyard.report.tables import make_table

    texts = [(row.label, f"{row.paper:g}", f"{row.ours:.4g}", f"{row.ratio:.2f}") for row in rows]
    body: list[RenderableType] = [
        make_table(table.source, (table.unit, "paper", "ours", "ours / paper"), texts),
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
