"""Bodies of requests for embeddings, and what they ask of an engine."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field

from trainyard.reading import listed
from trainyard.serve.requests.request import Request
from trainyard.serve.run.embedding_model import EmbeddingForm
from trainyard.serve.run.server.api_error import ApiError
from trainyard.serve.run.server.engine_requests import (
    longest_prompt_tokens,
    rewording_length_errors,
    tokens_of_texts,
)
from trainyard.serve.run.server.hosted_model import HostedModel
from trainyard.serve.run.server.request_body import Name, RequestBody
from trainyard.serve.run.server.sampling_requests import check_tokens

__all__ = ["EmbeddingRequest", "check_dimensions", "embedding_texts", "to_embedding_requests"]

_MOST_TEXTS = 2048
_MOST_NUMBER = 2**31 - 1


class EmbeddingRequest(RequestBody):
    """POST /v1/embeddings."""

    model: Name
    input: Any
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(None, ge=1, le=_MOST_NUMBER)
    truncate_prompt_tokens: Annotated[int, Field(ge=1, le=_MOST_NUMBER)] | Literal[-1] | None = None
    user: str = Field("", max_length=1024)


def check_dimensions(body: EmbeddingRequest, form: EmbeddingForm, name: str) -> None:
    """Whether the model gives embeddings of as many numbers as are asked for.

    Raises
    ------
    ApiError
        If not.
    """
    asked = body.dimensions
    if asked in (None, form.width) or asked in form.smaller:
        return
    if isinstance(form.smaller, range):
        allowed = f"allowed are 1 to {form.width}"
    elif form.smaller:
        allowed = f"allowed are {listed(map(str, sorted({*form.smaller, form.width})))}"
    else:
        allowed = f"{name} was not trained for others than {form.width}; leave it out"
    raise ApiError(400, f"dimensions is {asked}; {allowed}", param="dimensions")


async def embedding_texts(body: EmbeddingRequest, model: HostedModel) -> tuple[tuple[int, ...], ...]:
    """The texts of a request in tokens, cut where that is asked for.

    Raises
    ------
    ApiError
        If they are too many or too long, or none that are allowed.
    """
    if isinstance(body.input, list) and len(body.input) > _MOST_TEXTS and not isinstance(body.input[0], int):
        told = f"input has {len(body.input)} texts; allowed are {_MOST_TEXTS}; send several requests"
        raise ApiError(400, told, param="input")
    asked, max_model_len = body.truncate_prompt_tokens, model.engine.max_model_len
    most = max_model_len if asked == -1 else asked
    if most is not None and most > max_model_len:
        told = f"truncate_prompt_tokens is {most}; allowed are 1 to {max_model_len}, or -1 for the most"
        raise ApiError(400, told, param="truncate_prompt_tokens")
    if most is None:
        _check_length(longest_prompt_tokens(body.input), max_model_len=max_model_len)
    with rewording_length_errors(partial(_check_length, max_model_len=max_model_len)):
        found = await tokens_of_texts(
            body.input, "input", model, max_tokens=most, allowed_tokens=most or max_model_len
        )
    texts = tuple(text[:most] for text in found)
    for text in texts:
        check_tokens(text, "input", model.tokenizer.vocabulary)
        _check_length(len(text), max_model_len=max_model_len)
    return texts


def _check_length(num_tokens: int, told: str = "", *, max_model_len: int) -> None:
    if num_tokens > max_model_len:
        raise ApiError(
            400,
            f"the input has {told or num_tokens} tokens; allowed are {max_model_len}; shorten it, or give "
            "truncate_prompt_tokens: -1",
            param="input",
            code="context_length_exceeded",
        )


def to_embedding_requests(
    texts: tuple[tuple[int, ...], ...], model: str, client: str, request_id: str
) -> tuple[Request, ...]:
    """What an engine is asked for.

    Parameters
    ----------
    texts : in tokens.
    model : its name.
    client : that sent it.
    request_id : that no other request has.
    """
    return tuple(
        Request(f"{request_id}-{place}", 0.0, len(text), 1, model=model, client=client, prompt_ids=text)
        for place, text in enumerate(texts)
    )
