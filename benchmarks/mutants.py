"""Small faults in the sources, one at a time, and which of them the tests of their room notice.

Run `make mutants`, or `python benchmarks/mutants.py`. Lines are drawn over all rooms, each line with one small fault that
changes the code that runs (`faults.py`). A first run of a room's default tests finds which test runs which line
(coverage), and how long each test takes. Then every fault meets the tests that run its line: those of files with a
similar name first, then the fastest, as many as take `--budget` seconds. Where a line runs only at import or in other
processes, the tests that run its file stand for them, else all tests of the room. A fault is noticed if a test fails. In
rooms where compiled functions do most of the work they run as Python: nothing is compiled anew for a fault, and coverage
sees their lines.

A process that spends three times the budget in CPU-seconds is ended, and the fault counts as noticed: it made a loop
endless. So are tests that wait for four times as long. Faults that are argued to change nothing stand in
`no_effect.json`, with the argument.

A line is drawn by a hash of its text, so that a change elsewhere leaves the sample. One room follows the other; Ctrl-C
records what was tried until then, and `--go-on` tries what the record and `.mutants` do not have.
"""

from __future__ import annotations

import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache, partial
from hashlib import sha256
from operator import attrgetter
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Literal, NamedTuple

from record import finish, not_here, parser

try:
    import coverage
    from faults import Fault, faults_of, with_fault
except ImportError as error:
    not_here(f"{error.name} is not installed; pip install -e '.[dev]'")

ROOT = Path(__file__).resolve().parents[1]
MAPS = ROOT / ".mutants"
RECORDS = Path(__file__).with_name("records")
ARGUED = Path(__file__).with_name("no_effect.json")
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

_AS_PYTHON = ("engine", "fleet")
_DEFAULT = "not slow and not long"
_DURATION = re.compile(r"(?P<seconds>[\d.]+)s call +(?P<test>\S.*)")

Outcome = Literal["noticed", "survived", "argued"]


@dataclass(frozen=True)
class Mutant:
    """A fault of a file.

    Attributes
    ----------
    path : of the file, from the root.
    line_text : of the line, without indentation.
    place : which line of the file with this text, from 0.
    """

    room: str
    path: str
    fault: Fault
    line_text: str
    place: int

    @property
    def name(self) -> str:
        """What identifies it while its line and the number of such lines stay as they are."""
        return f"{self.path}: {self.fault.operator}: {self.line_text} ({self.place})"


class Line(NamedTuple):
    """A line that may be drawn; sorted by its hash, lines are in random order."""

    hash: str
    room: str
    path: Path
    place: int
    faults: list[Fault]


def drawn(num: int, seed: int, rooms: Iterable[str]) -> list[Mutant]:
    """So many lines of some rooms, each with a fault that changes what is run."""
    mutants: list[Mutant] = []
    for line in sorted(_lines(seed, rooms), key=attrgetter("hash")):
        if len(mutants) == num:
            break
        source, random_ = line.path.read_text(), random.Random(line.hash)
        kind = random_.choice(sorted({each.operator for each in line.faults}))
        fault = random_.choice([each for each in line.faults if each.operator == kind])
        if with_fault(source, fault) is not None:
            text = source.splitlines()[fault.line - 1].strip()
            mutants.append(Mutant(line.room, str(line.path.relative_to(ROOT)), fault, text, line.place))
    return mutants


def _lines(seed: int, rooms: Iterable[str]) -> Iterator[Line]:
    for room in rooms:
        for path in sorted((ROOT / "src/trainyard" / room).rglob("*.py")):
            source = path.read_text()
            texts, by_line, seen = source.splitlines(), dict[int, list[Fault]](), Counter[str]()
            for fault in faults_of(source):
                by_line.setdefault(fault.line, []).append(fault)
            for number, faults in sorted(by_line.items()):
                text = texts[number - 1].strip()
                name = f"{seed} {path.relative_to(ROOT)} {text} {seen[text]}"
                yield Line(sha256(name.encode()).hexdigest(), room, path, seen[text], faults)
                seen[text] += 1


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
        self, arguments: Sequence[str], limit_s: int, is_compiled: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """Run tests, each process of them with a limit of CPU time; by the clock, four times as long for all of them."""
        environment = os.environ | {
            "PYTHONPATH": str(self.folder / "src"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "NUMBA_DISABLE_JIT": str(int(not is_compiled)),
            "OMP_NUM_THREADS": "1",
        }
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
            *new, "-m", _DEFAULT, "-n", str(num_processes), "--dist", "worksteal",
            "--durations=0", "--durations-min=0.02",
            f"--cov=src/trainyard/{room}", "--cov-context=test", "--cov-report=",
        ],
        10**6,
        room not in _AS_PYTHON,
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


def is_noticed(mutant: Mutant, tree: Tree, reach: Reach, budget_s: int) -> bool:
    """Whether a test fails with a fault."""
    file = tree.folder / mutant.path
    source = (ROOT / mutant.path).read_text()
    changed = with_fault(source, mutant.fault)
    assert changed is not None
    listing = tree.folder.parent / "tests.txt"
    tests = reach.tests(mutant.path, mutant.fault.line, budget_s)
    listing.write_text("\n".join(tests))
    file.write_text(changed)
    try:
        done = tree.pytest(["-x", "-m", _DEFAULT, f"@{listing}"], 3 * budget_s, mutant.room not in _AS_PYTHON)
        return done.returncode not in (0, 5)
    finally:
        file.write_text(source)


