"""One choice of a response: its tokens become text, and the text may end it."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass, replace
from typing import Literal

from trainyard.serve.run.model_tokenizer import Detokenizer, ModelTokenizer
from trainyard.serve.run.outputs import FinishReason, NewToken
from trainyard.serve.run.prompt_logprobs import PromptLogprobs
from trainyard.serve.run.reasoning_tokens import ReasoningProgress, ReasoningTokens
from trainyard.serve.run.sampling import TokenLogprobs
from trainyard.serve.run.server.stop_strings import StopStrings
from trainyard.serve.run.server.tools.tool_call_parser import ToolCallDelta, ToolCallParser

__all__ = ["AnswerText", "ChoiceDecoder", "ChoiceDelta", "OutputToken", "ScoredPrompt"]


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
class ScoredPrompt:
    """A prompt with the log-probabilities of its tokens.

    Attributes
    ----------
    tokens : of the prompt.
    logprobs : of its tokens, from the second on.
    """

    tokens: tuple[int, ...]
    logprobs: PromptLogprobs


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
    reasoning : text that comes before the answer itself.
    prompt : with the first part of the choice, where log-probabilities of the prompt were asked for.
    stop_text : the text of the request's stops that ended the choice; "" if none did.
    """

    index: int
    text: str
    tokens: tuple[OutputToken, ...] = ()
    finish_reason: FinishReason | Literal["tool_calls"] = ""
    calls: tuple[ToolCallDelta, ...] = ()
    reasoning: str = ""
    prompt: ScoredPrompt | None = None
    stop_text: str = ""

    @property
    def says_something(self) -> bool:
        """Whether a client is told of it."""
        return bool(self.text or self.reasoning or self.calls or self.finish_reason or self.prompt)


@dataclass(frozen=True)
class AnswerText:
    """Options of the text of answers: its end, its special tokens, its reasoning and its calls.

    Attributes
    ----------
    stops : texts that end an answer.
    includes_stop : whether an answer has the text or the token that ends it.
    stop_token_ids : tokens that end an answer.
    min_tokens : tokens in whose text no stop is looked for.
    shows_special : whether special tokens have a text.
    make_parser : makes what finds calls of tools in an answer; None if there are none.
    reasoning : tokens around the reasoning of an answer; None if it has none.
    hides_reasoning : whether the reasoning is left out.
    is_prompt_only : whether only the prompt is told, and an answer has no tokens.
    """

    stops: tuple[str, ...] = ()
    includes_stop: bool = False
    stop_token_ids: frozenset[int] = frozenset()
    min_tokens: int = 0
    shows_special: bool = False
    make_parser: Callable[[], ToolCallParser] | None = None
    reasoning: ReasoningTokens | None = None
    hides_reasoning: bool = False
    is_prompt_only: bool = False

    def shown(self, tokenizer: ModelTokenizer, parser: ToolCallParser | None) -> Set[int]:
        """Return the special tokens that have a text."""
        tags = tokenizer.ids_of(parser.tags) if parser else frozenset[int]()
        around = frozenset(self.reasoning[:2]) if self.reasoning else frozenset[int]()
        return tags | around | (tokenizer.special_ids if self.shows_special else frozenset())


class ChoiceDecoder:
    """Turns the tokens of a choice into text, one by one.

    Parameters
    ----------
    index : of the choice.
    text : how its tokens become text.
    echoed : text that it begins with.
    """

    def __init__(self, index: int, tokenizer: ModelTokenizer, text: AnswerText, echoed: str = "") -> None:
        self._index, self._text, self._echoed = index, text, echoed
        self._parser = text.make_parser() if text.make_parser else None
        self._detokenizer = Detokenizer(tokenizer, text.shown(tokenizer, self._parser))
        self._stops = StopStrings(text.stops, is_included=text.includes_stop)
        self._reasoning = ReasoningProgress(text.reasoning)
        self._tokenizer = tokenizer
        self._num_chars, self._num_unstoppable = len(echoed), text.min_tokens
        self._tokens: list[OutputToken] = []

    def take(self, new: NewToken, prompt: ScoredPrompt | None = None) -> ChoiceDelta:
        """Take the next token.

        Parameters
        ----------
        prompt : told with the first part of the choice; None if its log-probabilities were not asked for.
        """
        echoed, self._echoed = self._echoed, ""
        if self._text.is_prompt_only:
            return ChoiceDelta(self._index, echoed, (), "length", prompt=prompt)
        delta = self._answered(new)
        if echoed or prompt:
            delta = replace(delta, text=echoed + delta.text, prompt=prompt)
        if not delta.says_something:
            return delta
        tokens, self._tokens = tuple(self._tokens), []
        return replace(delta, tokens=tokens)

    def _answered(self, new: NewToken) -> ChoiceDelta:
        """Decode the next token of the answer itself."""
        reason, new_text = new.finish_reason, ""
        if self._text.includes_stop or new.token not in self._text.stop_token_ids:
            if new.logprobs is not None:
                self._tokens.append(OutputToken(new.token, new.logprobs, self._num_chars))
            new_text = self._detokenizer.take(new.token)
        if reason:
            new_text += self._detokenizer.rest()
        self._num_chars += len(new_text)
        is_reasoning, is_tag = self._reasoning.take(new.token)
        if is_tag:
            new_text = new_text.rpartition(self._tokenizer.bytes_of(new.token).decode())[0]
        certain, is_stopped = new_text, False
        if self._num_unstoppable:
            self._num_unstoppable -= 1
        else:
            certain, is_stopped = self._stops.take(new_text)
        if is_stopped:
            reason = "stop"
        elif reason or is_tag:
            certain += self._stops.rest()
        return replace(
            self._parsed(certain, reason, is_reasoning=is_reasoning), stop_text=self._stops.matched
        )

    def _parsed(self, text: str, reason: FinishReason, *, is_reasoning: bool) -> ChoiceDelta:
        """Sort a piece of text into content, reasoning and calls."""
        content, reasoning = ("", text) if is_reasoning else (text, "")
        if self._text.hides_reasoning:
            reasoning = ""
        if self._parser is None:
            return ChoiceDelta(self._index, content, (), reason, (), reasoning)
        content, calls = self._parser.take(content)
        if reason:
            more = self._parser.rest()
            content, calls = content + more.content, calls + more.calls
        told = self._parser.finish_reason if reason == "stop" else reason
        return ChoiceDelta(self._index, content, (), told, calls, reasoning)
