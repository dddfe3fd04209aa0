"""The errors of this level."""

from __future__ import annotations

from trainyard.errors import TrainyardError

__all__ = [
    "DoesNotFitError",
    "ModelFaultError",
    "ServeError",
    "check_context",
    "check_max_model_len",
    "require_at_least",
]


class ServeError(TrainyardError, ValueError):
    """An input to the serving level is wrong; the message says what is allowed."""


class DoesNotFitError(ServeError):
    """Devices have too little memory for a model and what it serves; the message says what is short."""


class ModelFaultError(ServeError):
    """A model computed what cannot be served, whatever the request is; the message says what."""


def check_context(max_model_len: int, model: str, context: int) -> None:
    """Refuse sequences for which a model was not made.

    Parameters
    ----------
    model : its name.
    context : the longest sequence that it supports, in tokens.

    Raises
    ------
    ServeError
        Says how long they may be.
    """
    if max_model_len > context:
        raise ServeError(
            f"max_model_len {max_model_len}; {model} supports at most {context} tokens; give that or less"
        )


def check_max_model_len(max_model_len: int, cached_tokens: int) -> None:
    """Refuse a longest sequence that has no room for a prompt and an answer, or for which a cache is too small.

    Parameters
    ----------
    cached_tokens : that the KV cache has room for.

    Raises
    ------
    ServeError
        Says what is allowed; `DoesNotFitError` if it is the cache that is too small.
    """
    if max_model_len < 2:
        raise ServeError(f"max_model_len {max_model_len}; allowed is 2 or more, for a prompt and an answer")
    if max_model_len > cached_tokens:
        raise DoesNotFitError(
            f"max_model_len {max_model_len}; allowed is 2 to {cached_tokens}, the tokens of the KV cache; enlarge it"
        )


def require_at_least(who: object, least: float, *names: str) -> None:
    """Refuse numbers of something, such as a policy, that are too small.

    Raises
    ------
    ServeError
        Names the first one.
    """
    for name in names:
        given = getattr(who, name)
        if not given >= least:  # NaN is not, either
            raise ServeError(f"{name} is {given}; allowed is {least:g} or more")
