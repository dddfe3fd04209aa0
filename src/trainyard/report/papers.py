"""A page per published system, made from its catalog entry and its docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from trainyard.job.catalog import CATALOG, Entry
from trainyard.job.reproduce import PaperTable, paper_tables

_HEADINGS = re.compile(r"^(\w[\w ]*)\n-+$", re.MULTILINE)


def page(entry: Entry) -> str:
    """The page of one system, in Markdown."""
    parts = [f"# {entry.title}", f"`{entry.name}` ({entry.family})", entry.paper + "."]
    parts.append(f"**Fidelity: {entry.fidelity}.** " + _sentence(entry.left_out, "Left out: "))
    if entry.needs:
        parts.append(f"**Needs** {', '.join(entry.needs)}.")
    runs = "on PyTorch processes and in simulation" if entry.runs else "in simulation only"
    parts.append(f"Runs {runs}. Its claim is tested in `{entry.claim_test}`.")
    parts.append(f"## The file\n\n{_notes(entry)}")
    parts.append(
        f"## Use\n\n```\ntrainyard plan gpt-tiny --cluster 1x4xA100-80G --strategies '{usage(entry)}'\n```"
    )
    parts.append(_signature(entry))
    parts.append(_HEADINGS.sub(r"**\1**\n", _escaped(inspect.getdoc(entry.factory) or "")))
    if entry.variants:
        parts.append("## Variants\n\n" + _table(("variant", "options"), _variants(entry)))
    parts.append("## Beside the paper")
    parts += [_reproduction(entry.name, table) for table in paper_tables(entry.name)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def index() -> str:
    """The table of all systems, in Markdown."""
    rows = [
        (f"[{e.name}]({e.name}.md)", e.title, _year(e), e.family, e.fidelity, "yes" if e.runs else "no")
        for e in CATALOG
    ]
    head = ("system", "what it decides", "paper", "family", "fidelity", "runs")
    return f"# The published systems of level 1\n\n{_table(head, rows)}\n"


def pages() -> dict[str, str]:
    """Text of every page by file name."""
    return {"index.md": index(), **{f"{entry.name}.md": page(entry) for entry in CATALOG}}


def write_pages(folder: Path) -> None:
    """Write the index and a page per system into a folder, and remove pages of systems that are gone."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = pages()
    for old in folder.glob("*.md"):
        if old.name not in wanted:
            old.unlink()
    for name, text in wanted.items():
        (folder / name).write_text(text)


def usage(entry: Entry) -> str:
    """How the system is named on the command line, with what it needs before it."""
    return f"{entry.after} + {entry.name}" if entry.after else entry.name


def _notes(entry: Entry) -> str:
    notes = inspect.getdoc(import_module(entry.module)) or ""
    return f"`{entry.module}`\n\n{notes}"


def _signature(entry: Entry) -> str:
    options = ", ".join(
        f"{p.name}={p.default!r}" for p in inspect.signature(entry.factory).parameters.values()
    )
    return f"## Options\n\n`{entry.name}({options})`"


def _escaped(text: str) -> str:
    """A docstring as Markdown: its examples as a code block, its double backticks as single ones."""
    body, _, examples = text.partition("Examples\n--------\n")
    body = body.replace("``", "`")
    body = re.sub(r"(?<=::)\n\n((?:    .*\n|\n)+)", lambda m: f"\n\n{m[1]}", body)
    body = re.sub(r"^(\w[\w, ]*) : ", r"- `\1`: ", body, flags=re.MULTILINE)
    return f"{body}Examples\n--------\n\n```python\n{examples}\n```" if examples else body


def _variants(entry: Entry) -> list[tuple[str, str]]:
    return [
        (name, ", ".join(f"`{k}={v!r}`" for k, v in options.items()))
        for name, options in entry.variants.items()
    ]


def _reproduction(name: str, table: PaperTable) -> str:
    """The table, or, where it takes long, what the command line makes of it."""
    text = f"{table.source}; {table.unit}. Ours: {table.method}."
    if table.is_slow:
        text += f" `trainyard reproduce {name}` simulates it and prints both."
    else:
        rows = [(row.label, f"{row.paper:g}", f"{row.ours:.4g}") for row in table.rows()]
        text += f"\n\n{_table(('', 'paper', 'ours'), rows)}"
    return text + (f"\n\n{_sentence(table.caveat)}" if table.caveat else "")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _year(entry: Entry) -> str:
    found = re.findall(r"arXiv \d{4}\.\d{5}", entry.paper)
    return ", ".join(found)


def _sentence(text: str, before: str = "") -> str:
    if not text:
        return ""
    whole = before + text
    return whole[0].upper() + whole[1:] + ("" if whole.endswith(".") else ".")
