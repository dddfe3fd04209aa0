"""What is kept of compiled functions is what they are made of now."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_CALLED = """
from trainyard.compiling import compiled

RATE = {rate}

@compiled
def inner(number):
    return number {sign} 1
"""
_CALLING = """
from called import RATE, inner
from trainyard.compiling import compiled

@compiled
def outer(number):
    return RATE * inner(number)
"""
_OUTERMOST = """
from calling import outer
from trainyard.compiling import compiled

@compiled
def outermost(number):
    return outer(number)

print(outermost(10), sum(outermost.stats.cache_hits.values()))
"""


def test_a_change_in_another_file_is_noticed(tmp_path: Path) -> None:
    """Also two files away; and where nothing changes, what is on disk is used."""
    (tmp_path / "calling.py").write_text(_CALLING)
    (tmp_path / "outermost.py").write_text(_OUTERMOST)

    def run(rate: int, sign: str) -> tuple[int, int]:
        (tmp_path / "called.py").write_text(_CALLED.format(rate=rate, sign=sign))
        done = subprocess.run(
            [sys.executable, "outermost.py"], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        value, num_found = done.stdout.split()
        return int(value), int(num_found)

    assert run(2, "+") == (22, 0)
    assert run(2, "+") == (22, 1)
    assert run(3, "+") == (33, 0)
    assert run(3, "-") == (27, 0)
    assert run(3, "-") == (27, 1)


_TEMPLATE = """
from trainyard.compiling import compiled

@compiled
def twice(number):
    return 2 * number

def times(factor):
    @compiled
    def function(number):
        return factor * number
    return function

@compiled
def apply(function, number):
    return function(number) + 1

values = [apply(function, 10) for function in (twice, times(3), times(4))]
print(*values, sum(apply.stats.cache_hits.values()))
"""


def test_a_function_that_is_given_to_another_is_found_on_disk_again(tmp_path: Path) -> None:
    """Unless it closes over a value, so that it cannot be told from others of one definition."""
    (tmp_path / "template.py").write_text(_TEMPLATE)
    for num_found in (0, 1):
        done = subprocess.run(
            [sys.executable, "template.py"], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        assert done.stdout.split() == ["21", "31", "41", str(num_found)]
