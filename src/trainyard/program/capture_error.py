"""Capture error: a model cannot be written as one graph."""

from __future__ import annotations

from trainyard.errors import TrainyardError

__all__ = ["CaptureError"]


class CaptureError(TrainyardError, ValueError):
    """The model cannot be written as one graph; the message names the line and what to do."""
