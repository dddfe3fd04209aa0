"""A page per published system of every level, made from its catalog entry and its docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

from trainyard.published import PaperTable, System
from trainyard.report.systems import LEVELS, Level, factory_of, options
from trainyard.report.units import number_text

_HEADINGS = re.compile(r"^(\w[\w ]*)\n-+$", re.MULTILINE)
_ATTRIBUTES = re.compile(r"^Attributes\n-+\n((?:.+\n?)*)", re.MULTILINE)


def page(level: Level, system: System) -> str:
    """The page of one system, in Markdown."""
    parts = [
        f"# {system.title}",
        f"`{system.name}` ({level.title}: {level.kind(system)})",
        system.paper + ".",
    ]
    parts.append(f"**Fidelity: {system.fidelity}.** " + _sentence(system.left_out, "Left out: "))
    if system.needs:
        parts.append(f"**Needs** {', '.join(system.needs)}.")
    parts.append(f"Runs {level.runs(system)}. Its claim is tested in `{system.claim_test}`.")
    parts.append(f"## The file\n\n{_notes(system)}")
    parts.append(f"## Use\n\n```\n{level.command(system)}\n```")
    parts.append(f"## Options\n\n`{system.name}({', '.join(options(system))})`")
    parts.append(_bold_headings(_escaped(_described(factory_of(system)))))
    if system.variants:
        parts.append("## Variants\n\n" + _table(("variant", "options"), _variants(system)))
    parts.append("## Beside the paper")
    parts += [_reproduction(system.name, table) for table in level.tables(system.name)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def index() -> str:
    """The tables of all systems, in Markdown."""
    parts = ["# The published systems"]
    head = ("system", "what it decides", "paper", "kind", "fidelity", "runs")
    for level in LEVELS:
        rows = [
            (f"[{s.name}]({s.name}.md)", s.title, s.paper, level.kind(s), s.fidelity, level.runs(s))
            for s in level.systems
        ]
        parts.append(f"## {level.title.capitalize()}: {level.about}\n\n{_table(head, rows)}")
    return "\n\n".join(parts) + "\n"


def pages() -> dict[str, str]:
    """Text of every page by file name."""
    found = {f"{system.name}.md": page(level, system) for level in LEVELS for system in level.systems}
    return {"index.md": index(), **found}


def write_pages(folder: Path) -> None:
    """Write the index and a page per system into a folder, and remove pages of systems that are gone."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = pages()
    for old in folder.glob("*.md"):
        if old.name not in wanted:
            old.unlink()
    for name, text in wanted.items():
        (folder / name).write_text(text)


def _notes(system: System) -> str:
    notes = inspect.getdoc(import_module(system.module)) or ""
    return f"`{system.module}`\n\n{_bold_headings(notes)}"


def _described(factory: Callable[..., object]) -> str:
    """The docstring of a factory; of a class, also what those say of its options that it derives from."""
    text, options = inspect.getdoc(factory) or "", inspect.signature(factory).parameters
    own = _ATTRIBUTES.search(text)
    entries = own[1].rstrip() if own else ""
    for base in getattr(factory, "__mro__", ())[1:]:
        said = _ATTRIBUTES.search(inspect.cleandoc(base.__doc__ or ""))
        for entry in re.split(r"\n(?=\S)", said[1].rstrip()) if said else ():
            name = entry.partition(" : ")[0]
            if name in options and f"{name} : " not in entries:
                entries += f"\n{entry}"
    section = f"Attributes\n----------\n{entries.strip()}\n"
    if own:
        return text[: own.start()] + section + text[own.end() :]
    return f"{text}\n\n{section}" if entries else text


def _bold_headings(text: str) -> str:
    return _HEADINGS.sub(r"**\1**\n", text)


def _escaped(text: str) -> str:
    """A docstring as Markdown: its examples as a code block, its double backticks as single ones."""
    body, _, examples = text.partition("Examples\n--------\n")
    body = body.replace("``", "`")
    body = re.sub(r"(?<=::)\n\n((?:    .*\n|\n)+)", lambda m: f"\n\n{m[1]}", body)
    body = re.sub(r"^(\w[\w, ]*) : ", r"- `\1`: ", body, flags=re.MULTILINE)
    return f"{body}Examples\n--------\n\n```python\n{examples}\n```" if examples else body


def _variants(system: System) -> list[tuple[str, str]]:
    return [
        (name, ", ".join(f"`{k}={v!r}`" for k, v in options.items()))
        for name, options in system.variants.items()
    ]


def _reproduction(name: str, table: PaperTable) -> str:
    """The table, or, where it takes long or files that are not here, how the command line makes it."""
    text = f"{table.source}; {table.unit}. Ours: {table.method}."
    if table.files is not None:
        text += (
            f" It is computed from files that have to be fetched:\n\n```\n{table.files.command(name)}\n```"
        )
    elif table.is_slow:
        text += f" `trainyard reproduce {name}` simulates it and prints both."
    else:
        rows = [(row.label, number_text(row.theirs, 6), number_text(row.ours, 5)) for row in table.computed()]
        text += f"\n\n{_table(('', 'theirs', 'ours'), rows)}"
    return text + (f"\n\n{_sentence(table.caveat)}" if table.caveat else "")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _sentence(text: str, before: str = "") -> str:
    if not text:
        return ""
    whole = before + text
    return whole[0].upper() + whole[1:] + ("" if whole.endswith(".") else ".")
