"""How errors are told."""

from __future__ import annotations

__all__ = ["one_line"]

_LONGEST = 500


def one_line(error: BaseException) -> str:
    """An error as a reason, in one line of bounded length."""
    kind, text = type(error), " ".join(str(error).split())
    if not kind.__module__.startswith("trainyard."):  # whose errors are sentences
        text = f"{kind.__name__}: {text}" if text else kind.__name__
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."
