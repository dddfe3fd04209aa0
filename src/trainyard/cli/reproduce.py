"""`trainyard reproduce`: a paper's headline numbers next to ours."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.console import RenderableType

from trainyard.cli.screen import Common, Outcome, Screen

if TYPE_CHECKING:
    from trainyard.job.reproduce import PaperTable

__all__ = ["Options", "act"]


@dataclass(frozen=True)
class Options(Common):
    """Print a paper's headline numbers next to ours; without a name, list the papers that have them."""

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[NAME]")] = ""
    """A system that `trainyard papers` lists."""


def act(options: Options, screen: Screen) -> Outcome:
    """Compute ours and print both."""
    from trainyard.job.reproduce import TABLES, paper_table

    if options.name:
        table = paper_table(options.name)
        return Outcome(_document(table), tuple(_body(table)))
    tables = [make() for make in TABLES.values()]
    lines = [f"{table.entry:24}{table.source}" for table in tables]
    return Outcome({"tables": [_document(table) for table in tables]}, lines)


def _body(table: PaperTable) -> list[RenderableType]:
    from trainyard.report.tables import make_table

    rows = [(row.label, f"{row.paper:g}", f"{row.ours:.4g}", f"{row.ratio:.2f}") for row in table.rows]
    columns = (table.unit, "paper", "ours", "ours / paper")
    body: list[RenderableType] = [
        make_table(f"{table.entry}: {table.source}", columns, rows),
        f"ours: {table.method}",
    ]
    if table.caveat:
        body.append(f"they differ because: {table.caveat}")
    return body


def _document(table: PaperTable) -> dict[str, object]:
    rows = [{**asdict(row), "ratio": row.ratio} for row in table.rows]
    return {**asdict(table), "rows": rows}
