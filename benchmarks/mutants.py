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
import random
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    from faults import Fault, faults_of, with_fault
    from room_tests import AS_PYTHON, DEFAULT, MAPS, ROOT, TESTS, Reach, Tree, map_room
except ImportError as error:
    not_here(f"{error.name} is not installed; pip install -e '.[dev]'")

RECORDS = Path(__file__).with_name("records")
ARGUED = Path(__file__).with_name("no_effect.json")
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
        is_compiled, has_compiled = (
            mutant.room not in AS_PYTHON,
            "\nfrom trainyard.compiling import" in source,
        )
        tests = ["-x", "-m", DEFAULT, f"@{listing}"]
        done = tree.pytest(tests, 3 * budget_s, is_compiled, compiles_anew=is_compiled and has_compiled)
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
        return _judged(mutant, known)

    with ThreadPoolExecutor(num_processes) as pool:
        for room in sorted({each.room for each in mutants}):
            own = [each for each in mutants if each.room == room]
            if any(each.name not in known for each in own):
                tree = trees.get()
                reach = Reach(map_room(room, tree, num_processes))
                trees.put(tree)
                yield from pool.map(partial(outcome, reach), own)
            else:
                yield from (_judged(each, known) for each in own)


def _judged(mutant: Mutant, known: Mapping[str, bool]) -> tuple[Mutant, Outcome]:
    if known[mutant.name]:
        return mutant, "noticed"
    return mutant, "argued" if mutant.name in _argued() else "survived"


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
