"""Ctrl-C and SIGTERM end a command with one line, wherever it is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainyard.cli.signals import Terminated, raising_signals

_LONG_S = 600.0

# Files that print a line when their function runs, or when they are read, and then wait.
_FILES = {
    "call.py": "import sys, time\ndef model():\n    print('here', file=sys.stderr, flush=True)\n    time.sleep(600)\n",
    "top.py": "import sys, time\nprint('here', file=sys.stderr, flush=True)\ntime.sleep(600)\n",
}


@pytest.fixture(autouse=True)
def _usual_handlers() -> Any:
    """Handlers of a program that has just begun, also where the tests run in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("verb", "file", "number", "code", "line"),
    [
        (("train",), "call.py", signal.SIGTERM, 143, "terminated\n"),
        (("plan", "--cluster", "1x1xT4"), "top.py", signal.SIGINT, 130, "interrupted\n"),
    ],
)
def test_a_command_ends_with_one_line(
    verb: tuple[str, ...], file: str, number: signal.Signals, code: int, line: str, tmp_path: Path
) -> None:
    (tmp_path / file).write_text(_FILES[file])
    (tmp_path / "tmp").mkdir()
    command = [sys.executable, "-m", "trainyard", verb[0], file, *verb[1:]]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "here\n"
        process.send_signal(number)
        assert process.stderr.read() == line
    assert process.returncode == code
    assert not list((tmp_path / "tmp").glob("trainyard-*"))


def _signalled(number: int) -> None:
    os.kill(os.getpid(), number)


def _run_command(begin: Callable[[], object]) -> None:
    with raising_signals():
        begin()
        time.sleep(_LONG_S)


@pytest.mark.parametrize("name", ["_find_and_load", "__torch_function__"])
def test_a_signal_waits_for_the_end_of_an_import_or_an_op(name: str) -> None:
    done: list[str] = []

    def unsafe() -> None:
        _signalled(signal.SIGTERM)
        done.append("unsafe")

    unsafe_by_name: dict[str, Any] = {"unsafe": unsafe}
    exec(f"def {name}():\n    unsafe()\n", unsafe_by_name)
    with pytest.raises(Terminated, match=r"^$"):
        _run_command(unsafe_by_name[name])
    assert done == ["unsafe"]


def test_a_second_signal_does_not_wait() -> None:
    def _find_and_load() -> None:
        _signalled(signal.SIGTERM)
        _signalled(signal.SIGINT)
        time.sleep(_LONG_S)

    with pytest.raises(KeyboardInterrupt, match=r"^$") as raised, raising_signals():
        _find_and_load()
    assert not isinstance(raised.value, Terminated)


class _Signals:
    def __del__(self) -> None:
        _signalled(signal.SIGTERM)


def test_a_signal_that_a_destructor_loses_is_sent_again() -> None:
    with pytest.raises(Terminated, match=r"^$"):
        _run_command(_Signals)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


class _Broken:
    def __del__(self) -> None:
        raise ValueError


def test_another_exception_of_a_destructor_is_printed_as_without_a_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    printed: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda lost: printed.append(lost.exc_type))
    with raising_signals():
        _Broken()
    assert printed == [ValueError]


def test_a_signal_that_waits_is_forgotten_at_the_end() -> None:
    def _find_and_load() -> None:
        _signalled(signal.SIGTERM)

    seen: list[int] = []
    with raising_signals():
        _find_and_load()
    before = signal.signal(signal.SIGTERM, lambda number, _: seen.append(number))
    time.sleep(0.05)  # longer than it would have waited
    signal.signal(signal.SIGTERM, before)
    assert (seen, before) == ([], signal.SIG_DFL)


def test_a_handler_of_the_callers_own_stays() -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: seen.append(number))
    try:
        with raising_signals():
            _signalled(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen == [signal.SIGTERM]
