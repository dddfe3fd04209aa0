"""Bodies of requests to the tokenizer of a model, and their answers."""

from __future__ import annotations

import json
from typing import Annotated

from pydantic import FailFast, Field

from trainyard.serve.run.server.api_error import ApiError
from trainyard.serve.run.server.chat_messages import Messages, TemplateFields, Tools
from trainyard.serve.run.server.hosted_model import HostedModel
from trainyard.serve.run.server.request_body import Name, RequestBody
from trainyard.serve.run.server.sampling_requests import check_token_ids
from trainyard.serve.run.tokenizer_work import DecodeTokens, EncodeConversation, EncodeTexts

__all__ = ["DetokenizeRequest", "TokenizeRequest", "detokenized", "tokenized"]

_MOST_TOKENS = 2**20  # in an answer


class TokenizeRequest(TemplateFields):
    """POST /tokenize: a text or a conversation."""

    model: Name = ""
    prompt: str | None = None
    messages: Messages = Field(default_factory=list)
    add_special_tokens: bool | None = None
    tools: Tools = Field(default_factory=list)


class DetokenizeRequest(RequestBody):
    """POST /detokenize."""

    model: Name = ""
    tokens: Annotated[list[int], FailFast()]


async def tokenized(body: TokenizeRequest, model: HostedModel) -> tuple[int, ...]:
    """The tokens of a text, or of a conversation in the model's form.

    Raises
    ------
    ApiError
        If neither or both are given, or the conversation has no such form.
    """
    if (body.prompt is None) != bool(body.messages):
        raise ApiError(400, "give either prompt or messages", param="prompt")
    if body.prompt is not None:
        text = EncodeTexts((body.prompt,), body.add_special_tokens is not False, allowed_tokens=_MOST_TOKENS)
        return (await model.tokenizer_work(text, "prompt"))[0]
    conversation = EncodeConversation.of(
        [each.for_template() for each in body.messages],
        [each.for_template() for each in body.tools],
        variables=json.dumps(body.chat_template_kwargs),
        add_generation_prompt=body.adds_generation_prompt,
        continue_final_message=body.continue_final_message,
        add_special_tokens=bool(body.add_special_tokens),
        allowed_tokens=_MOST_TOKENS,
    )
    return (await model.tokenizer_work(conversation, "messages"))[0]


async def detokenized(body: DetokenizeRequest, model: HostedModel) -> str:
    """The text of tokens.

    Raises
    ------
    ApiError
        If the model does not know one.
    """
    check_token_ids(body.tokens, "tokens", model.tokenizer.vocabulary)
    return (await model.tokenizer_work(DecodeTokens((tuple(body.tokens),)), "tokens"))[0]