def outcomes(
    mutants: Sequence[Mutant], num_processes: int, budget_s: int, kept: Path, known: dict[str, bool]
) -> Iterator[tuple[Mutant, Outcome]]:
    """Try each fault, room by room, and yield whether it is noticed.

    Parameters
    ----------
    kept : file that is told what is found.
    known : whether faults are noticed, by name; these are not tried.
    """
    trees: SimpleQueue[Tree] = SimpleQueue()
    for _ in range(num_processes):
        trees.put(Tree())

    def outcome(reach: Reach, mutant: Mutant) -> tuple[Mutant, Outcome]:
        if mutant.name not in known:
            tree = trees.get()
            try:
                known[mutant.name] = is_noticed(mutant, tree, reach, budget_s)
            finally:
                trees.put(tree)
            with kept.open("a") as file:
                file.write(json.dumps([mutant.name, known[mutant.name]]) + "\n")
        if known[mutant.name]:
            return mutant, "noticed"
        return mutant, "argued" if mutant.name in _argued() else "survived"

    with ThreadPoolExecutor(num_processes) as pool:
        for room in sorted({each.room for each in mutants}):
            own = [each for each in mutants if each.room == room]
            if any(each.name not in known for each in own):
                tree = trees.get()
                reach = Reach(map_room(room, tree, num_processes))
                trees.put(tree)
                yield from pool.map(partial(outcome, reach), own)
            else:
                yield from ((each, "noticed" if known[each.name] else "survived") for each in own)


@cache
def _argued() -> dict[str, str]:
    found: dict[str, str] = json.loads(ARGUED.read_text()) if ARGUED.exists() else {}
    return found


def _known(kept: Path) -> dict[str, bool]:
    """Read which faults the newest record says were noticed, and what an interrupted run found, by name."""
    known: dict[str, bool] = {}
    for record in RECORDS.glob("*Z-mutants.json"):
        known |= dict.fromkeys(json.loads(record.read_text())["results"]["noticed"], True)
    return known | (dict(map(json.loads, kept.read_text().splitlines())) if kept.exists() else {})


def summary(found: Sequence[tuple[Mutant, Outcome]]) -> dict[str, Any]:
    """Scores by room, and the survivors."""
    rooms: dict[str, Counter[str]] = {}
    for mutant, outcome in found:
        rooms.setdefault(mutant.room, Counter())[outcome] += 1
    rooms["all"] = sum(rooms.values(), Counter())
    by_outcome: dict[Outcome, list[Mutant]] = {"noticed": [], "survived": [], "argued": []}
    for mutant, outcome in found:
        by_outcome[outcome].append(mutant)
    return {
        "rooms": {
            room: dict(counts)
            | {"share_noticed": counts["noticed"] / max(1, counts["noticed"] + counts["survived"])}
            for room, counts in rooms.items()
        },
        "noticed": [each.name for each in by_outcome["noticed"]],
        "survivors": [_described(each) for each in by_outcome["survived"]],
        "argued": [_described(each) | {"argument": _argued()[each.name]} for each in by_outcome["argued"]],
    }


def _described(mutant: Mutant) -> dict[str, Any]:
    return asdict(mutant) | {"fault": mutant.fault._asdict(), "name": mutant.name}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--num", type=int, default=150, help="lines that are drawn")
    options.add_argument("--seed", type=int, default=52)
    options.add_argument("--rooms", default=",".join(TESTS), help="names, separated by commas")
    options.add_argument("--processes", type=int, default=2)
    options.add_argument(
        "--budget", type=int, default=100, help="seconds of tests that a fault meets at most"
    )
    options.add_argument("--map-again", action="store_true", help="see anew which tests run which lines")
    options.add_argument(
        "--go-on",
        action="store_true",
        help="keep what the record says was noticed, and what an interrupted run found",
    )
    given = options.parse_args()
    rooms, num = (["reading"], 2) if given.smallest else (given.rooms.split(","), given.num)
    if given.map_again and MAPS.exists():
        shutil.rmtree(MAPS)
    kept = MAPS / ("smallest.jsonl" if given.smallest else "outcomes.jsonl")
    if not given.go_on:
        kept.unlink(missing_ok=True)
    MAPS.mkdir(exist_ok=True)
    mutants = drawn(num, given.seed, rooms)
    found: list[tuple[Mutant, Outcome]] = []
    with suppress(KeyboardInterrupt):
        known = _known(kept) if given.go_on else {}
        for mutant, outcome in outcomes(mutants, given.processes, given.budget, kept, known):
            found.append((mutant, outcome))
            place = f"{mutant.path}:{mutant.fault.line}"
            print(
                f"{len(found)} of {num}: {outcome}: {place}: {mutant.fault.operator}: {mutant.line_text}",
                flush=True,
            )
    results = summary(found)
    for room, counts in results["rooms"].items():
        noticed, survived = counts.get("noticed", 0), counts.get("survived", 0)
        print(f"{room:10} {noticed} of {noticed + survived} noticed: {counts['share_noticed']:.0%}")
    finish(
        "mutants",
        results | {"num": num, "num_tried": len(found), "seed": given.seed},
        given.smallest or len(rooms) < len(TESTS),
    )


if __name__ == "__main__":
    main()
