"""What is kept of compiled functions is what they are made of now."""

from __future__ import annotations

import importlib
import multiprocessing
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainyard import caches, compiling

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
        # Python takes what it compiled before for a file of the same size and second.
        done = subprocess.run(
            [sys.executable, "-B", "outermost.py"], cwd=tmp_path, capture_output=True, text=True, check=True
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


def _emptied(file: Path) -> None:
    file.write_bytes(b"")


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:100])


def _unwritable(file: Path) -> None:
    file.unlink()
    file.mkdir()


@pytest.mark.parametrize(("suffix", "damages"), [("nbi", _emptied), ("nbc", _cut), ("nbc", _unwritable)])
def test_damaged_and_unwritable_files_are_compiled_anew(
    suffix: str,
    damages: Callable[[Path], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(caches, "_told", set())
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "kept_on_disk.py").write_text(_CALLED.format(rate=1, sign="+"))

    def called() -> tuple[int, int]:
        sys.modules.pop("kept_on_disk", None)
        inner = importlib.import_module("kept_on_disk").inner
        return inner(3), sum(inner.stats.cache_hits.values())

    assert (called(), called()) == ((4, 0), (4, 1))
    (file,) = tmp_path.rglob(f"*.{suffix}")
    damages(file)
    assert called() == (4, 0)
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "goes on without remembered compiled functions" in said
    if damages is not _unwritable:
        assert called() == (4, 1)


def test_without_a_folder_to_write_in_functions_are_compiled(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(_: object) -> None:
        raise RuntimeError("cannot cache function: no locator available")

    monkeypatch.setattr(caches, "_told", set())
    monkeypatch.setattr(compiling, "_ForgivingCache", fails)
    doubled = compiling.compiled(lambda number: 2 * number)
    assert doubled(3) == 6
    assert "no locator available" in capsys.readouterr().err


def test_what_is_compiled_for_the_first_time_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "said_once.py").write_text(_CALLED.format(rate=1, sign="+"))

    def said() -> list[str]:
        sys.modules.pop("said_once", None)
        lines: list[str] = []
        with compiling.compiling_is_said(lines.append, "the simulator"):
            inner = importlib.import_module("said_once").inner
            assert (inner(3), inner(3.0)) == (4, 4.0)  # two types: compiled twice
        return lines

    (line,) = said()
    assert line.startswith("compiling the simulator for the first time")
    assert said() == []


def test_forked_processes_say_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("said_first", "said_second"):
        (tmp_path / f"{name}.py").write_text(_CALLED.format(rate=1, sign="+"))
    with compiling.compiling_is_said(lambda line: print(line, flush=True), "the simulator"):
        for name in ("said_first", "said_second"):
            process = multiprocessing.get_context("fork").Process(target=_use, args=(name,))
            process.start()
            process.join()
            assert process.exitcode == 0
    assert capfd.readouterr().out.count("compiling") == 1


def _use(name: str) -> None:
    importlib.import_module(name).inner(3)


_EITHER = """
import numpy as np
from trainyard.compiling import compiled, lean, only_compiled, records

RATE = 3

@only_compiled
def always(number):
    return number - 1

@lean
def inner(table, number):
    table[number].partition += RATE
    return table[number].partition / table[number].count

@compiled
def outer(table, *numbers):
    found, worst = np.empty(len(numbers)), 0.0
    for place, number in enumerate(numbers):
        found[place] = inner(table, number)
        worst = max(worst, found[place])
    return found, always(table.count[0]), worst

def table():
    made = records(2, np.dtype([("partition", np.int64), ("count", np.float64)]))
    made["count"] = 2.0, 0.0
    return made
"""


@pytest.fixture
def either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """Imports anew a module whose functions may run as Python."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(compiling, "_python_s", 0.0)
    (tmp_path / "either.py").write_text(_EITHER)

    def imported() -> Any:
        sys.modules.pop("either", None)
        return importlib.import_module("either")

    return imported


def _call_of(module: Any) -> str:
    """All that a call finds and changes, as text that tells types and bits."""
    table = module.table()
    found = module.outer(table, 0, 1)
    return repr((found, table.tolist(), type(table), [type(each) for each in found]))


def _num_compiled(function: Any) -> int:
    return len(function.signatures)


def test_what_is_not_on_disk_runs_as_python_and_finds_the_same(either: Callable[[], Any]) -> None:
    """Also where the compiled function divides by zero, and gives numbers of Python for those of arrays."""
    with compiling.python_first():
        as_python = _call_of(module := either())
    assert [_num_compiled(each) for each in (module.outer, module.inner, module.always)] == [0, 0, 1]
    assert _call_of(module) == as_python
    assert [_num_compiled(each) for each in (module.outer, module.inner)] == [1, 1]
    with compiling.python_first():
        assert _call_of(module := either()) == as_python
    assert sum(module.outer.stats.cache_hits.values()) == 1, "it is on disk now"


def test_work_that_gets_long_is_compiled(either: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    module = either()
    monkeypatch.setattr(compiling, "MOST_PYTHON_S", 0.05)
    with compiling.python_first():
        for _ in range(100_000):
            _call_of(module)
            if _num_compiled(module.outer):
                break
    assert compiling._python_s >= 0.05
    assert _num_compiled(module.outer) == 1


def test_nothing_runs_as_python_that_is_not_asked_to(either: Callable[[], Any]) -> None:
    _call_of(module := either())
    assert _num_compiled(module.outer) == 1


def test_what_is_on_disk_is_told(either: Callable[[], Any]) -> None:
    module = either()
    assert not compiling.is_on_disk(module.outer)
    _call_of(module)
    assert compiling.is_on_disk(module.outer)
    assert compiling.is_on_disk(either().outer), "by the next process, too"


def test_damaged_files_are_told_also_where_python_comes_first(
    either: Callable[[], Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(caches, "_told", set())
    _call_of(either())
    for file in tmp_path.rglob("*.nbi"):
        _emptied(file)
    with compiling.python_first():
        _call_of(module := either())
    assert _num_compiled(module.outer) == 1
    assert "goes on without remembered compiled functions" in capsys.readouterr().err
