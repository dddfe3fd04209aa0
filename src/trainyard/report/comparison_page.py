"""One self-contained HTML page that compares several ways to run the same step."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from typing import Any

from trainyard.report.league import Contender, ranked
from trainyard.report.units import bytes_text, percent_text, seconds_text

__all__ = ["comparison_page"]

_PALETTE = ("#4c78a8", "#f58518", "#54a24b", "#b279a2", "#e45756", "#72b7b2", "#eeca3b", "#9d755d", "#439894")
_IDLE, _DOES_NOT_FIT = "#d9d9d9", "#b00020"


def comparison_page(title: str, contenders: Sequence[Contender], summary: Mapping[str, str]) -> str:
    """Draw where a step's time goes, memory against capacity, and the league table.

    Parameters
    ----------
    title : heading of the page.
    contenders : in any order; the page ranks them.
    summary : facts shown at the top, by name.

    Returns
    -------
    str
        HTML that needs nothing else, no network either.
    """
    from plotly.offline import get_plotlyjs

    order = ranked(contenders)
    drawn = [c for c in order if c.step_s is not None]
    figures = []
    if drawn:
        figures = [
            ("Where a step's time goes", _time_figure(drawn)),
            ("Memory of the fullest device", _memory_figure(drawn)),
        ]
    sections = "".join(
        f'<section><h2>{heading}</h2><div id="figure{index}" class=figure></div></section>'
        for index, (heading, _) in enumerate(figures)
    )
    scripts = "\n".join(
        f"draw('figure{i}', {_script_json(figure)});" for i, (_, figure) in enumerate(figures)
    )
    cards = "".join(
        f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(text)}</dd></div>"
        for name, text in summary.items()
    )
    return _PAGE.format(
        title=html.escape(title),
        cards=cards,
        sections=sections,
        table=_table(order),
        plotly=get_plotlyjs(),
        scripts=scripts,
    )


def _time_figure(drawn: Sequence[Contender]) -> dict[str, Any]:
    longest_s = max(c.step_s or 0.0 for c in drawn)
    unit, per_s = next(
        ((u, scale) for u, scale in (("s", 1.0), ("ms", 1e3)) if longest_s * scale >= 1), ("µs", 1e6)
    )
    names = list(dict.fromkeys(name for c in drawn for name in c.parts_s))
    colors = iter(_PALETTE * (1 + len(names) // len(_PALETTE)))
    data = [
        _bars(
            name,
            [c.parts_s.get(name, 0.0) * per_s for c in drawn],
            f"%{{x:.4g}} {unit}",
            _IDLE if name in ("bubble", "idle") else next(colors),
        )
        for name in names
    ]
    layout = _layout(drawn, f"predicted step time ({unit})")
    layout["annotations"] = [
        _label(row, (c.step_s or 0.0) * per_s, seconds_text(c.step_s or 0.0)) for row, c in enumerate(drawn)
    ]
    layout["xaxis"]["range"] = [0, longest_s * per_s * 1.15]
    return {"data": data, "layout": layout}


def _memory_figure(drawn: Sequence[Contender]) -> dict[str, Any]:
    largest = max(max(c.peak_bytes, c.capacity_bytes) for c in drawn)
    unit, scale = next(((u, s) for u, s in (("GiB", 2**30), ("MiB", 2**20)) if largest >= s), ("KiB", 2**10))
    names = list(dict.fromkeys(name for c in drawn for name in c.memory_bytes))
    colors = _PALETTE * (1 + len(names) // len(_PALETTE))
    data = [
        _bars(name, [c.memory_bytes.get(name, 0) / scale for c in drawn], f"%{{x:.4g}} {unit}", colors[index])
        for index, name in enumerate(names)
    ]
    layout = _layout(drawn, f"memory ({unit})")
    layout["annotations"] = [
        _label(row, c.peak_bytes / scale, bytes_text(c.peak_bytes) + ("" if c.fits else " — does not fit"), c)
        for row, c in enumerate(drawn)
    ]
    layout["shapes"] = [
        {
            "type": "line",
            "x0": c.capacity_bytes / scale,
            "x1": c.capacity_bytes / scale,
            "y0": row - 0.45,
            "y1": row + 0.45,
            "line": {"color": _DOES_NOT_FIT, "width": 2, "dash": "dot"},
        }
        for row, c in enumerate(drawn)
    ]
    layout["xaxis"]["range"] = [0, largest / scale * 1.2]
    layout["xaxis"]["title"]["text"] += "; the dotted line is the device's capacity"
    return {"data": data, "layout": layout}


def _bars(name: str, values: list[float], hover: str, color: str) -> dict[str, Any]:
    return {
        "type": "bar",
        "orientation": "h",
        "name": html.escape(name.replace("_", " ")),
        "y": list(range(len(values))),
        "x": [float(f"{value:.7g}") for value in values],
        "hovertemplate": hover,
        "marker": {"color": color},
    }


def _label(row: int, x: float, text: str, contender: Contender | None = None) -> dict[str, Any]:
    color = _DOES_NOT_FIT if contender is not None and not contender.fits else "#222"
    return {
        "x": x,
        "y": row,
        "text": text,
        "showarrow": False,
        "xanchor": "left",
        "xshift": 6,
        "font": {"color": color},
        "bgcolor": "white",
    }


def _layout(drawn: Sequence[Contender], axis: str) -> dict[str, Any]:
    return {
        "barmode": "stack",
        "height": 150 + 44 * len(drawn),
        "margin": {"l": 40, "r": 20, "t": 10, "b": 50},
        "bargap": 0.35,
        "showlegend": True,
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "traceorder": "normal"},
        "xaxis": {"title": {"text": axis}, "automargin": True, "gridcolor": "#eee", "zeroline": False},
        "yaxis": {
            "tickvals": list(range(len(drawn))),
            "ticktext": [html.escape(c.name) for c in drawn],
            "range": [len(drawn) - 0.4, -0.6],
            "fixedrange": True,
            "automargin": True,
            "ticksuffix": "  ",
            "showgrid": False,
        },
        "plot_bgcolor": "white",
        "font": {"family": "system-ui, sans-serif", "size": 13},
        "hoverlabel": {"namelength": -1},
    }


def _table(order: Sequence[Contender]) -> str:
    def cells(each: Contender) -> tuple[str, ...]:
        if each.step_s is None:
            return (each.name, "no plan", "", "", each.what)
        memory = f"{bytes_text(each.peak_bytes)} of {bytes_text(each.capacity_bytes)}"
        mfu = "" if each.mfu is None else percent_text(each.mfu)
        return (each.name, seconds_text(each.step_s), mfu, memory, each.what)

    rows = "".join(
        f"<tr{'' if each.fits else ' class=unfit'}>"
        + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells(each))
        + "</tr>"
        for each in order
    )
    header = "".join(f"<th>{h}</th>" for h in ("strategy", "step", "MFU", "memory per device", "plan"))
    return f"<table><thead><tr>{header}</tr></thead><tbody>{rows}</tbody></table>"


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
body {{ font: 15px/1.45 system-ui, sans-serif; color: #222; margin: 0 auto; max-width: 1200px;
  padding: 16px 24px; }}
h1 {{ font-size: 24px; margin: 8px 0 16px; }}
h2 {{ font-size: 17px; margin: 28px 0 4px; }}
dl {{ display: flex; flex-wrap: wrap; gap: 8px; margin: 0; }}
dl div {{ border: 1px solid #ddd; border-radius: 6px; padding: 6px 14px; }}
dt {{ color: #666; font-size: 12px; }}
dd {{ margin: 0; font-size: 17px; font-variant-numeric: tabular-nums; }}
.figure {{ width: 100%; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; width: 100%; }}
th, td {{ text-align: left; padding: 6px 16px 6px 0; border-bottom: 1px solid #e5e5e5; vertical-align: top; }}
td:nth-child(2), td:nth-child(3), td:nth-child(4) {{ white-space: nowrap; }}
th {{ font-size: 13px; color: #666; }}
.unfit {{ color: #b00020; }}
#errors {{ color: #b00020; white-space: pre-wrap; }}
</style>
</head>
<body>
<h1>{title}</h1>
<dl>{cards}</dl>
<div id="errors"></div>
{sections}
<section><h2>League table</h2>{table}</section>
<script>
window.addEventListener("error", event => {{
  document.getElementById("errors").textContent += event.message + "\\n";
}});
</script>
<script>{plotly}</script>
<script>
function draw(id, figure) {{
  Plotly.newPlot(id, figure.data, figure.layout, {{responsive: true, displayModeBar: false}}).catch(problem => {{
    document.getElementById("errors").textContent += id + ": " + problem + "\\n";
  }});
}}
{scripts}
</script>
</body>
</html>
"""
