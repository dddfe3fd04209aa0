"""Processes that begin with what the models and tokenizers of a served folder need, as importing it takes seconds."""

from __future__ import annotations

import multiprocessing
from typing import Any

__all__ = ["preloaded_context"]

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
