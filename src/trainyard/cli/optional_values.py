"""Read options whose default is None: they take the values of their type, and not the word None."""

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

__all__ = ["refusing_none"]

_rules = ConstructorRegistry()


def refusing_none() -> AbstractContextManager[Any]:
    """Read an option that may be None as one of its type within the block; tyro alone also takes the word None."""
    return _rules


@_rules.primitive_rule
def _optional(
    info: PrimitiveTypeInfo,
) -> PrimitiveConstructorSpec[Any] | UnsupportedTypeAnnotationError | None:
    """Return the rule of a type for the type or None."""
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
