"""What a request asks of a model: the form of the API, in tokens and as engines take it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from trainyard.reading import shown
from trainyard.serve.errors import ServeError
from trainyard.serve.requests.request import Request
from trainyard.serve.run.model_text import ModelText
from trainyard.serve.run.sampling import SamplingParams
from trainyard.serve.run.server.api_error import ApiError
from trainyard.serve.run.server.forms import ChatForm, CompletionForm, GenerationForm

__all__ = ["Asked", "Limits", "chat_tokens", "check_format", "completion_tokens", "read_asked"]

_MOST_ANSWERS = 1024


class Limits(Protocol):
    """What a model can take.

    Attributes
    ----------
    max_model_len : longest sequence, in tokens.
    """

    @property
    def max_model_len(self) -> int: ...


@dataclass(frozen=True)
class Asked:
    """What is to be generated.

    Attributes
    ----------
    requests : one for each prompt.
    sampling : how tokens are chosen.
    stops : texts that end an answer.
    stop_token_ids : tokens that end an answer.
    """

    requests: tuple[Request, ...]
    sampling: SamplingParams
    stops: tuple[str, ...]
    stop_token_ids: frozenset[int]

    @property
    def num_samples(self) -> int:
        """Answers to each prompt."""
        return self.requests[0].num_samples

    @property
    def num_prompt_tokens(self) -> int:
        """Of all prompts."""
        return sum(each.prompt_tokens for each in self.requests)


def chat_tokens(form: ChatForm, text: ModelText) -> tuple[tuple[int, ...], ...]:
    """The prompt of a conversation, in tokens.

    Raises
    ------
    ApiError
        If the model has no chat template, or that does not take the messages.
    """
    try:
        prompt = text.chat_prompt([each.model_dump() for each in form.messages])
    except ServeError as error:
        raise ApiError(400, str(error), param="messages") from error
    return (text.encode(prompt, special=False),)


def completion_tokens(form: CompletionForm, text: ModelText) -> tuple[tuple[int, ...], ...]:
    """The prompts of a completion, in tokens.

    Raises
    ------
    ApiError
        If they are no text, tokens, or list of one of these.
    """
    given: Any = form.prompt
    prompts = [given] if isinstance(given, str) or _is_tokens(given) else given
    if not isinstance(prompts, list) or not prompts:
        raise _wrong_prompt(given)
    if all(isinstance(each, str) for each in prompts):
        return tuple(text.encode(each) for each in prompts)
    if all(_is_tokens(each) for each in prompts):
        return tuple(tuple(each) for each in prompts)
    raise _wrong_prompt(given)


def check_format(form: GenerationForm, text: ModelText) -> None:
    """Whether answers can have the form that is asked for.

    Raises
    ------
    ApiError
        If they cannot.
    """
    if not form.schema_text:
        return
    given = form.response_format
    param, problem = "response_format", ""
    if given is not None and (given.type == "json_schema") != (given.json_schema is not None):
        problem = "type json_schema and the field json_schema go together; give both or neither"
    elif form.ignore_eos:
        problem = "it ends answers by their form, and ignore_eos lets them go on; leave one out"
    else:
        try:
            problem = text.json_constraints.problem(form.schema_text)
        except ServeError as error:
            problem = str(error)
    if problem:
        raise ApiError(400, f"{param}: {problem}", param=param)


def read_asked(
    form: GenerationForm,
    prompts: tuple[tuple[int, ...], ...],
    text: ModelText,
    limits: Limits,
    client: str,
    name: str,
) -> Asked:
    """What a form asks for.

    Parameters
    ----------
    prompts : in tokens.
    client : who asks; "" for who the form says.
    name : of the request, that no other one has.

    Raises
    ------
    ApiError
        If something is not allowed.
    """
    _check_together(form, len(prompts))
    for prompt in prompts:
        _check_prompt(prompt, text, limits)
    requests = tuple(
        Request(
            f"{name}-{place}",
            0.0,
            len(prompt),
            min(limits.max_model_len - len(prompt), form.most_tokens or limits.max_model_len),
            model=form.model,
            client=client or form.user,
            prompt_ids=prompt,
            priority=form.priority,
            cache_salt=form.cache_salt or "",
            num_samples=form.n,
        )
        for place, prompt in enumerate(prompts)
    )
    own = frozenset(form.stop_token_ids)
    stop_token_ids = own if form.ignore_eos else own | text.stop_token_ids
    return Asked(requests, _sampling(form, text), form.stop, stop_token_ids)


def _check_together(form: GenerationForm, num_prompts: int) -> None:
    """Whether fields go with each other."""
    if num_prompts * form.n > _MOST_ANSWERS:
        raise ApiError(
            400,
            f"{num_prompts} prompts with n {form.n} are {num_prompts * form.n} answers; allowed are {_MOST_ANSWERS}; "
            "send several requests",
            param="n",
        )
    best_of = getattr(form, "best_of", None)
    if best_of not in (None, form.n):
        raise ApiError(
            400, f"best_of is {best_of}; allowed is n, which is {form.n}; leave it out", param="best_of"
        )
    if getattr(form, "top_logprobs", None) is not None and form.num_logprobs is None:
        raise ApiError(
            400, "top_logprobs is given without logprobs; give logprobs: true, too", param="top_logprobs"
        )
    if form.stream_options is not None and not form.stream:
        raise ApiError(
            400,
            "stream_options is given without stream; give stream: true, or leave it out",
            param="stream_options",
        )


def _sampling(form: GenerationForm, text: ModelText) -> SamplingParams:
    bias = form.logit_bias
    if bias and max(bias) >= text.vocabulary:
        raise ApiError(
            400,
            f"logit_bias has token {max(bias)}; allowed are 0 to {text.vocabulary - 1}",
            param="logit_bias",
        )
    try:
        return SamplingParams(
            temperature=form.temperature,
            top_k=form.top_k or -1,  # 0 means all, too
            top_p=form.top_p,
            min_p=form.min_p,
            seed=form.seed,
            repetition_penalty=form.repetition_penalty,
            presence_penalty=form.presence_penalty,
            frequency_penalty=form.frequency_penalty,
            logit_bias=bias,
            logprobs=form.num_logprobs,
            json_schema=form.schema_text,
        )
    except ServeError as error:
        raise ApiError(400, str(error), param=str(error).partition(" ")[0]) from error


def _is_tokens(given: Any) -> bool:
    return isinstance(given, list) and bool(given) and all(type(each) is int for each in given)


def _wrong_prompt(given: Any) -> ApiError:
    return ApiError(
        400,
        f"prompt is {shown(given)}; allowed is a text, tokens (numbers), a list of texts or a list of tokens",
        param="prompt",
    )


def _check_prompt(prompt: tuple[int, ...], text: ModelText, limits: Limits) -> None:
    if not prompt:
        raise ApiError(400, "the prompt has no tokens; give at least one", param="prompt")
    if not 0 <= min(prompt) <= max(prompt) < text.vocabulary:
        raise ApiError(
            400,
            f"prompt has tokens from {min(prompt)} to {max(prompt)}; allowed are 0 to {text.vocabulary - 1}",
            param="prompt",
        )
    if len(prompt) >= limits.max_model_len:
        raise ApiError(
            400,
            f"the prompt has {len(prompt)} tokens; prompt and answer have at most {limits.max_model_len}; shorten it",
            param="prompt",
            code="context_length_exceeded",
        )
