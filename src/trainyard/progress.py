"""Progress of long work: the stage that runs, and how far it is."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Progress", "no_progress", "progress_text"]

Progress = Callable[[str, str], None]
"""Function that takes the stage that runs, such as ``measuring ops``, and its part, such as ``12 of 80`` or empty."""


def no_progress(stage: str, part: str) -> None:
    """Take a stage and its part, and show nothing: the default."""


def progress_text(stage: str, part: str) -> str:
    """Return a stage and its part in one line."""
    return f"{stage}: {part}" if part else stage
