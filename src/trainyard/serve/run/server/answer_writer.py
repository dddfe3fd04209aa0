"""Interface of writers of responses to requests for text, whole or as events of a stream."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from trainyard.serve.run.model_tokenizer import ModelTokenizer
from trainyard.serve.run.server.api_error import ApiError
from trainyard.serve.run.server.api_requests import UsageInStream
from trainyard.serve.run.server.choice_decoder import ChoiceDelta
from trainyard.serve.run.server.generation_stream import Usage

__all__ = ["AnswerWriter"]


@dataclass(frozen=True)
class AnswerWriter(ABC):
    """Writes the response to one request.

    Attributes
    ----------
    response_id : of the response.
    model : its name.
    tokenizer : of the model.
    created_s : when the request came, in seconds since 1970.
    has_logprobs : whether log-probabilities were asked for.
    usage_in_stream : which chunks of a stream say what was used.
    num_prompt_logprobs : how many likely tokens are told of each token of the prompt, apart from the text; None for
        nothing.
    names_events : whether each event of a stream is named by the ``type`` of its document.
    end_of_stream : bytes behind the last event of a stream.
    """

    names_events: ClassVar[bool] = False
    end_of_stream: ClassVar[bytes] = b""

    response_id: str
    model: str
    tokenizer: ModelTokenizer
    created_s: int
    has_logprobs: bool
    usage_in_stream: UsageInStream
    num_prompt_logprobs: int | None

    @abstractmethod
    def response(self, deltas: Sequence[ChoiceDelta], num_choices: int, usage: Usage) -> dict[str, Any]:
        """Return the response with all choices at once."""

    @abstractmethod
    def first_chunks(self, num_choices: int) -> list[dict[str, Any]]:
        """Return the events that begin a stream."""

    @abstractmethod
    def chunks(self, delta: ChoiceDelta) -> list[dict[str, Any]]:
        """Return the events of a part of a choice."""

    @abstractmethod
    def last_chunks(self, usage: Usage) -> list[dict[str, Any]]:
        """Return the events that end a stream."""

    @abstractmethod
    def error_chunk(self, error: ApiError) -> dict[str, Any]:
        """Return the event that ends a stream after an error."""

    def with_usage(self, chunk: dict[str, Any], usage: Usage) -> dict[str, Any]:
        """Add the usage of all choices so far to an event, if events of its kind have it."""
        return chunk
