"""Asking a daemon over HTTP."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainyard.fleet.errors import FleetError
from trainyard.private import require_private
from trainyard.reading import raised_as, read_text

DEFAULT_SERVER = "http://127.0.0.1:8470"
_LONGEST_S = 120.0
_BUSY_S = 3600.0


class _LaterError(FleetError):
    """The daemon refuses now what it may do after so many seconds."""

    def __init__(self, message: str, retry_s: float) -> None:
        super().__init__(message)
        self.retry_s = retry_s


@dataclass(frozen=True)
class Client:
    """One daemon.

    Attributes
    ----------
    server : its address, with scheme and port.
    token : of the user; none if empty.
    """

    server: str = DEFAULT_SERVER
    token: str = ""

    def submit(self, form: Mapping[str, Any]) -> dict[str, Any]:
        """Submit a job in the own form of workloads, again for an hour while the daemon is busy; how it stands."""
        until_s = time.monotonic() + _BUSY_S
        while True:
            try:
                return self._document("POST", "/jobs", json.dumps(form).encode())
            except _LaterError as error:
                if time.monotonic() + error.retry_s > until_s:
                    raise
                time.sleep(error.retry_s)

    def jobs(self, user: str | None = None, state: str | None = None) -> list[dict[str, Any]]:
        """All jobs that are not over, and the last of the others.

        Parameters
        ----------
        user, state : only jobs of this user and in this state; several states are separated by commas.
        """
        found: list[dict[str, Any]] = self._document("GET", f"/jobs{_query(user=user, state=state)}")["jobs"]
        return found

    def events(self, last: int, user: str | None = None) -> list[dict[str, Any]]:
        """Return the last events, the newest first: all, or those of one user's jobs."""
        found: list[dict[str, Any]] = self._document("GET", f"/events{_query(last=last, user=user)}")[
            "events"
        ]
        return found

    def job(self, name: str) -> dict[str, Any]:
        """One job."""
        return self._document("GET", f"/jobs/{_quoted(name)}")

    def cancel(self, name: str) -> dict[str, Any]:
        """Cancel a job; how it stands."""
        return self._document("DELETE", f"/jobs/{_quoted(name)}")

    def log(self, name: str, num_lines: int) -> str:
        """The end of a job's log."""
        return self._ask("GET", f"/jobs/{_quoted(name)}/log?lines={num_lines}").decode()

    def cluster(self) -> dict[str, Any]:
        """Nodes, devices, and who has them."""
        return self._document("GET", "/cluster")

    def _document(self, method: str, path: str, body: bytes | None = None) -> dict[str, Any]:
        answer = self._ask(method, path, body)
        try:
            found = json.loads(answer)
        except ValueError as error:
            raise FleetError(
                f"{self.server} is no daemon of Trainyard: it does not answer in JSON"
            ) from error
        if not isinstance(found, dict):
            raise FleetError(f"{self.server} is no daemon of Trainyard: it answers {str(found)[:80]!r}")
        return found

    def _ask(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """An answer.

        Raises
        ------
        FleetError
            If there is none, or it is a refusal.
        """
        if urllib.parse.urlsplit(self.server).scheme not in ("http", "https"):
            raise FleetError(f"server {self.server!r} is no address such as {DEFAULT_SERVER}")
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        if body is not None:
            headers["Content-Type"] = "application/json"
        request = urllib.request.Request(self.server.rstrip("/") + path, body, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=_LONGEST_S) as answer:
                found: bytes = answer.read()
                return found
        except urllib.error.HTTPError as error:
            again = error.headers.get("Retry-After", "")
            if again.isdecimal():
                raise _LaterError(self._refusal(error), float(again)) from error
            raise FleetError(self._refusal(error)) from error
        except OSError as error:
            reason = getattr(error, "reason", error)
            raise FleetError(
                f"no daemon answers at {self.server} ({reason}); start one with `trainyard fleet daemon --cluster C "
                "--folder DIR`, or name another with --server"
            ) from error

    def _refusal(self, error: urllib.error.HTTPError) -> str:
        try:
            text = str(json.loads(error.read())["error"])
        except (ValueError, LookupError, TypeError):
            return f"{self.server} answers {error.code} {error.reason}; is it a daemon of Trainyard?"
        if error.code == 401:
            return f"{text}; give a file with yours by --token-file or TRAINYARD_TOKEN_FILE"
        return text


def _query(**values: object) -> str:
    """Return the query of an address, without the values that are None."""
    given = {name: value for name, value in values.items() if value is not None}
    return f"?{urllib.parse.urlencode(given)}" if given else ""


def read_token(path: Path) -> str:
    """The token of a file: its first line that says something, ``TOKEN`` or ``user:TOKEN``.

    Raises
    ------
    FleetError
        If there is none.
    ValueError
        If others may read it, too.
    """
    with raised_as(FleetError):
        lines = read_text(path, check=require_private).splitlines()
    for line in lines:
        if line.strip() and not line.strip().startswith("#"):
            user_or_token, *rest = line.split(":")
            return (rest or [user_or_token])[0].strip()
    raise FleetError(f"{path} holds no token; it has one line, TOKEN or user:TOKEN")


def _quoted(name: str) -> str:
    return urllib.parse.quote(name, safe="")
