"""Tests of a room that run a line of it, found with coverage by test, and run in a copy of the files."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from hashlib import sha256
from pathlib import Path

import coverage

ROOT = Path(__file__).resolve().parents[1]
MAPS = ROOT / ".mutants"
TESTS = {
    "cli": ("tests/cli", "tests/report"),
    "cost": ("tests/cost",),
    "engine": ("tests/engine",),
    "fleet": ("tests/fleet", "tests/conformance"),
    "hardware": ("tests/hardware",),
    "job": ("tests/job", "tests/conformance"),
    "processes": ("tests/processes",),
    "program": ("tests/program", "tests/job/lower"),
    "reading": ("tests/reading",),
    "report": ("tests/report",),
    "serve": ("tests/serve", "tests/conformance"),
    "zoo": ("tests/zoo",),
}
"""Rooms, folders of src/trainyard, and the folders of their tests."""

AS_PYTHON = ("engine", "fleet")
DEFAULT = "not slow and not long"
_DURATION = re.compile(r"(?P<seconds>[\d.]+)s call +(?P<test>\S.*)")


class Tree:
    """A copy of the files that git knows, in which tests run."""

    def __init__(self) -> None:
        self._kept = tempfile.TemporaryDirectory(prefix="mutants-")
        self.folder = Path(self._kept.name) / "tree"
        names = subprocess.run(
            ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard"],
            capture_output=True, text=True, check=True,
        ).stdout.splitlines()  # fmt: skip
        for name in names:
            if (ROOT / name).is_file():
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.folder / name)
        shared = ROOT.parent / "shared"
        if shared.exists():
            (self.folder.parent / "shared").symlink_to(shared.resolve())

    def pytest(
        self, arguments: Sequence[str], limit_s: int, is_compiled: bool = False, compiles_anew: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """Run tests, each process of them with a limit of CPU time; by the clock, four times as long for all of them.

        Parameters
        ----------
        compiles_anew : whether functions are compiled that an earlier run has compiled already: what was compiled calls
            the functions of other files as they were then.
        """
        environment = os.environ | {
            "PYTHONPATH": str(self.folder / "src"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "NUMBA_DISABLE_JIT": str(int(not is_compiled)),
            "OMP_NUM_THREADS": "1",
        }
        cache = tempfile.TemporaryDirectory(prefix="compiled-") if compiles_anew else None
        environment |= {} if cache is None else {"NUMBA_CACHE_DIR": cache.name}
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            *arguments,
        ]
        with subprocess.Popen(
            command,
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C ends the measure; ended tests look like a fault noticed
            preexec_fn=partial(resource.setrlimit, resource.RLIMIT_CPU, (limit_s, limit_s + 5)),
        ) as process:
            try:
                said = process.communicate(timeout=4 * limit_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                said = process.communicate()
        if cache is not None:
            cache.cleanup()
        return subprocess.CompletedProcess(command, process.returncode, *said)


def map_room(room: str, tree: Tree, num_processes: int) -> list[Path]:
    """Find which tests of a room run which lines of it; tests are run in files that an earlier run did not know so.

    Returns
    -------
    list of Path
        Files of coverage, the newest first; tests of a file are in the first that knows its present text.
    """
    files = {
        str(path.relative_to(tree.folder)): sha256(path.read_bytes()).hexdigest()
        for folder in TESTS[room]
        for path in sorted((tree.folder / folder).rglob("test_*.py"))
    }
    maps = sorted(MAPS.glob(f"{room}.*.coverage"), reverse=True)
    known = dict[str, str]()
    for each in reversed(maps):
        known |= json.loads(each.with_suffix(".json").read_text())["files"]
    new = [name for name, text_hash in files.items() if known.get(name) != text_hash]
    if not new:
        return maps
    print(f"{room}: running {len(new)} files of tests, to see which lines each of them runs", flush=True)
    done = tree.pytest(
        [
            *new, "-m", DEFAULT, "-n", str(num_processes), "--dist", "worksteal",
            "--durations=0", "--durations-min=0.02",
            f"--cov=src/trainyard/{room}", "--cov-context=test", "--cov-report=",
        ],
        10**5,
        room not in AS_PYTHON,
    )  # fmt: skip
    made = tree.folder / ".coverage"
    if not made.exists():
        raise SystemExit(f"{room}: its tests did not run\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    kept = MAPS / f"{room}.{len(maps):03}.coverage"
    shutil.move(made, kept)
    lines = done.stdout.splitlines()
    failing = [
        line.split(" ", 1)[1].partition(" - ")[0] for line in lines if line.startswith(("FAILED ", "ERROR "))
    ]
    seconds = {found["test"]: float(found["seconds"]) for found in map(_DURATION.fullmatch, lines) if found}
    print(f"{room}: {len(seconds)} tests take {sum(seconds.values()):.0f} s; {len(failing)} fail", flush=True)
    noted = {"files": {name: files[name] for name in new}, "failing": failing, "seconds": seconds}
    kept.with_suffix(".json").write_text(json.dumps(noted))
    return [kept, *maps]


class Reach:
    """Tests that run a line, and tests that run a file.

    A test that failed without a fault is left out.

    Parameters
    ----------
    maps : of `map_room`.
    """

    def __init__(self, maps: Sequence[Path]) -> None:
        self._seconds = dict[str, float]()
        self._contexts = dict[str, dict[int, set[str]]]()
        self._all = set[str]()
        newer = set[str]()
        for each in maps:
            data = coverage.CoverageData(str(each))
            data.read()
            noted = json.loads(each.with_suffix(".json").read_text())
            left_out = newer | set(noted["failing"])

            def names(contexts: Iterable[str], left_out: AbstractSet[str] = left_out) -> set[str]:
                found = {context.partition("|")[0] for context in contexts} - {""}
                return {name for name in found if left_out.isdisjoint((name, name.partition("::")[0]))}

            for file in data.measured_files():
                lines = self._contexts.setdefault(file.rpartition("/src/trainyard/")[2], {})
                for line, contexts in data.contexts_by_lineno(file).items():
                    lines.setdefault(line, set()).update(names(contexts))
            self._all |= names(data.measured_contexts())
            self._seconds = noted["seconds"] | self._seconds
            newer |= set(noted["files"])

    def tests(self, path: str, line: int, budget_s: float) -> list[str]:
        """Tests for a line, those that notice a fault most probably first, as many as take a budget of seconds."""
        lines = self._contexts.get(path.removeprefix("src/trainyard/"), {})
        names = lines.get(line) or set().union(*lines.values()) or self._all
        words = set(Path(path).stem.split("_")) | set(Path(path).parent.name.split("_"))

        def likely(name: str) -> tuple[int, float, str]:
            alike = len(words & set(Path(name.partition("::")[0]).stem.split("_")))
            return -alike, self._seconds.get(name, 0.0), name

        found: list[str] = []
        sum_s = 0.0
        for name in sorted(names, key=likely):
            sum_s += self._seconds.get(name, 0.01)
            if sum_s > budget_s and found:
                break
            found.append(name)
        return found
