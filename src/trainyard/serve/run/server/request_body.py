"""What all request bodies have in common: types are strict, and unknown fields are refused."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

__all__ = ["RequestBody"]


class RequestBody(BaseModel):
    """A JSON object of a request."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, protected_namespaces=())

    def check_fields(self) -> None:
        """Refuse fields that do not go with each other.

        Raises
        ------
        ApiError
            Names the field that is wrong beside the others.
        """
