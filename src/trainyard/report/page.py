"""Self-contained HTML pages: facts, figures and a table, which need no network."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["PALETTE", "Figure", "Table", "html_page", "nice"]

PALETTE = ("#4c78a8", "#f58518", "#54a24b", "#b279a2", "#e45756", "#72b7b2", "#eeca3b", "#9d755d", "#439894")
"""Colours that can be told apart, in the order in which they are used."""


@dataclass(frozen=True)
class Figure:
    """One figure.

    Attributes
    ----------
    heading : stands above it.
    data, layout : as Plotly takes them; a figure without data is left out.
    note : what has to be said about it, in small print.
    """

    heading: str
    data: Sequence[Mapping[str, Any]]
    layout: Mapping[str, Any]
    note: str = ""


@dataclass(frozen=True)
class Table:
    """A table to be shown on a page.

    Attributes
    ----------
    rows : one cell per column of the header.
    unfit : numbers of the rows that are shown in red.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    unfit: frozenset[int] = frozenset()


def html_page(
    title: str,
    facts: Mapping[str, str],
    figures: Sequence[Figure],
    tables: Sequence[Table] = (),
    interactive: bool = False,
) -> str:
    """A page.

    Parameters
    ----------
    title : heading of the page.
    facts : shown at the top, by name.
    figures, tables : one below the other.
    interactive : whether figures can be zoomed and saved.
    """
    from plotly.offline import get_plotlyjs

    body, scripts = [], []
    for index, figure in enumerate(f for f in figures if f.data):
        note = f"<p class=note>{html.escape(figure.note)}</p>" if figure.note else ""
        heading = f"<h2>{html.escape(figure.heading)}</h2>"
        body.append(f'<section>{heading}{note}<div id="figure{index}" class=figure></div></section>')
        scripts.append(
            f"draw('figure{index}', {_script_json({'data': figure.data, 'layout': figure.layout})});"
        )
    cards = (
        f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(text)}</dd></div>" for name, text in facts.items()
    )
    return _PAGE.format(
        title=html.escape(title),
        cards="".join(cards),
        body="".join(body) + "".join(map(_table, tables)),
        plotly=get_plotlyjs(),
        config=_INTERACTIVE if interactive else _STILL,
        scripts="\n".join(scripts),
    )


_STILL = "{responsive: true, displayModeBar: false}"
_INTERACTIVE = '{responsive: true, displaylogo: false, modeBarButtonsToRemove: ["select2d", "lasso2d"]}'


def _table(table: Table) -> str:
    def cells(row: Sequence[str], tag: str) -> str:
        return "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row)

    rows = (
        f"<tr{' class=unfit' if i in table.unfit else ''}>{cells(row, 'td')}</tr>"
        for i, row in enumerate(table.rows)
    )
    head = f"<thead><tr>{cells(table.header, 'th')}</tr></thead>"
    return f"<section><h2>{html.escape(table.title)}</h2><table>{head}<tbody>{''.join(rows)}</tbody></table></section>"


def nice(value: float) -> float:
    """A number with as many digits as a figure can show."""
    return float(f"{value:.7g}")


def _script_json(figure: Mapping[str, Any]) -> str:
    """JSON inside a script element: ``</`` would end the element, wherever it stands."""
    return json.dumps(figure, allow_nan=False).replace("</", "<\\/")


_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font: 15px/1.45 system-ui, sans-serif; color: #222; margin: 0 auto; max-width: 1300px;
  padding: 16px 24px; }}
h1 {{ font-size: 24px; margin: 8px 0 16px; }}
h2 {{ font-size: 17px; margin: 28px 0 4px; }}
dl {{ display: flex; flex-wrap: wrap; gap: 8px; margin: 0; }}
dl div {{ border: 1px solid #ddd; border-radius: 6px; padding: 6px 14px; }}
dt {{ color: #666; font-size: 12px; }}
dd {{ margin: 0; font-size: 17px; font-variant-numeric: tabular-nums; }}
.note {{ color: #666; font-size: 13px; margin: 2px 0; }}
.figure {{ width: 100%; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; }}
th, td {{ text-align: left; padding: 6px 16px 6px 0; border-bottom: 1px solid #e5e5e5; vertical-align: top; }}
td:not(:last-child) {{ white-space: nowrap; }}
th {{ font-size: 13px; color: #666; }}
.unfit {{ color: #b00020; }}
#errors {{ color: #b00020; white-space: pre-wrap; }}
</style>
</head>
<body>
<h1>{title}</h1>
<dl>{cards}</dl>
<div id="errors"></div>
{body}
<script>
window.addEventListener("error", event => {{
  document.getElementById("errors").textContent += event.message + "\\n";
}});
</script>
<script>{plotly}</script>
<script>
function draw(id, figure) {{
  Plotly.newPlot(id, figure.data, figure.layout, {config}).catch(problem => {{
    document.getElementById("errors").textContent += id + ": " + problem + "\\n";
  }});
}}
{scripts}
</script>
</body>
</html>
"""
