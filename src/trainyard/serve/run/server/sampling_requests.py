"""Sampling parameters of requests of the API, and the checks of them before a model computes anything."""

from __future__ import annotations

from collections.abc import Collection

from trainyard.reading import shown
from trainyard.serve.errors import ServeError
from trainyard.serve.run.sampling import SamplingParams
from trainyard.serve.run.server.api_error import ApiError
from trainyard.serve.run.server.api_requests import GenerationRequest
from trainyard.serve.run.server.hosted_model import HostedModel
from trainyard.serve.run.server.tools.tool_use import ToolAnswers
from trainyard.serve.run.tokenizer_work import CheckConstraint, EncodeTexts

__all__ = [
    "bad_word_tokens",
    "check_constraint",
    "check_prompt_logprobs",
    "check_token_ids",
    "check_tokens",
    "sampling_params",
]

_MOST_PROMPT_LOGPROBS = 2**18  # which a server writes within a second


async def bad_word_tokens(body: GenerationRequest, model: HostedModel) -> tuple[tuple[int, ...], ...]:
    """Return the tokens of words that answers may not have: of each word alone, and behind a space.

    Tokens behind a space that end with those of the word alone are left out: the latter forbid both.

    Raises
    ------
    ApiError
        If a word has no tokens.
    """
    if not body.bad_words:
        return ()
    texts = tuple(text for word in body.bad_words for text in (word.lstrip(), f" {word.lstrip()}"))
    found = await model.tokenizer_work(EncodeTexts(texts, add_special_tokens=False), "bad_words")
    words = list[tuple[int, ...]]()
    for word, plain, spaced in zip(body.bad_words, found[::2], found[1::2], strict=True):
        if not plain:
            told = f"bad_words has {shown(word)}, which has no tokens; leave it out"
            raise ApiError(400, told, param="bad_words")
        words.append(plain)
        if spaced[-len(plain) :] != plain:
            words.append(spaced)
    return tuple(words)


async def check_constraint(body: GenerationRequest, model: HostedModel, tools: ToolAnswers) -> None:
    """Refuse a form that answers cannot have.

    Parameters
    ----------
    tools : what follows from the tools of the request.

    Raises
    ------
    ApiError
        Names the field, and says what is wrong with the form.
    """
    sampling = sampling_params(body, tools)
    if not sampling.is_constrained:
        return
    field = "tools" if tools.is_constrained else body.form_field
    if body.ignore_eos:
        problem = "it ends answers by their form, and ignore_eos lets them go on; leave one out"
    else:
        problem = await model.tokenizer_work(CheckConstraint(sampling.form), field)
    if problem:
        raise ApiError(400, f"{field}: {problem}", param=field)


def sampling_params(body: GenerationRequest, tools: ToolAnswers) -> SamplingParams:
    """Return the sampling parameters of a request, without its bad words and its reasoning.

    Parameters
    ----------
    tools : what follows from the tools of the request.

    Raises
    ------
    ApiError
        If something is not allowed.
    """
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
            prompt_logprobs=body.num_prompt_logprobs,
            allowed_token_ids=tuple(body.allowed_token_ids) or None,
            form=tools.form if tools.is_constrained else body.form,
            min_tokens=body.min_tokens,
        )
    except ServeError as error:
        raise ApiError(400, str(error), param=str(error).partition(" ")[0]) from error


def check_prompt_logprobs(body: GenerationRequest, prompts: tuple[tuple[int, ...], ...]) -> None:
    """Refuse log-probabilities of prompts that are too many for one response.

    Raises
    ------
    ApiError
        Says how many there may be.
    """
    if body.num_prompt_logprobs is None:
        return
    num = (1 + body.num_prompt_logprobs) * body.n * sum(map(len, prompts))
    if num > _MOST_PROMPT_LOGPROBS:
        raise ApiError(
            400,
            f"the prompts have {num} log-probabilities (their tokens, times n, times 1 more than the likeliest tokens); "
            f"allowed are {_MOST_PROMPT_LOGPROBS}; send several requests",
            param="prompt_logprobs" if body.prompt_logprobs is not None else "logprobs",
        )


def check_tokens(tokens: tuple[int, ...], param: str, vocabulary: int) -> None:
    """Refuse a text without tokens, or with tokens that the model does not know.

    Raises
    ------
    ApiError
        Names the field.
    """
    if not tokens:
        raise ApiError(400, f"the {param} has no tokens; give at least one", param=param)
    check_token_ids(tokens, param, vocabulary)


def check_token_ids(tokens: Collection[int], param: str, vocabulary: int) -> None:
    """Refuse tokens that the model does not know.

    Raises
    ------
    ApiError
        Names the field, and says which tokens are allowed.
    """
    least, most = min(tokens, default=0), max(tokens, default=0)
    if least < 0 or most >= vocabulary:
        told = f"{param} has tokens from {shown(least)} to {shown(most)}; allowed are 0 to {vocabulary - 1}"
        raise ApiError(400, told, param=param)
