"""Requests of the API as engines take them: prompts in tokens, and how tokens are chosen."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from trainyard.reading import shown
from trainyard.serve.requests.request import Request
from trainyard.serve.run.model_tokenizer import TooManyTokensError
from trainyard.serve.run.sampling import SamplingParams
from trainyard.serve.run.server.api_error import ApiError
from trainyard.serve.run.server.api_requests import ChatRequest, CompletionRequest, GenerationRequest
from trainyard.serve.run.server.choice_decoder import AnswerText
from trainyard.serve.run.server.hosted_model import HostedModel
from trainyard.serve.run.server.reasoning import reasoning_of_answers
from trainyard.serve.run.server.sampling_requests import (
    check_prompt_logprobs,
    check_token_ids,
    check_tokens,
    sampling_params,
)
from trainyard.serve.run.server.tools.tool_use import ToolAnswers
from trainyard.serve.run.tokenizer_work import DecodeTokens, EncodeConversation, EncodeTexts

__all__ = [
    "EngineRequests",
    "chat_prompt_tokens",
    "check_prompts",
    "check_request",
    "completion_prompt_tokens",
    "echoed_prompts",
    "longest_prompt_tokens",
    "rewording_length_errors",
    "to_engine_requests",
    "tokens_of_texts",
]

_MOST_CHOICES = 1024


@dataclass(frozen=True)
class EngineRequests:
    """Requests to an engine for one request of the API.

    Attributes
    ----------
    requests : one for each prompt.
    sampling : how tokens are chosen.
    text : how tokens become the text of answers.
    echoed : what the answers to each prompt begin with.
    """

    requests: tuple[Request, ...]
    sampling: SamplingParams
    text: AnswerText
    echoed: tuple[str, ...]

    @property
    def num_samples(self) -> int:
        """Answers to each prompt."""
        return self.requests[0].num_samples

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of all prompts."""
        return sum(each.prompt_tokens for each in self.requests)


def check_request(body: GenerationRequest, model: HostedModel) -> None:
    """Refuse what is wrong whatever the prompts are, before a text becomes tokens.

    Raises
    ------
    ApiError
        Names the field.
    """
    if body.priority and not model.reads_priority:
        raise ApiError(
            400,
            f"priority is {body.priority}, and the policy of this server does not look at it; leave it out, or start "
            "the server with --policy vllm+priority",
            param="priority",
        )
    for name in ("stop_token_ids", "allowed_token_ids", "logit_bias"):
        check_token_ids(getattr(body, name), name, model.tokenizer.vocabulary)


def check_prompts(body: CompletionRequest, model: HostedModel) -> None:
    """Refuse prompts that are too many, or that are tokens and too long, before a text becomes tokens.

    Raises
    ------
    ApiError
        Says how many there may be.
    """
    num = len(_texts(body.prompt))
    if num * body.n > _MOST_CHOICES:
        raise ApiError(
            400,
            f"{num} prompts with n {body.n} are {num * body.n} answers; allowed are {_MOST_CHOICES}; "
            "send several requests",
            param="n",
        )
    _check_length(longest_prompt_tokens(body.prompt), max_model_len=model.engine.max_model_len)


async def chat_prompt_tokens(body: ChatRequest, model: HostedModel) -> tuple[tuple[int, ...], ...]:
    """The prompt of a conversation, in tokens.

    Raises
    ------
    ApiError
        If the model has no chat template, or that does not take the messages, or would hide tools from a model that is
        to choose among them; or if the prompt is too long.
    """
    work = EncodeConversation.of(
        [each.for_template() for each in body.messages],
        body.tool_use.for_template(),
        must_show_tools=body.tool_use.is_optional,
        variables=json.dumps(body.chat_template_kwargs),
        effort=body.reasoning_effort or "",
        add_generation_prompt=body.adds_generation_prompt,
        continue_final_message=body.continue_final_message,
        allowed_tokens=model.engine.max_model_len - 1,
    )
    with rewording_length_errors(partial(_check_length, max_model_len=model.engine.max_model_len)):
        return await model.tokenizer_work(work, "messages")


async def completion_prompt_tokens(
    body: CompletionRequest, model: HostedModel
) -> tuple[tuple[int, ...], ...]:
    """The prompts of a completion, in tokens.

    Raises
    ------
    ApiError
        If they are no text, tokens, or list of one of these; or if one is too long.
    """
    max_model_len = model.engine.max_model_len
    with rewording_length_errors(partial(_check_length, max_model_len=max_model_len)):
        return await tokens_of_texts(body.prompt, "prompt", model, allowed_tokens=max_model_len - 1)


@contextmanager
def rewording_length_errors(check_length: Callable[[int, str], None]) -> Iterator[None]:
    """Within it, a text with too many tokens is told in the words of a check.

    Parameters
    ----------
    check_length : raises the error, from the number of tokens and how it is told.
    """
    try:
        yield
    except ApiError as error:
        if isinstance(cause := error.__cause__, TooManyTokensError):
            check_length(cause.num_tokens, cause.count)
        raise


