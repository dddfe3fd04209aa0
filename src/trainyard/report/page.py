"""Self-contained HTML pages: facts, figures and tables, which need no network."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
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
    bars : what `bars.js` draws instead of a density, the only data, where few bars are in sight.
    """

    heading: str
    data: Sequence[Mapping[str, Any]]
    layout: Mapping[str, Any]
    note: str = ""
    bars: Mapping[str, Any] | None = None


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
    title: str, facts: Mapping[str, str], sections: Sequence[Figure | Table], interactive: bool = False
) -> str:
    """A page.

    Parameters
    ----------
    title : heading of the page.
    facts : shown at the top, by name.
    sections : one below the other.
    interactive : whether figures can be zoomed and saved.
    """
    from plotly.offline import get_plotlyjs

    body: list[str] = []
    scripts: list[str] = []
    for section in sections:
        if isinstance(section, Table):
            body.append(_table(section))
        elif section.data:
            name = f"figure{len(scripts)}"
            body.append(_figure(section, name))
            scripts.append(_script(section, name))
    cards = (
        f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(text)}</dd></div>" for name, text in facts.items()
    )
    return _PAGE.format(
        title=html.escape(title),
        cards="".join(cards),
        body="".join(body),
        plotly=get_plotlyjs(),
        config=_INTERACTIVE if interactive else _STILL,
        bars=resources.files("trainyard.report").joinpath("bars.js").read_text("utf-8"),
        scripts="\n".join(scripts),
    )


# Characters of a cell that is wrapped.
_LONG = 40
_STILL = "{responsive: true, displayModeBar: false}"
_INTERACTIVE = '{responsive: true, displaylogo: false, modeBarButtonsToRemove: ["select2d", "lasso2d"]}'


def _figure(figure: Figure, name: str) -> str:
    note = f"<p class=note>{html.escape(figure.note)}</p>" if figure.note else ""
    heading = f"<h2>{html.escape(figure.heading)}</h2>"
    return f'<section>{heading}{note}<div id="{name}" class=figure></div></section>'


def _script(figure: Figure, name: str) -> str:
    drawn = _script_json({"data": figure.data, "layout": figure.layout})
    if figure.bars is None:
        return f"draw('{name}', {drawn});"
    return (
        f"drawBars('{name}', {drawn}, {_script_json(figure.bars)}).catch(problem => say('{name}', problem));"
    )


def _table(table: Table) -> str:
    def cell(text: str) -> str:
        return f"<td{' class=long' if len(text) > _LONG else ''}>{html.escape(text)}</td>"

    rows = (
        f"<tr{' class=unfit' if i in table.unfit else ''}>{''.join(map(cell, row))}</tr>"
        for i, row in enumerate(table.rows)
    )
    head = f"<thead><tr>{''.join(f'<th>{html.escape(name)}</th>' for name in table.header)}</tr></thead>"
    body = f"<div class=scroll><table>{head}<tbody>{''.join(rows)}</tbody></table></div>"
    return f"<section><h2>{html.escape(table.title)}</h2>{body}</section>"


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
* {{ box-sizing: border-box; }}
html {{ overflow-y: scroll; }}
body {{ font: 15px/1.45 system-ui, sans-serif; color: #222; background: white; margin: 0 auto; max-width: 1300px;
  padding: 16px 24px; overflow-wrap: anywhere; }}
h1 {{ font-size: 24px; margin: 8px 0 16px; }}
h2 {{ font-size: 17px; margin: 28px 0 4px; }}
dl {{ display: flex; flex-wrap: wrap; gap: 8px; margin: 0; }}
dl div {{ border: 1px solid #ddd; border-radius: 6px; padding: 6px 14px; }}
dt {{ color: #666; font-size: 12px; }}
dd {{ margin: 0; font-size: 17px; font-variant-numeric: tabular-nums; }}
.note {{ color: #666; font-size: 13px; margin: 2px 0; }}
.figure {{ width: 100%; overflow: hidden; }}
.scroll {{ overflow: auto; max-height: 75vh; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; overflow-wrap: normal; }}
th, td {{ text-align: left; padding: 6px 16px 6px 0; border-bottom: 1px solid #e5e5e5; vertical-align: top; }}
td {{ white-space: nowrap; }}
td.long {{ white-space: normal; overflow-wrap: anywhere; min-width: 16em; }}
th {{ font-size: 13px; color: #666; position: sticky; top: 0; background: white; white-space: nowrap; }}
th:first-child:not(:last-child), td:first-child:not(:last-child) {{ position: sticky; left: 0; background: white; }}
th:first-child {{ z-index: 1; }}
.unfit {{ color: #b00020; }}
@media (max-width: 600px) {{
  body {{ padding: 8px 10px; font-size: 14px; }}
  h1 {{ font-size: 20px; }}
  dd {{ font-size: 15px; }}
  th, td {{ padding: 5px 12px 5px 0; }}
}}
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
function say(id, problem) {{
  document.getElementById("errors").textContent += id + ": " + problem + "\\n";
}}
let drawn = Promise.resolve();
// One figure after the other, and the page answers in between.
function draw(id, figure, hasButtons = window.innerWidth > 600) {{
  const {{data, layout}} = figure;
  // On a phone a finger scrolls the page, unless there is a reason to zoom.
  if (!hasButtons) layout.dragmode = false;
  const names = layout.showlegend ? data.filter(each => each.showlegend !== false).length : 0;
  // There names stand one below the other, above the plot.
  if (window.innerWidth <= 600 && layout.height) layout.height += 18 * names;
  const config = {{...{config}, ...(hasButtons ? {{}} : {{displayModeBar: false}})}};
  drawn = drawn.then(() => new Promise(resolve => setTimeout(resolve)))
    .then(() => Plotly.newPlot(id, data, layout, config)).catch(problem => say(id, problem));
  return drawn;
}}
</script>
<script>
{bars}
</script>
<script>
{scripts}
</script>
</body>
</html>
"""
