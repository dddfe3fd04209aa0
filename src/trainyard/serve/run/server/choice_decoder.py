"""One choice of a response: its tokens become text, and the text may end it."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from typing import Literal

from trainyard.serve.run.model_tokenizer import Detokenizer, ModelTokenizer
from trainyard.serve.run.outputs import FinishReason, NewToken
from trainyard.serve.run.sampling import TokenLogprobs
from trainyard.serve.run.server.stop_strings import StopStrings
from trainyard.serve.run.server.tools.tool_call_parser import ToolCallDelta, ToolCallParser

__all__ = ["ChoiceDecoder", "ChoiceDelta", "OutputToken"]


@dataclass(frozen=True, slots=True)
class OutputToken:
    """A token of a choice, with its log-probabilities.

    Attributes
    ----------
    token : its id.
    logprobs : of it and the likeliest ones.
    offset : characters of the choice before it.
    """

    token: int
    logprobs: TokenLogprobs
    offset: int


@dataclass(frozen=True, slots=True)
class ChoiceDelta:
    """The next part of a choice.

    Attributes
    ----------
    index : of the choice among all of the request.
    text : may be empty.
    tokens : where log-probabilities were asked for.
    finish_reason : "" if more follows; "tool_calls" of an answer that has calls and would end with "stop" otherwise.
    calls : parts of calls of tools.
    stop_text : the text of the request's stops that ended the choice; "" if none did.
    """

    index: int
    text: str
    tokens: tuple[OutputToken, ...] = ()
    finish_reason: FinishReason | Literal["tool_calls"] = ""
    calls: tuple[ToolCallDelta, ...] = ()
    stop_text: str = ""

    @property
    def says_something(self) -> bool:
        """Whether a client is told of it."""
        return bool(self.text or self.calls or self.finish_reason)


class ChoiceDecoder:
    """Turns the tokens of a choice into text, one by one.

    Parameters
    ----------
    index : of the choice.
    stops : texts that end it and are not part of it.
    stop_token_ids : tokens that end it and are not part of it.
    parser : finds calls of tools in it; None if all of it is text.
    min_tokens : tokens in whose text no stop is looked for.
    """

    def __init__(
        self,
        index: int,
        tokenizer: ModelTokenizer,
        stops: Sequence[str],
        stop_token_ids: Set[int],
        parser: ToolCallParser | None = None,
        min_tokens: int = 0,
    ) -> None:
        self._index, self._stop_token_ids = index, stop_token_ids
        tags = tokenizer.ids_of(parser.tags) if parser else frozenset()
        self._detokenizer, self._stops = Detokenizer(tokenizer, tags), StopStrings(stops)
        self._parser = parser
        self._num_chars, self._num_unstoppable = 0, min_tokens
        self._tokens: list[OutputToken] = []

    def take(self, new: NewToken) -> ChoiceDelta:
        """Take the next token."""
        reason, new_text = new.finish_reason, ""
        if new.token not in self._stop_token_ids:
            if new.logprobs is not None:
                self._tokens.append(OutputToken(new.token, new.logprobs, self._num_chars))
            new_text = self._detokenizer.take(new.token)
        if reason:
            new_text += self._detokenizer.rest()
        self._num_chars += len(new_text)
        certain, is_stopped = new_text, False
        if self._num_unstoppable:
            self._num_unstoppable -= 1
        else:
            certain, is_stopped = self._stops.take(new_text)
        if is_stopped:
            reason = "stop"
        elif reason:
            certain += self._stops.rest()
        delta = replace(self._parsed(certain, reason), stop_text=self._stops.matched)
        if not delta.says_something:
            return delta
        tokens, self._tokens = tuple(self._tokens), []
        return replace(delta, tokens=tokens)

    def _parsed(self, text: str, reason: FinishReason) -> ChoiceDelta:
        """What a piece of text says."""
        if self._parser is None:
            return ChoiceDelta(self._index, text, (), reason)
        content, calls = self._parser.take(text)
        if reason:
            more = self._parser.rest()
            content, calls = content + more.content, calls + more.calls
        told = self._parser.finish_reason if reason == "stop" else reason
        return ChoiceDelta(self._index, content, (), told, calls)
