"""Leave out models that cannot be served, so that the other models of a server are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from trainyard.serve.errors import ServeError

__all__ = ["made_for_each"]

_Made = TypeVar("_Made")


def made_for_each(
    models: Mapping[str, str], make: Callable[[str, str], _Made], failed: dict[str, str]
) -> dict[str, _Made]:
    """Make something for each model that has not failed before.

    Parameters
    ----------
    models : folders, or names of the zoo, by the names by which requests call them.
    make : makes it from both.
    failed : why models failed, by name; gets why nothing could be made for others.

    Raises
    ------
    ServeError
        If nothing could be made for any model: the first reason.
    """
    made, errors = dict[str, _Made](), dict[str, ServeError]()
    for name, model in models.items():
        if name in failed:
            continue
        try:
            made[name] = make(name, model)
        except ServeError as error:
            errors[name] = error
    if errors and not made:
        raise next(iter(errors.values()))
    failed.update({name: str(error) for name, error in errors.items()})
    return made
