"""Calling a function in forked processes, which have all that this one has."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import current_process, get_context
from typing import Any, TypeVar

import torch

from trainyard.user_file import UserFileError, fault_in_user_file

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def map_forked(
    function: Callable[[_Item], _Result],
    items: Sequence[_Item],
    meanwhile: Callable[[], object] = lambda: None,
) -> Iterator[_Result]:
    """Results in the order of the items, computed by as many processes as there are cores.

    A process that may have no children, a daemonic one, computes all of them itself. The function and all that it
    refers to is inherited, not pickled; items and results are. It must use neither threads nor an accelerator, which a
    forked process has lost.

    Parameters
    ----------
    meanwhile : what this process does while it would wait for the others.

    Raises
    ------
    UserFileError
        If the function fails in a user's file, in another process.
    """
    num_processes = min(len(items), len(os.sched_getaffinity(0)))
    if num_processes <= 1 or current_process().daemon:
        yield from map(function, items)
        return
    with ProcessPoolExecutor(num_processes, get_context("fork"), _inherit, (function,)) as pool:
        results = pool.map(_call, items)
        meanwhile()
        yield from results


def can_differentiate() -> bool:
    """Return whether forked processes can differentiate: PyTorch built for an accelerator does so in threads, which
    they lack."""
    version = torch.version
    return not any(getattr(version, name, None) for name in ("cuda", "hip", "xpu"))


_inherited: Callable[[Any], Any]


def _inherit(function: Callable[[Any], Any]) -> None:
    global _inherited
    _inherited = function
    torch.set_num_threads(1)


def _call(item: Any) -> Any:
    try:
        return _inherited(item)
    except Exception as error:
        if said := fault_in_user_file(error):
            raise UserFileError(said) from error
        raise
