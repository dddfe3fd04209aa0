"""`trainyard papers`: the published systems, or one of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from trainyard.cli.screen import Common, Outcome, Screen

if TYPE_CHECKING:
    from trainyard.published import System
    from trainyard.report.systems import Level

__all__ = ["Options", "act"]


@dataclass(frozen=True)
class Options(Common):
    """List the published systems, or tell what is known of one."""

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[NAME]")] = ""
    """A system of the list."""


def act(options: Options, screen: Screen) -> Outcome:
    """List, or tell."""
    from trainyard.report.systems import LEVELS, find
    from trainyard.report.tables import facts_table, make_table

    if options.name:
        level, system = find(options.name)
        about = f"{system.name}: {system.title}"
        return Outcome(_document(level, system), (about, "", facts_table("", _facts(level, system))))
    known = [(level, system) for level in LEVELS for system in level.systems]
    rows = [(str(level.number), s.name, s.title, s.fidelity) for level, s in known]
    table = make_table("published systems", ("level", "name", "what it decides", "fidelity"), rows, 4)
    return Outcome(
        {"systems": [_document(*pair) for pair in known]}, (table, "trainyard papers NAME tells more")
    )


def _facts(level: Level, system: System) -> tuple[tuple[str, str], ...]:
    from trainyard.report.systems import options

    facts = [
        ("paper", system.paper),
        ("level", f"{level.number}, {level.about}"),
        ("kind", level.kind(system)),
        ("fidelity", system.fidelity),
        ("left out", system.left_out or "nothing"),
        ("needs", ", ".join(system.needs) or "nothing in particular"),
        ("options", ", ".join(options(system)) or "none"),
        ("runs", level.runs(system)),
        ("claim test", system.claim_test),
    ]
    facts += [(f"variant: {name}", _call(system.name, kwargs)) for name, kwargs in system.variants.items()]
    return tuple(facts)


def _call(name: str, kwargs: Any) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in kwargs.items())})"


def _document(level: Level, system: System) -> dict[str, Any]:
    from trainyard.report.systems import options

    return {
        "name": system.name,
        "level": level.number,
        "kind": level.kind(system),
        "title": system.title,
        "paper": system.paper,
        "fidelity": system.fidelity,
        "left_out": system.left_out,
        "needs": system.needs,
        "options": options(system),
        "variants": system.variants,
        "runs": level.runs(system),
        "claim_test": system.claim_test,
    }
