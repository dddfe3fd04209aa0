"""What the daemon logs: where it went wrong in a file, what went wrong on the screen."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from trainyard.fleet.daemon.journal import log_to


def test_a_traceback_is_in_the_file_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("trainyard.fleet.daemon")
    before = logger.handlers, logger.propagate
    try:
        log_to(tmp_path / "daemon.log")
        for _ in range(2):
            try:
                raise OverflowError("too large")
            except OverflowError:
                logging.getLogger("trainyard.fleet.daemon.daemon").exception("nothing can be scheduled")
    finally:
        logger.handlers, logger.propagate = before
    assert capsys.readouterr().err == 2 * "nothing can be scheduled: too large\n"
    text = (tmp_path / "daemon.log").read_text()
    assert text.count("Traceback") == 2
    assert "OverflowError: too large" in text
