"""Where the daemon writes what goes wrong: a line on the screen, and where it happened in a file."""

from __future__ import annotations

import logging
from logging.handlers import RotatingFileHandler
from pathlib import Path

__all__ = ["log_to"]

_MOST_BYTES = 16 * 2**20


class _OneLine(logging.Formatter):
    def formatException(self, ei: object) -> str:  # noqa: N802  (logging calls it so)
        """Nothing of where an error came from."""
        return ""

    def format(self, record: logging.LogRecord) -> str:
        record.exc_text = None
        text = super().format(record).rstrip()
        record.exc_text = None  # what one handler leaves out the other is to write
        error = record.exc_info[1] if record.exc_info else None
        return text if error is None else f"{text}: {error}"


def log_to(file: Path) -> None:
    """Keep two files of bounded size of what the daemon logs."""
    whole = RotatingFileHandler(file, maxBytes=_MOST_BYTES, backupCount=1, delay=True)
    whole.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    brief = logging.StreamHandler()
    brief.setFormatter(_OneLine("%(message)s"))
    logging.raiseExceptions = False  # a full disk is said by the daemon itself
    logger = logging.getLogger("trainyard.fleet.daemon")
    logger.handlers, logger.propagate = [whole, brief], False
