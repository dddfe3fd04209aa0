"""Pages in a real browser, without a window."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

_FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--virtual-time-budget=20000",
    "--dump-dom",
]


def rendered(page: str, folder: Path) -> str:
    """The document as a browser has made it once the scripts have run."""
    browser = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if not browser:
        pytest.skip("needs Chromium: none is on the PATH, and CHROMIUM is not set")
    path = folder / "page.html"
    path.write_text(page, encoding="utf-8")
    command = [browser, *_FLAGS, f"--user-data-dir={folder / 'profile'}", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    return done.stdout


def errors_shown(document: str) -> str:
    found = re.search(r'<div id="errors">(.*?)</div>', document, re.DOTALL)
    assert found is not None
    return found[1]
