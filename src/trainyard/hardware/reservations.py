"""Reservations: nodes kept for some users or accounts, or for maintenance, in a time known beforehand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainyard.hardware.node_changes import nodes_from, nodes_text
from trainyard.reading import Section
from trainyard.reading.limits import LATEST_S

__all__ = ["Reservation"]


@dataclass(frozen=True)
class Reservation:
    """Nodes that only some jobs may use for a time.

    Attributes
    ----------
    from_s, until_s
        Begin and end, in seconds on the clock of the arrivals of jobs.
    nodes
        Numbers of the nodes.
    users, accounts
        Users and accounts whose jobs may use the nodes. If both are empty, no job may: maintenance.
    """

    from_s: float
    until_s: float
    nodes: frozenset[int]
    users: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()

    def is_for(self, user: str, account: str) -> bool:
        """Return whether jobs of a user and account may use the nodes."""
        return user in self.users or account in self.accounts

    def to_dict(self) -> dict[str, Any]:
        """Return the plain form, as it is written in a file."""
        whose = {"users": list(self.users), "accounts": list(self.accounts)}
        return {"from_s": self.from_s, "until_s": self.until_s, "nodes": nodes_text(self.nodes)} | {
            name: names for name, names in whose.items() if names
        }

    @classmethod
    def read(cls, given: Section, num_nodes: int) -> Reservation:
        """Read a reservation from a file: ``{from_s: 3600, until_s: 7200, nodes: 0-7, accounts: [vision]}``.

        Raises
        ------
        ReadingError
            If it has another form.
        """
        given.refuse_unknown(("from_s", "until_s", "nodes", "users", "accounts"))
        if "nodes" not in given:
            raise given.error("nodes", f"nodes such as 0-7,9, from 0 to {num_nodes - 1}")
        from_s = given.number("from_s", 0.0, LATEST_S)
        until_s = given.number("until_s", 0.0, LATEST_S)
        if until_s <= from_s:
            raise given.error("until_s", f"a time after from_s, {from_s:g}")
        whose = {name: _names(given, name) for name in ("users", "accounts")}
        return cls(from_s, until_s, nodes_from(given, "nodes", num_nodes), **whose)


def _names(given: Section, key: str) -> tuple[str, ...]:
    """Read a list of names; return none if the key is missing."""
    if key not in given:
        return ()
    names = given.texts(key)
    if not names or not all(names):
        raise given.error(key, "a list of names; leave it out for nobody")
    return names
