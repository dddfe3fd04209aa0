"""One answer of a model: its tokens become text, and the text may end it."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Literal

from trainyard.serve.run.model_text import Detokenizer, ModelText
from trainyard.serve.run.outputs import NewToken
from trainyard.serve.run.sampling import TokenLogprobs
from trainyard.serve.run.server.stop_strings import StopStrings

__all__ = ["Answer", "Piece", "ToldToken"]


@dataclass(frozen=True, slots=True)
class ToldToken:
    """A token with its log-probabilities.

    Attributes
    ----------
    token : its id.
    logprobs : of it and the likeliest ones.
    offset : characters of the answer before it.
    """

    token: int
    logprobs: TokenLogprobs
    offset: int


@dataclass(frozen=True, slots=True)
class Piece:
    """The next part of an answer.

    Attributes
    ----------
    choice : number of the answer among all of the request.
    text : may be empty.
    tokens : where log-probabilities were asked for.
    finish_reason : "" if more follows.
    """

    choice: int
    text: str
    tokens: tuple[ToldToken, ...] = ()
    finish_reason: Literal["", "stop", "length"] = ""


class Answer:
    """Makes pieces of tokens.

    Parameters
    ----------
    choice : its number.
    stops : texts that end it and are not part of it.
    stop_token_ids : tokens that end it and are not part of it.
    """

    def __init__(self, choice: int, text: ModelText, stops: Sequence[str], stop_token_ids: Set[int]) -> None:
        self._choice, self._stop_token_ids = choice, stop_token_ids
        self._detokenizer, self._stops = Detokenizer(text), StopStrings(stops)
        self._num_chars = 0
        self._tokens: list[ToldToken] = []

    def take(self, new: NewToken) -> Piece:
        """Take the next token."""
        reason, new_text = new.finish_reason, ""
        if new.token not in self._stop_token_ids:
            if new.logprobs is not None:
                self._tokens.append(ToldToken(new.token, new.logprobs, self._num_chars))
            new_text = self._detokenizer.take(new.token)
        if reason:
            new_text += self._detokenizer.rest()
        self._num_chars += len(new_text)
        certain, is_stopped = self._stops.take(new_text)
        if is_stopped:
            reason = "stop"
        elif reason:
            certain += self._stops.rest()
        if not certain and not reason:
            return Piece(self._choice, "")
        tokens, self._tokens = tuple(self._tokens), []
        return Piece(self._choice, certain, tokens, reason)
