"""Options that need not be given: what they take is what their type takes, never the word None."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from tyro.constructors import (
    ConstructorRegistry,
    PrimitiveConstructorSpec,
    PrimitiveTypeInfo,
    UnsupportedTypeAnnotationError,
)

__all__ = ["without_none"]

_rules = ConstructorRegistry()


def without_none() -> AbstractContextManager[Any]:
    """Read optional values in the block as values of their type, with its choices and its errors."""
    return _rules


@_rules.primitive_rule
def _optional(
    info: PrimitiveTypeInfo,
) -> PrimitiveConstructorSpec[Any] | UnsupportedTypeAnnotationError | None:
    """Read a type or None as the type."""
    kinds = [each for each in get_args(info.type) if each is not NoneType]
    if get_origin(info.type) not in (Union, UnionType) or len(kinds) != 1:
        return None
    found = ConstructorRegistry.get_primitive_spec(PrimitiveTypeInfo.make(kinds[0], info.markers))
    if isinstance(found, UnsupportedTypeAnnotationError):
        return found
    return replace(
        found,
        is_instance=lambda value: value is None or found.is_instance(value),
        str_from_instance=lambda value: [""] if value is None else found.str_from_instance(value),
    )
