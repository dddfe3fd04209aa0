"""Users and their tokens: only the owner of a job, or an administrator, may cancel it and read its log."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trainyard.fleet.daemon.refusal import Refusal
from trainyard.fleet.errors import FleetError
from trainyard.hardware.interface import is_loopback
from trainyard.private import owner_of_bearer, require_private
from trainyard.reading import raised_as, read_text

_FORM = "a token file has lines 'user:token' or 'user:token:admin'; empty lines and such that begin with # say nothing"
_TOKEN = re.compile(r"[\w.~+/=-]{8,}", re.ASCII)


@dataclass(frozen=True, repr=False)
class Users:
    """The users of a daemon.

    Attributes
    ----------
    by_token : name of each. Without any, everybody who reaches the daemon may do everything, as the user "".
    admins : who may cancel every job and read its log.
    """

    by_token: Mapping[str, str] = field(default_factory=dict)
    admins: frozenset[str] = frozenset()

    @classmethod
    def read(cls, path: Path | None) -> Users:
        """Read a file of tokens.

        Raises
        ------
        FleetError
            If the file cannot be read, a line does not read so, or there is none.
        ValueError
            If others may read it, too.
        """
        found: dict[str, str] = {}
        admins: set[str] = set()
        with raised_as(FleetError):
            lines = read_text(path, check=require_private).splitlines() if path else []
        for number, line in enumerate(lines, 1):
            text = line.strip()
            if not text or text.startswith("#"):
                continue
            user, token, role, *rest = (*map(str.strip, text.split(":")), "", "")
            if not user or not _TOKEN.fullmatch(token) or role not in ("", "admin") or any(rest):
                raise FleetError(
                    f"{path}, line {number}: {_FORM}; a token is at least 8 letters, digits or ._~+/=-"
                )
            if token in found:
                raise FleetError(
                    f"{path}, line {number}: this token is {found[token]}'s; give {user} another one"
                )
            found[token] = user
            if role:
                admins.add(user)
        if path and not found:
            raise FleetError(f"{path} has no tokens: {_FORM}")
        return cls(found, frozenset(admins))

    def check_host(self, host: str) -> None:
        """Whether the daemon may listen there.

        Raises
        ------
        FleetError
            If others than this machine reach it, and it knows no users.
        """
        if not self.by_token and not is_loopback(host):
            raise FleetError(
                f"without tokens everybody who reaches {host} could run jobs: give --token-file FILE, with lines "
                "'user:token', or listen on 127.0.0.1"
            )

    def of(self, authorization: str) -> str:
        """The user of an ``Authorization`` header.

        Raises
        ------
        Refusal
            If it has no token that is known.
        """
        if not self.by_token:
            return ""
        owner = owner_of_bearer(self.by_token, authorization)
        if owner is None:
            raise Refusal(
                401, "a token is needed, as 'Authorization: Bearer TOKEN'; this one is not known here"
            )
        return owner
