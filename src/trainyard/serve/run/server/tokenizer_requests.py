"""Bodies of requests to the tokenizer of a model, and their answers."""

from __future__ import annotations

from typing import Annotated

from pydantic import FailFast, Field

from trainyard.serve.errors import ServeError
from trainyard.serve.run.model_tokenizer import ModelTokenizer
from trainyard.serve.run.server.api_error import ApiError
from trainyard.serve.run.server.chat_messages import Messages, Tools
from trainyard.serve.run.server.engine_requests import check_known
from trainyard.serve.run.server.request_body import Name, RequestBody

__all__ = ["DetokenizeRequest", "TokenizeRequest", "detokenized", "tokenized"]


class TokenizeRequest(RequestBody):
    """POST /tokenize: a text or a conversation."""

    model: Name = ""
    prompt: str | None = None
    messages: Messages = Field(default_factory=list)
    add_special_tokens: bool | None = None
    add_generation_prompt: bool = True
    tools: Tools = Field(default_factory=list)


class DetokenizeRequest(RequestBody):
    """POST /detokenize."""

    model: Name = ""
    tokens: Annotated[list[int], FailFast()]


def tokenized(body: TokenizeRequest, tokenizer: ModelTokenizer) -> tuple[int, ...]:
    """The tokens of a text, or of a conversation in the model's form.

    Raises
    ------
    ApiError
        If neither or both are given, or the conversation has no such form.
    """
    if (body.prompt is None) != bool(body.messages):
        raise ApiError(400, "give either prompt or messages", param="prompt")
    try:
        if body.prompt is not None:
            return tokenizer.encode(body.prompt, add_special_tokens=body.add_special_tokens is not False)
        prompt = tokenizer.chat_prompt(
            [each.for_template() for each in body.messages],
            tools=[each.for_template() for each in body.tools],
            add_generation_prompt=body.add_generation_prompt,
        )
        return tokenizer.encode(prompt, add_special_tokens=bool(body.add_special_tokens))
    except ServeError as error:
        raise ApiError(400, str(error), param="messages") from error


def detokenized(body: DetokenizeRequest, tokenizer: ModelTokenizer) -> str:
    """The text of tokens.

    Raises
    ------
    ApiError
        If the model does not know one.
    """
    check_known(body.tokens, "tokens", tokenizer.vocabulary)
    return tokenizer.decode(body.tokens)
