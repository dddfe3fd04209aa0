"""Processes that begin with what the models and tokenizers of a served folder need, as importing it takes seconds."""

from __future__ import annotations

import multiprocessing
from typing import Any

from trainyard.processes import LimitedProcessError, WorkError
from trainyard.serve.errors import ServeError

__all__ = ["preloaded_context", "raise_serve_error"]

_MODULES = (
    "trainyard.serve.run.limited_tokenizer",
    "trainyard.serve.run.model_check",
    "jinja2.sandbox",
    "llguidance.hf",
)


def preloaded_context() -> Any:
    """The context of multiprocessing whose processes have these modules."""
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload([*_MODULES])
    return found


def raise_serve_error(error: LimitedProcessError) -> None:
    """Raise the `ServeError` that the work in such a process raised; return if the process failed in another way.

    Raises
    ------
    ServeError
        With the message of the work.
    """
    if isinstance(error, WorkError) and error.kind == ServeError.__name__:
        raise ServeError(error.message) from error
