"""Seconds until the command line answers, and until the package is imported: the fastest of several starts."""

from __future__ import annotations

import subprocess
import sys
import time

from record import TRAINYARD, finish, parser

_REPEATS = 7
COMMANDS = {
    "help_s": [TRAINYARD, "--help"],
    "help_of_train_s": [TRAINYARD, "train", "--help"],
    "describe_cluster_s": [TRAINYARD, "hardware", "4x8xA100-80G"],
    "import_s": [sys.executable, "-c", "import trainyard"],
    "bare_python_s": [sys.executable, "-c", "pass"],
}


def seconds(command: list[str], repeats: int) -> float:
    """Fastest of several starts, in wall seconds."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - began)
    return min(times)


def main() -> None:
    """Measure, print and record."""
    smallest = parser(__doc__).parse_args().smallest
    results = {name: seconds(command, 1 if smallest else _REPEATS) for name, command in COMMANDS.items()}
    for name, value in results.items():
        print(f"{name}: {value:.3f}")
    finish("command-line", results, smallest)


if __name__ == "__main__":
    main()
