"""Run the commands of the given pages and write what they print into the pages, and the examples' outputs.

    python tests/docs/refresh_pages.py README.md docs/guide-job.md

Look at the difference before committing it: a page says what a user is promised. Run it on an idle machine.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from pages import _BLOCK, folder_of_reader, run
from test_examples import EXPECTED, SCRIPTS

# What launchers print before our program runs.
_NOISE = re.compile(r"^W\d{4} .*\n", re.M)


def refreshed(text: str, folder: Path) -> str:
    """A page with the outputs of its commands, run in order; errors and `make` are left as they are."""
    with folder_of_reader(text, folder) as run_command:
        return _BLOCK.sub(lambda match: _refreshed_block(match, run_command), text)


def _refreshed_block(
    match: re.Match[str], run_command: Callable[[str], subprocess.CompletedProcess[str]]
) -> str:
    if match["mark"] == "make":
        return match[0]
    parts = []
    for part in re.split(r"^\$ ", match["body"], flags=re.M)[1:]:
        command, _, expected = part.partition("\n")
        if not expected.startswith("error:"):
            done = run_command(command)
            print(f"$ {command}: exit code {done.returncode}")
            lines = [line.rstrip() for line in _NOISE.sub("", done.stdout).rstrip().splitlines()]
            part = "\n".join([command, *lines, ""])
        parts.append(f"$ {part}")
    mark = f"<!-- {match['mark']} -->\n" if match["mark"] else ""
    return f"{mark}```console\n{''.join(parts)}```"


def main() -> None:
    """Refresh the pages that are named, and all examples if none is."""
    for name in sys.argv[1:]:
        page = Path(name)
        with tempfile.TemporaryDirectory() as folder:
            page.write_text(refreshed(page.read_text(), Path(folder)))
    if sys.argv[1:]:
        return
    for script in SCRIPTS:
        with tempfile.TemporaryDirectory() as folder:
            done = run(f"{sys.executable} {script}", Path(folder), timeout_s=600)
        print(f"{script.name}: exit code {done.returncode}")
        (EXPECTED / f"{script.stem}.txt").write_text(done.stdout)


if __name__ == "__main__":
    main()
