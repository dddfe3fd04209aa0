"""Self-contained HTML pages: facts, figures and tables, which need no network."""

from __future__ import annotations

import base64
import gzip
import html
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from trainyard.report.colors import THEMES

__all__ = ["Figure", "Table", "html_page", "nice", "tables_html", "zipped"]


@dataclass(frozen=True)
class Figure:
    """One figure.

    Attributes
    ----------
    heading : stands above it.
    data, layout : as Plotly takes them; a figure without data is left out. Colours that depend on the theme are
        written ``theme:NAME``.
    note : what has to be said about it, in small print.
    script : which script draws more into it, such as ``bars.js``; its function is called ``drawBars``.
    packed : what this script draws.
    """

    heading: str
    data: Sequence[Mapping[str, Any]]
    layout: Mapping[str, Any]
    note: str = ""
    script: str = ""
    packed: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Table:
    """A table to be shown on a page; columns of numbers are aligned to the right.

    Attributes
    ----------
    rows : one cell per column of the header.
    unfit : numbers of the rows that are shown in red.
    best : number of the row that is marked as the best.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    unfit: frozenset[int] = frozenset()
    best: int | None = None


def html_page(
    title: str, facts: Mapping[str, str], sections: Sequence[Figure | Table], interactive: bool = False
) -> str:
    """A page.

    Parameters
    ----------
    title : heading of the page.
    facts : shown at the top, by name.
    sections : one below the other; long pages begin with links to them.
    interactive : whether figures can be zoomed and saved.
    """
    shown = [each for each in sections if isinstance(each, Table) or each.data]
    figures = [each for each in shown if isinstance(each, Figure)]
    names = [f"figure{number}" for number in range(len(figures))]
    unused = iter(names)
    contents = (_table(each) if isinstance(each, Table) else _figure(each, next(unused)) for each in shown)
    body = (f"<section id=section{number}>{text}</section>" for number, text in enumerate(contents))
    cards = (
        f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(text)}</dd></div>" for name, text in facts.items()
    )
    return "\n".join(
        (
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{html.escape(title)}</title>\n<style>\n{_theme_style()}{_text('page.css')}</style>\n</head>",
            f"<body>\n<h1>{html.escape(title)}</h1>\n<dl>{''.join(cards)}</dl>",
            _links(shown),
            '<div id="errors"></div>',
            *body,
            *(f"<script>\n{script}\n</script>" for script in _scripts(figures, names, interactive)),
            "</body>\n</html>\n",
        )
    )


def tables_html(tables: Sequence[Table]) -> str:
    """Tables as a part of another page, such as a notebook."""
    return "\n".join(_table(each) for each in tables)


# Characters of a cell that is wrapped.
_LONG = 40
# Sections of a page without contents.
_FEW_SECTIONS = 6
_STILL = "{responsive: true, displayModeBar: false}"
_INTERACTIVE = '{responsive: true, displaylogo: false, modeBarButtonsToRemove: ["select2d", "lasso2d"]}'
_QUANTITY = r"[<>~+-]?\d[\d,.]*(?:e[+-]?\d+)?(?: ?(?:%|[A-Za-zµ/]{1,9}))?"
_NUMBERS = re.compile(rf"{_QUANTITY}(?:(?: / | of | ± ){_QUANTITY})*")


def _text(name: str) -> str:
    return resources.files("trainyard.report").joinpath(name).read_text("utf-8")


@cache
def _plotly() -> str:
    """Plotly's bundle of figures with two axes: ``plotly.js-cartesian-dist-min`` 4.1.1 of npm, by ``gzip -9n``."""
    found = resources.files("trainyard.report").joinpath("plotly", "plotly-cartesian.min.js.gz")
    return base64.b64encode(found.read_bytes()).decode()


def _theme_style() -> str:
    """The colours of both themes; what is printed is light."""
    light, dark = (
        " ".join(f"--{name}: {color};" for name, color in THEMES[theme].items())
        for theme in ("light", "dark")
    )
    return f":root {{ {light} }}\n@media screen and (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n"


def _links(shown: Sequence[Figure | Table]) -> str:
    if len(shown) <= _FEW_SECTIONS:
        return ""
    headings = (each.title if isinstance(each, Table) else each.heading for each in shown)
    links = (
        f'<li><a href="#section{number}">{html.escape(text)}</a></li>' for number, text in enumerate(headings)
    )
    return f'<nav aria-label="Contents"><ol>{"".join(links)}</ol></nav>'


def _scripts(figures: Sequence[Figure], names: Sequence[str], interactive: bool) -> Iterable[str]:
    if not figures:
        return
    themes = json.dumps({name: dict(theme) for name, theme in THEMES.items()})
    yield f'const THEMES = {themes}, CONFIG = {_INTERACTIVE if interactive else _STILL}, PLOTLY = "{_plotly()}";'
    yield _text("page.js")
    for script in sorted({each.script for each in figures if each.script}):
        yield _text(script)
    yield "\n".join(map(_script, figures, names))


def _figure(figure: Figure, name: str) -> str:
    note = f"<p class=note>{html.escape(figure.note)}</p>" if figure.note else ""
    return f'<h2>{html.escape(figure.heading)}</h2>{note}<div id="{name}" class=figure></div>'


def _script(figure: Figure, name: str) -> str:
    drawn = _script_json({"data": figure.data, "layout": figure.layout})
    if figure.packed is None:
        return f"draw('{name}', {drawn});"
    function = f"draw{figure.script.removesuffix('.js').capitalize()}"
    return f"{function}('{name}', {drawn}, {_script_json(figure.packed)}).catch(problem => say('{name}', problem));"


def _table(table: Table) -> str:
    numeric = [_is_numeric(column) for column in zip(*table.rows, strict=True)] or [False] * len(table.header)

    def cell(text: str, is_number: bool) -> str:
        kind = "number" if is_number else "long" if len(text) > _LONG else ""
        return f"<td{f' class={kind}' if kind else ''}>{html.escape(text)}</td>"

    def row(number: int, cells: tuple[str, ...]) -> str:
        kind = "unfit" if number in table.unfit else "best" if number == table.best else ""
        return f"<tr{f' class={kind}' if kind else ''}>{''.join(map(cell, cells, numeric))}</tr>"

    heads = (
        f"<th{' class=number' if is_number else ''}>{html.escape(name)}</th>"
        for name, is_number in zip(table.header, numeric, strict=True)
    )
    rows = "".join(row(number, cells) for number, cells in enumerate(table.rows))
    body = f"<table><thead><tr>{''.join(heads)}</tr></thead><tbody>{rows}</tbody></table>"
    return f"<h2>{html.escape(table.title)}</h2><div class=scroll>{body}</div>"


def _is_numeric(column: Sequence[str]) -> bool:
    """Whether a column has numbers, and beside them only words such as "best"."""
    rest = [cell for cell in column if not _NUMBERS.fullmatch(cell)]
    return len(rest) < len(column) and not any(char.isdigit() for cell in rest for char in cell)


def nice(value: float) -> float:
    """A number with as many digits as a figure can show."""
    return float(f"{value:.7g}")


def zipped(data: bytes) -> str:
    """Data as `unpacked` of the page's script reads it."""
    return base64.b64encode(gzip.compress(data, 6, mtime=0)).decode()


def _script_json(figure: Mapping[str, Any]) -> str:
    """JSON inside a script element: ``</`` would end the element, wherever it stands."""
    return json.dumps(figure, allow_nan=False).replace("</", "<\\/")
