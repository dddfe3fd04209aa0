"""Requests of the API as engines take them: prompts in tokens, and how tokens are chosen."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from trainyard.reading import shown
from trainyard.serve.errors import ServeError
from trainyard.serve.requests.request import Request
from trainyard.serve.run.model_tokenizer import ModelTokenizer, TooManyTokensError
from trainyard.serve.run.sampling import SamplingParams
from trainyard.serve.run.server.api_error import ApiError
from trainyard.serve.run.server.api_requests import ChatRequest, CompletionRequest, GenerationRequest
from trainyard.serve.run.server.hosted_model import HostedModel
from trainyard.serve.run.server.tools.tool_call_parser import ToolCallParser
from trainyard.serve.run.server.tools.tool_use import ToolAnswers
from trainyard.serve.run.tokenizer_work import CheckConstraint, DecodeTokens, EncodeConversation, EncodeTexts

__all__ = [
    "EngineRequests",
    "chat_prompt_tokens",
    "check_constraint",
    "check_prompts",
    "check_request",
    "check_token_ids",
    "check_tokens",
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
    """What is to be generated.

    Attributes
    ----------
    requests : one for each prompt.
    sampling : how tokens are chosen.
    stops : texts that end an answer.
    stop_token_ids : tokens that end an answer.
    make_parser : makes what finds calls of tools in an answer; None if there are none.
    """

    requests: tuple[Request, ...]
    sampling: SamplingParams
    stops: tuple[str, ...]
    stop_token_ids: frozenset[int]
    make_parser: Callable[[], ToolCallParser] | None = None

    @property
    def num_samples(self) -> int:
        """Answers to each prompt."""
        return self.requests[0].num_samples

    @property
    def num_prompt_tokens(self) -> int:
        """Of all prompts."""
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
    check_token_ids(body.stop_token_ids, "stop_token_ids", model.tokenizer.vocabulary)


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
    """What the text of each choice begins with: its prompt, where the request has ``echo``.

    Parameters
    ----------
    prompts : in tokens.
    """
    if not body.echo:
        return ("",) * (len(prompts) * body.n)
    given = [body.prompt] if isinstance(body.prompt, str) else body.prompt
    if not isinstance(given[0], str):
        given = await model.tokenizer_work(DecodeTokens(prompts), "prompt")
    return tuple(text for text in given for _ in range(body.n))


async def check_constraint(body: GenerationRequest, model: HostedModel, tools: ToolAnswers) -> None:
    """Whether answers can have the form that is asked for.

    Parameters
    ----------
    tools : what follows from the tools of the request.

    Raises
    ------
    ApiError
        If they cannot.
    """
    sampling = _sampling(body, model.tokenizer, tools)
    if not sampling.is_constrained:
        return
    field = "tools" if tools.is_constrained else "response_format"
    problem = "it ends answers by their form, and ignore_eos lets them go on; leave one out"
    if not body.ignore_eos:
        work = CheckConstraint(sampling.json_schema, sampling.grammar)
        problem = await model.tokenizer_work(work, field)
    if problem:
        raise ApiError(400, f"{field}: {problem}", param=field)


def to_engine_requests(
    body: GenerationRequest,
    prompts: tuple[tuple[int, ...], ...],
    model: HostedModel,
    client: str,
    request_id: str,
    tools: ToolAnswers,
) -> EngineRequests:
    """What a request of the API asks of an engine.

    Parameters
    ----------
    prompts : in tokens.
    model : that is asked.
    client : who asks; "" for the user that the request names.
    request_id : that no other request has.
    tools : what follows from the tools of the request.

    Raises
    ------
    ApiError
        If something is not allowed.
    """
    tokenizer, max_model_len = model.tokenizer, model.engine.max_model_len
    for prompt in prompts:
        check_tokens(prompt, "prompt", tokenizer.vocabulary)
        _check_length(len(prompt), max_model_len=max_model_len)
    requests = tuple(
        Request(
            f"{request_id}-{place}",
            0.0,
            len(prompt),
            min(max_model_len - len(prompt), body.max_output_tokens or max_model_len),
            model=model.base,
            client=client or body.user,
            prompt_ids=prompt,
            priority=body.priority,
            adapter=model.adapter,
            cache_salt=body.cache_salt or "",
            num_samples=body.n,
        )
        for place, prompt in enumerate(prompts)
    )
    own = frozenset(body.stop_token_ids)
    stop_token_ids = own if body.ignore_eos else own | tokenizer.stop_token_ids
    return EngineRequests(
        requests, _sampling(body, tokenizer, tools), body.stop, stop_token_ids, tools.make_parser
    )


def _sampling(body: GenerationRequest, tokenizer: ModelTokenizer, tools: ToolAnswers) -> SamplingParams:
    check_token_ids(body.logit_bias, "logit_bias", tokenizer.vocabulary)
    try:
        return SamplingParams(
            temperature=body.temperature,
            top_k=body.top_k or -1,  # 0 means all, too
            top_p=body.top_p,
            min_p=body.min_p,
            seed=body.seed,
            repetition_penalty=body.repetition_penalty,
            presence_penalty=body.presence_penalty,
            frequency_penalty=body.frequency_penalty,
            logit_bias=body.logit_bias,
            logprobs=body.num_logprobs,
            json_schema=tools.json_schema or ("" if tools.grammar else body.json_schema),
            grammar=tools.grammar,
            min_tokens=body.min_tokens,
        )
    except ServeError as error:
        raise ApiError(400, str(error), param=str(error).partition(" ")[0]) from error


def _is_tokens(given: Any) -> bool:
    return isinstance(given, list) and bool(given) and all(type(each) is int for each in given)


def check_tokens(tokens: tuple[int, ...], param: str, vocabulary: int) -> None:
    """Whether a text has tokens, and the model knows them.

    Raises
    ------
    ApiError
        If not.
    """
    if not tokens:
        raise ApiError(400, f"the {param} has no tokens; give at least one", param=param)
    check_token_ids(tokens, param, vocabulary)


def check_token_ids(tokens: Collection[int], param: str, vocabulary: int) -> None:
    """Whether the model knows tokens.

    Raises
    ------
    ApiError
        If not.
    """
    least, most = min(tokens, default=0), max(tokens, default=0)
    if least < 0 or most >= vocabulary:
        told = f"{param} has tokens from {shown(least)} to {shown(most)}; allowed are 0 to {vocabulary - 1}"
        raise ApiError(400, told, param=param)


def _check_length(num_tokens: int, told: str = "", *, max_model_len: int) -> None:
    if num_tokens >= max_model_len:
        raise ApiError(
            400,
            f"the prompt has {told or num_tokens} tokens; prompt and answer have at most {max_model_len}; shorten it",
            param="prompt",
            code="context_length_exceeded",
        )
