"""Pages of the documentation as tests see them: their console blocks, and comparison of outputs with numbers masked."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from loaded import is_plain, run_loaded

ROOT = Path(__file__).resolve().parents[2]
PAGES = tuple(
    sorted(
        path
        for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))
        if "systems" not in path.parts and "reference" not in path.parts and path.name != "plan-sketch.md"
    )
)
MARKS = ("slow", "local", "make")
# What a run prints on every machine; which plan it finds, and so most of the rest, depends on the machine.
LOCAL = ("loss ", "step time ", "peak memory of a process ", "sent by a process in a step ")
# What a run says of a job on every machine: at the end of a line, and in a cell of a table.
FATES = (" ends", " is submitted")
FINAL = ("ended", "cancelled", "failed", "refused")

_BLOCK = re.compile(r"(?:^<!-- (?P<mark>\S+) -->\n)?^```console\n(?P<body>.*?)^```$", re.M | re.S)
_SHELL = re.compile(r"(?:^<!-- (?P<mark>[^\n]+) -->\n)?^```bash\n(?P<body>.*?)^```$", re.M | re.S)
_FILE = re.compile(r"^<!-- file: (?P<name>\S+) -->\n```\w+\n(?P<body>.*?)^```$", re.M | re.S)
_PYTHON = re.compile(r"^```python\n(?P<body>.*?)^```$", re.M | re.S)
_NUMBER = r"\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?"
_MEASURES = re.compile(
    r"\btrainyard (?:(?:fleet |serve )?(?:train|run|bench)|hardware local)\b|\blocal:|xlocal\b|\bpython\b"
)
_UNIT = r"(?:µs|ms|s|min|[KMGT]iB|B|[GTP]?flop/s|[KMGT]?B/s)\b"


@dataclass(frozen=True)
class Block:
    """One fenced block: commands and what each prints.

    Attributes
    ----------
    mark : the HTML comment above it: ``slow`` runs with the slow tests, and its numbers are compared
        all the same, unless its command measures; ``local`` with the long ones and its output
        depends on the machine (of it is compared what `same_anywhere` says), ``make`` is only checked with ``make -n``.
    commands : pairs of command and expected output.
    """

    mark: str
    commands: tuple[tuple[str, str], ...]


def blocks_of(text: str) -> tuple[Block, ...]:
    """The console blocks of a page."""
    found = []
    for match in _BLOCK.finditer(text):
        parts = re.split(r"^\$ ", match["body"], flags=re.M)
        assert not parts[0].strip(), f"a console block starts with `$ command`, not with {parts[0]!r}"
        commands = tuple((c.partition("\n")[0], c.partition("\n")[2]) for c in parts[1:])
        mark = match["mark"] or ""
        assert mark in ("", *MARKS), f"unknown mark {mark!r}; the known ones are {', '.join(MARKS)}"
        found.append(Block(mark, commands))
    return tuple(found)


def shell_blocks_of(text: str) -> tuple[tuple[str, str], ...]:
    """Pairs of the comment above a block of commands without outputs, and the commands."""
    return tuple((match["mark"] or "", match["body"]) for match in _SHELL.finditer(text))


def files_of(text: str) -> dict[str, str]:
    """Files that the page tells its reader to write, by name."""
    return {match["name"]: match["body"] for match in _FILE.finditer(text)}


def scripts_of(text: str) -> tuple[str, ...]:
    """The blocks of Python that are no dialogue and no named file: scripts, shown whole."""
    text = _FILE.sub("", text)
    return tuple(match["body"] for match in _PYTHON.finditer(text) if ">>>" not in match["body"])


def masked(text: str) -> str:
    """Text without what differs from run to run: numbers and their units, runs of spaces and of lines."""
    text = re.sub(rf"{_NUMBER} {_UNIT}", "<quantity>", text)
    return squeezed(re.sub(rf"[+-]?{_NUMBER}", "#", text))


def squeezed(text: str) -> str:
    """Text without runs of spaces and of lines, and without trailing ones."""
    lines = [re.sub(r"[ ─━]+", " ", line).strip() for line in text.splitlines()]
    return "\n".join(line for line in lines if line)


def measures(command: str) -> bool:
    """Whether a command runs or measures work on this machine, so that numbers in its output depend on it."""
    return _MEASURES.search(command) is not None


def matches(expected: str, given: str, numbers: bool = False) -> bool:
    """Whether an output is as expected; a line ``...`` stands for any lines, ``...`` in a line for any text.

    Parameters
    ----------
    numbers : whether numbers have to be equal, too.
    """
    form = squeezed if numbers else masked
    pieces = [re.escape(piece) for piece in form(expected).split("...")]
    return re.fullmatch(".*".join(pieces), form(given), re.S) is not None


def only_local(text: str) -> str:
    """The lines that a run prints on every machine."""
    return "\n".join(line for line in text.splitlines() if line.strip().startswith(LOCAL))


def told(text: str) -> Counter[str]:
    """Heads of tables, names of their rows, and what became of jobs: in no order, which is chance."""
    found: Counter[str] = Counter()
    for paragraph in re.split(r"\n\s*\n", text):
        lines = paragraph.strip("\n").splitlines()
        rule = next((i for i, line in enumerate(lines) if set(line.strip()) == {"─"}), len(lines))
        found.update(masked(line) for line in lines if line.endswith(FATES))
        if rule < len(lines):
            found[" ".join(sorted(masked("\n".join(lines[:rule])).split()))] += (
                1  # narrow columns break anywhere
            )
        for row in lines[rule + 1 :]:
            name, *cells = re.split(r" {2,}", row[1:].rstrip())
            if name:  # else the row above goes on
                found[" ".join([name, *(cell for cell in cells if cell in FINAL)])] += 1
    return found


def same_anywhere(expected: str, given: str) -> bool:
    """Whether an output has what is alike on every machine; where the page leaves lines out, it may have more tables."""
    promised, found = told(expected), told(given)
    complete = "..." in expected.splitlines() or found <= promised
    return matches(only_local(expected), only_local(given)) and promised <= found and complete


@contextmanager
def folder_of_reader(text: str, folder: Path) -> Iterator[Callable[[str], subprocess.CompletedProcess[str]]]:
    """Give a folder the examples and the files of a page, and run the page's commands there.

    A command that ends with `&` runs until the page ends; nothing that it prints is returned.
    """
    (folder / "examples").symlink_to(ROOT / "examples")
    for name, body in files_of(text).items():
        (folder / name).write_text(body)
    with ExitStack() as background:

        def run_command(command: str) -> subprocess.CompletedProcess[str]:
            if is_plain(command) and not measures(command):
                return _as_on_pages(run_loaded(command, folder, _environment()))
            if not command.endswith(" &"):
                return run(command, folder, timeout_s=500)
            background.enter_context(_running(command.removesuffix(" &"), folder))
            return subprocess.CompletedProcess(command, 0, stdout="")

        yield run_command


@contextmanager
def _running(command: str, folder: Path) -> Iterator[None]:
    """Run a program in the background, and end it with the block."""
    process = subprocess.Popen(
        f"exec {command}",
        shell=True,
        executable="/bin/bash",
        cwd=folder,
        env=_environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait(timeout=100)


def _environment() -> dict[str, str]:
    """The environment of a reader who has the `trainyard` of this Python on the PATH."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "COLUMNS": "110", "TRAINYARD_PROGRESS": "off"}


def run(command: str, folder: Path, timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run a shell command as a reader would, with the `trainyard` of this Python."""
    done = subprocess.run(
        command,
        shell=True,
        executable="/bin/bash",
        cwd=folder,
        env=_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
    )
    return _as_on_pages(done)


def _as_on_pages(done: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    """What a command printed, without what is said once, where nothing is compiled yet: it is on no page."""
    lines = (line for line in done.stdout.splitlines(keepends=True) if not line.startswith("compiling the "))
    done.stdout = "".join(lines)
    return done
