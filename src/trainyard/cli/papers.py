"""`trainyard papers`: the published systems, or one of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from trainyard.cli.screen import Common, Outcome, Screen

if TYPE_CHECKING:
    from trainyard.job.catalog import Entry

__all__ = ["Options", "act"]


@dataclass(frozen=True)
class Options(Common):
    """List the published systems, or tell what is known of one."""

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[NAME]")] = ""
    """A system of the list."""


def act(options: Options, screen: Screen) -> Outcome:
    """List, or tell."""
    from trainyard.job.catalog import CATALOG, find
    from trainyard.report.tables import facts_table, make_table

    if options.name:
        entry = find(options.name)
        return Outcome(_document(entry), (_about(entry), "", facts_table("", _facts(entry))))
    rows = [(entry.name, entry.family, entry.title, entry.fidelity) for entry in CATALOG]
    table = make_table("published systems", ("name", "family", "what it decides", "fidelity"), rows, 4)
    return Outcome(
        {"systems": [_document(entry) for entry in CATALOG]}, (table, "trainyard papers NAME tells more")
    )


def _about(entry: Entry) -> str:
    return f"{entry.name}: {entry.title}"


def _facts(entry: Entry) -> tuple[tuple[str, str], ...]:
    facts = [
        ("paper", entry.paper),
        ("fidelity", entry.fidelity),
        ("left out", entry.left_out or "nothing"),
        ("needs", ", ".join(entry.needs) or "nothing in particular"),
        ("options", ", ".join(_options(entry)) or "none"),
        ("runs", "on processes" if entry.runs else "in simulation only"),
        ("claim test", entry.claim_test),
    ]
    facts += [(f"variant: {name}", _call(entry.name, kwargs)) for name, kwargs in entry.variants.items()]
    return tuple(facts)


def _options(entry: Entry) -> list[str]:
    import inspect

    parameters = inspect.signature(entry.factory).parameters.values()
    return [f"{p.name}={p.default}" if p.default is not p.empty else p.name for p in parameters]


def _call(name: str, kwargs: Any) -> str:
    return f"{name}({', '.join(f'{key}={value}' for key, value in kwargs.items())})"


def _document(entry: Entry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "family": entry.family,
        "title": entry.title,
        "paper": entry.paper,
        "fidelity": entry.fidelity,
        "left_out": entry.left_out,
        "needs": entry.needs,
        "options": _options(entry),
        "variants": entry.variants,
        "runs": entry.runs,
        "claim_test": entry.claim_test,
    }
