"""Options that the verbs share that ask a daemon."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from trainyard.cli.screen import Common

if TYPE_CHECKING:
    from trainyard.fleet.daemon.client import Client

__all__ = ["ServerOptions"]

_TOKEN_FILE = "TRAINYARD_TOKEN_FILE"


@dataclass(frozen=True, kw_only=True)
class ServerOptions(Common):
    """The daemon that is asked, and the user who asks."""

    heading = "daemon"
    server: Annotated[str, tyro.conf.arg(metavar="URL")] = "http://127.0.0.1:8470"
    """Address of the daemon."""
    token_file: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """File with your token; by default the one that TRAINYARD_TOKEN_FILE names, if there is one."""

    def client(self) -> Client:
        """The daemon, to be asked."""
        from trainyard.fleet.daemon.client import Client, read_token

        named = os.environ.get(_TOKEN_FILE)
        path = self.token_file or (Path(named) if named else None)
        return Client(self.server, "" if path is None else read_token(path))
