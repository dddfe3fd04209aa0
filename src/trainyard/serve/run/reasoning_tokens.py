"""Tokens around the reasoning of an answer, and the progress of an answer through its reasoning."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["ReasoningProgress", "ReasoningTokens"]


class ReasoningTokens(NamedTuple):
    """The tokens between which an answer has its reasoning.

    Attributes
    ----------
    begin, end : tokens before and behind it.
    is_open : whether an answer begins within its reasoning; otherwise it has reasoning only if its first token is the one
        that begins it.
    """

    begin: int
    end: int
    is_open: bool


class ReasoningProgress:
    """Follows an answer through its reasoning, token by token.

    Parameters
    ----------
    tokens : around the reasoning; None of an answer without any.

    Attributes
    ----------
    is_open : whether the next token is of the reasoning.
    may_begin : whether the next token may be the one that begins the reasoning.
    """

    def __init__(self, tokens: ReasoningTokens | None) -> None:
        self._tokens = tokens
        self.is_open = tokens is not None and tokens.is_open
        self.may_begin = tokens is not None

    def take(self, token: int) -> tuple[bool, bool]:
        """Take the next token; return whether it is of the reasoning, and whether it begins or ends the reasoning."""
        if self._tokens is None:
            return False, False
        may_begin, self.may_begin = self.may_begin, False
        if self.is_open and token == self._tokens.end:
            self.is_open = False
            return True, True
        if may_begin and token == self._tokens.begin:
            self.is_open = True
            return True, True
        return self.is_open, False
