"""A headless Chromium that stays open, asked through the pipe that it has for that."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_PATIENCE_S = 120.0


@dataclass
class Page:
    """A page that is open.

    Attributes
    ----------
    to, of : the ends of the pipes; messages are JSON, each ended by a NUL.
    """

    to: IO[bytes]
    of: IO[bytes]
    session: str = ""
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """The answer of the browser."""
        message = {"id": next(self.numbers), "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        self.to.write(json.dumps(message).encode() + b"\0")
        self.to.flush()
        while True:  # events come in between
            answer = json.loads(b"".join(iter(lambda: self.of.read(1), b"\0")))
            if answer.get("id") == message["id"]:
                assert "error" not in answer, answer
                found: dict[str, Any] = answer["result"]
                return found

    def value(self, expression: str) -> Any:
        """What an expression is in the page."""
        found = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def text(self, name: str) -> str:
        """What an element shows."""
        return str(self.value(f"document.getElementById('{name}').innerText"))

    def is_shown(self, name: str) -> bool:
        """Whether an element can be seen."""
        return bool(self.value(f"document.getElementById('{name}').checkVisibility()"))

    def wait(self, name: str, *shown: str) -> str:
        """Wait until an element shows some text, all of it; nothing is done to the page meanwhile."""
        limit_s = time.monotonic() + _PATIENCE_S
        while not all(part in (text := self.text(name)) for part in shown):
            assert time.monotonic() < limit_s, f"waited for {shown} in {name}: {text}"
            time.sleep(0.1)
        return text

    def until(self, expression: str) -> None:
        """Wait until an expression is true in the page."""
        limit_s = time.monotonic() + _PATIENCE_S
        while not self.value(expression):
            assert time.monotonic() < limit_s, f"waited for {expression}"
            time.sleep(0.05)


@contextmanager
def opened(url: str, folder: Path) -> Iterator[Page]:
    """A page in a browser of its own."""
    (stdin, to), (of, stdout) = os.pipe(), os.pipe()
    # The browser reads from the descriptor 3 and writes to 4; until then these must be others.
    their_in, their_out = (fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (stdin, stdout))
    os.close(stdin)
    os.close(stdout)
    flags = "--headless --no-sandbox --disable-gpu --remote-debugging-pipe about:blank"
    command = f"exec {CHROMIUM} {flags} '--user-data-dir={folder}' 3<&{their_in} 4>&{their_out}"
    with (folder / "browser.log").open("w") as log:
        process = subprocess.Popen(
            ["/bin/bash", "-c", command], pass_fds=(their_in, their_out), stdout=log, stderr=log
        )
    os.close(their_in)
    os.close(their_out)
    try:
        with os.fdopen(to, "wb") as sends, os.fdopen(of, "rb") as hears:
            page = Page(sends, hears)
            target = page.ask("Target.createTarget", url=url)["targetId"]
            page.session = page.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            # Asked at once: the empty page before it is complete, too.
            while not page.value("location.href != 'about:blank' && document.readyState == 'complete'"):
                time.sleep(0.05)
            yield page
    finally:
        process.kill()
        process.wait()
