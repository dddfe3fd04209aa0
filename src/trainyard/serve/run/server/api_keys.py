"""Keys of clients: each key names its client."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trainyard.hardware.interface import is_loopback
from trainyard.private import owner_of_bearer, require_private
from trainyard.reading import raised_as, read_text
from trainyard.serve.errors import ServeError
from trainyard.serve.run.server.api_error import ApiError

__all__ = ["ApiKeys"]

_FORM = "a key is NAME=KEY, with 8 or more letters, digits or ._~+/=- after the first '='"
_KEY = re.compile(r"[\w.~+/=-]{8,}", re.ASCII)


@dataclass(frozen=True, repr=False)
class ApiKeys:
    """The clients of a server.

    Attributes
    ----------
    by_key : name of each. Without any, everybody who reaches the server may ask, as the client "".
    """

    by_key: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, given: Iterable[str], path: Path | None = None) -> ApiKeys:
        """Read keys.

        Parameters
        ----------
        given : texts NAME=KEY.
        path : a file of such lines; empty ones, and such that begin with #, say nothing.

        Raises
        ------
        ServeError
            If one does not read so, or is there twice, or the file has none.
        ValueError
            If others may read the file.
        """
        found: dict[str, str] = {}
        lines = [("--api-key", text) for text in given]
        if path is not None:
            with raised_as(ServeError):
                rows = [line.strip() for line in read_text(path, check=require_private).splitlines()]
            of_file = [
                (f"{path}, line {number}", row)
                for number, row in enumerate(rows, 1)
                if row and not row.startswith("#")
            ]
            if not of_file:
                raise ServeError(f"{path} has no keys; {_FORM}")
            lines += of_file
        for where, text in lines:
            name, _, key = text.partition("=")
            if not name.strip() or not _KEY.fullmatch(key.strip()):
                raise ServeError(f"{where}: {_FORM}")
            if key.strip() in found:
                raise ServeError(
                    f"{where}: this key is {found[key.strip()]}'s; give {name.strip()} another one"
                )
            found[key.strip()] = name.strip()
        return cls(found)

    def check_host(self, host: str) -> None:
        """Whether the server may listen there.

        Raises
        ------
        ServeError
            If others than this machine reach it, and it knows no clients.
        """
        if not self.by_key and not is_loopback(host):
            raise ServeError(
                f"without keys everybody who reaches {host} could use the models: give --api-key NAME=KEY or "
                "--api-key-file FILE, or listen on 127.0.0.1"
            )

    def of(self, authorization: str) -> str:
        """The client of an ``Authorization`` header.

        Raises
        ------
        ApiError
            If it has no key that is known.
        """
        if not self.by_key:
            return ""
        owner = owner_of_bearer(self.by_key, authorization)
        if owner is None:
            raise ApiError(
                401,
                "a key is needed, as 'Authorization: Bearer KEY'; none that is known here was given",
                code="invalid_api_key",
            )
        return owner
