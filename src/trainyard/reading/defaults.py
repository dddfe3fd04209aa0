"""Fields of a dataclass that differ from their defaults: all that a file in our own form has to say."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["changed_fields"]


def changed_fields(instance: DataclassInstance, names: Iterable[str]) -> dict[str, Any]:
    """Return the named fields of a dataclass whose values differ from their defaults, in the order of the names."""
    defaults = {field.name: field.default for field in fields(instance)}
    values = {name: getattr(instance, name) for name in names}
    return {name: value for name, value in values.items() if value != defaults[name]}
