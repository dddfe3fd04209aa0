"""Base of all request bodies: types are strict, unknown fields are refused, and only the first error is reported."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from trainyard.reading import shown

__all__ = ["Name", "NullTolerantBody", "RequestBody", "describe_error", "without_nulls"]

_MOST_PLACE_CHARS = 100

Name = Annotated[str, Field(max_length=1024)]
"""A string that is no text of its own, such as the name of a model or the id of a call."""


def without_nulls(given: Any) -> Any:
    """Leave out the fields of an object that are null."""
    if not isinstance(given, dict):
        return given
    return {name: value for name, value in given.items() if value is not None}


class RequestBody(BaseModel):
    """A JSON object of a request."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _with_one_unknown(cls, given: Any) -> Any:
        """Keep only the first of unknown fields: each would be an error, there may be many, and one is told."""
        if not isinstance(given, dict) or given.keys() <= (known := _names_of(cls)):
            return given
        first = next(name for name in given if name not in known)
        return {name: value for name, value in given.items() if name in known or name == first}

    def check_fields(self) -> None:
        """Refuse fields that do not go with each other.

        Raises
        ------
        ApiError
            Names the field that is wrong beside the others.
        """


class NullTolerantBody(RequestBody):
    """A JSON object in which a field that is null counts as not given.

    Clients send parts of answers back as input, and those have many nulls.
    """

    _nulls = model_validator(mode="before")(without_nulls)


@cache
def _names_of(kind: type[RequestBody]) -> frozenset[str]:
    return frozenset(field.alias or name for name, field in kind.model_fields.items())


def describe_error(error: ValidationError) -> tuple[str, str]:
    """The field in which the first error is, and what is wrong with it, in one short sentence."""
    first = error.errors(include_url=False)[0]
    parts = [str(each)[:_MOST_PLACE_CHARS] for each in first["loc"]]
    place = ".".join(part for part in parts if not part.startswith("function-"))
    if first["type"] == "missing" and len(parts) == 1:
        return place, f"{place} is missing; give it"
    if first["type"] == "extra_forbidden":
        return place, f"{place} is given, and is not done by this server; leave it out"
    message = first["msg"].removeprefix("Value error, ").replace("Input should be", "allowed is")
    return place, f"{place} is {shown(first['input'])}: {message}"