async def tokens_of_texts(
    given: Any,
    param: str,
    model: HostedModel,
    *,
    max_tokens: int | None = None,
    allowed_tokens: int | None = None,
) -> tuple[tuple[int, ...], ...]:
    """Texts of a request in tokens.

    Parameters
    ----------
    given : a text, tokens, or a list of one of these.
    param : field of the request that has them.
    max_tokens, allowed_tokens : of each text, as `EncodeTexts` has them.

    Raises
    ------
    ApiError
        If they are something else, or too long.
    """
    texts = _texts(given)
    if texts and all(isinstance(each, str) for each in texts):
        work = EncodeTexts(tuple(texts), max_tokens=max_tokens, allowed_tokens=allowed_tokens)
        return await model.tokenizer_work(work, param)
    if texts and all(_is_tokens(each) for each in texts):
        return tuple(tuple(each) for each in texts)
    raise ApiError(
        400,
        f"{param} is {shown(given)}; allowed is a text, tokens (numbers), a list of texts or a list of tokens",
        param=param,
    )


def longest_prompt_tokens(given: Any) -> int:
    """Length of the longest of texts that are given as tokens; 0 if there is none.

    Parameters
    ----------
    given : as `tokens_of_texts` takes it.
    """
    return max((len(each) for each in _texts(given) if isinstance(each, list)), default=0)


def _texts(given: Any) -> list[Any]:
    """Return the texts or token lists of a field that has one of them or a list."""
    is_list_of_them = isinstance(given, list) and not (given and type(given[0]) is int)
    return given if is_list_of_them else [given]


async def echoed_prompts(
    body: CompletionRequest, prompts: tuple[tuple[int, ...], ...], model: HostedModel
) -> tuple[str, ...]:
    """Return the beginnings of the answers to each prompt: the prompt, where the request has ``echo``.

    Parameters
    ----------
    prompts : in tokens.
    """
    if not body.echo:
        return ("",) * len(prompts)
    given = [body.prompt] if isinstance(body.prompt, str) else body.prompt
    if not isinstance(given[0], str):
        given = await model.tokenizer_work(DecodeTokens(prompts), "prompt")
    return tuple(given)


def to_engine_requests(
    body: GenerationRequest,
    prompts: tuple[tuple[int, ...], ...],
    model: HostedModel,
    client: str,
    request_id: str,
    tools: ToolAnswers,
    echoed: tuple[str, ...] = (),
    bad_words: tuple[tuple[int, ...], ...] = (),
) -> EngineRequests:
    """Make the requests to an engine for a request of the API.

    Parameters
    ----------
    prompts : in tokens.
    model : that is asked.
    client : who asks; "" for the user that the request names.
    request_id : that no other request has.
    tools : what follows from the tools of the request.
    echoed, bad_words : as `echoed_prompts` and `bad_word_tokens` find them.

    Raises
    ------
    ApiError
        If something is not allowed.
    """
    tokenizer, max_model_len = model.tokenizer, model.engine.max_model_len
    for prompt in prompts:
        check_tokens(prompt, "prompt", tokenizer.vocabulary)
        _check_length(len(prompt), max_model_len=max_model_len)
    check_prompt_logprobs(body, prompts)
    most_tokens = max_model_len if body.max_output_tokens is None else max(1, body.max_output_tokens)
    requests = tuple(
        Request(
            f"{request_id}-{place}",
            0.0,
            len(prompt),
            min(max_model_len - len(prompt), most_tokens),
            model=model.base,
            client=client or body.user,
            prompt_ids=prompt,
            priority=body.priority,
            adapter=model.adapter,
            cache_salt=body.cache_salt or "",
            reads_cache=body.num_prompt_logprobs is None,
            num_samples=body.n,
        )
        for place, prompt in enumerate(prompts)
    )
    text = _answer_text(body, prompts, model, tools)
    sampling = replace(sampling_params(body, tools), bad_words=bad_words, reasoning=text.reasoning)
    return EngineRequests(requests, sampling, text, echoed or ("",) * len(requests))


def _answer_text(
    body: GenerationRequest, prompts: tuple[tuple[int, ...], ...], model: HostedModel, tools: ToolAnswers
) -> AnswerText:
    """Return the options by which tokens become the text of answers."""
    own, reasoning = frozenset(body.stop_token_ids), None
    if isinstance(body, ChatRequest) and model.reasoning_parser:
        reasoning = reasoning_of_answers(
            model.reasoning_parser, model.tokenizer, prompts[0], is_continued=body.continue_final_message
        )
    return AnswerText(
        stops=body.stop,
        includes_stop=body.include_stop_str_in_output,
        stop_token_ids=own if body.ignore_eos else own | model.tokenizer.stop_token_ids,
        min_tokens=body.min_tokens,
        shows_special=not body.skip_special_tokens,
        make_parser=tools.make_parser,
        reasoning=reasoning,
        hides_reasoning=isinstance(body, ChatRequest) and not body.include_reasoning,
        is_prompt_only=body.max_output_tokens == 0,
    )


def _is_tokens(given: Any) -> bool:
    return isinstance(given, list) and bool(given) and all(type(each) is int for each in given)


def _check_length(num_tokens: int, told: str = "", *, max_model_len: int) -> None:
    if num_tokens >= max_model_len:
        raise ApiError(
            400,
            f"the prompt has {told or num_tokens} tokens; prompt and answer have at most {max_model_len}; shorten it",
            param="prompt",
            code="context_length_exceeded",
        )
