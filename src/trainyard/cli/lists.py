"""Lists on the command line."""

from __future__ import annotations

import re

__all__ = ["between_commas"]


def between_commas(text: str) -> list[str]:
    """Parts of a list; commas inside parentheses belong to the options of a part."""
    parts = re.split(r",(?![^()]*\))", text)
    return [part.strip() for part in parts if part.strip()]
