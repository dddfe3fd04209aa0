"""The tokens between which a model writes its reasoning."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["ReasoningTokens"]


class ReasoningTokens(NamedTuple):
    """Where the reasoning of an answer begins and ends.

    Attributes
    ----------
    begin, end : tokens before and behind it.
    is_open : whether an answer begins within its reasoning; otherwise it has reasoning only if its first token is the one
        that begins it.
    """

    begin: int
    end: int
    is_open: bool
