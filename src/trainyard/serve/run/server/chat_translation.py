"""Requests of other APIs as chats, so that one path checks them and generates for all of them."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, ClassVar

from pydantic import PrivateAttr, ValidationError

from trainyard.serve.run.server.api_error import ApiError
from trainyard.serve.run.server.api_requests import ChatRequest
from trainyard.serve.run.server.request_body import RequestBody, describe_error

__all__ = ["TranslatedRequest", "as_text_parts", "function_call", "function_tool", "named_function"]


class TranslatedRequest(RequestBody, ABC):
    """A request of another API that is served as a chat."""

    own_names: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Names of this API for fields of chats, in errors."""

    _chat: ChatRequest = PrivateAttr()

    @property
    def chat(self) -> ChatRequest:
        """The chat that asks for the same; there is none before `check_fields`."""
        return self._chat

    @abstractmethod
    def chat_fields(self) -> Mapping[str, Any]:
        """Return the fields of a chat that asks for the same; None stands for a field that is not given.

        Raises
        ------
        ApiError
            If no chat asks for the same.
        """

    def check_fields(self) -> None:
        """Translate the request.

        A large body is read outside the event loop, and is translated there, too.
        """
        given = {name: value for name, value in self.chat_fields().items() if value is not None}
        with self.telling_own_names():
            try:
                self._chat = ChatRequest.model_validate(given)
                self._chat.check_fields()
            except ValidationError as error:
                place, told = describe_error(error)
                raise ApiError(400, told, param=place) from None

    @contextmanager
    def telling_own_names(self) -> Iterator[None]:
        """Let errors of the chat name the fields of this API, within ``with``."""
        try:
            yield
        except ApiError as error:
            raise error.renamed(self.own_names) from error


def function_call(call_id: str, name: str, arguments: str | Mapping[str, Any]) -> dict[str, Any]:
    """Return a call that the model made, for a message of a chat.

    Parameters
    ----------
    arguments : as an object, or its text.
    """
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}


def function_tool(
    name: str, description: str, parameters: Mapping[str, Any], *, strict: bool
) -> dict[str, Any]:
    """Return a tool of a chat."""
    function = {"name": name, "description": description, "parameters": parameters, "strict": strict}
    return {"type": "function", "function": function}


def named_function(name: str) -> dict[str, Any]:
    """Return the ``tool_choice`` of a chat whose answer is a call of one tool."""
    return {"type": "function", "function": {"name": name}}


def as_text_parts(given: Any) -> Any:
    """Turn content that is one text into a list of one part."""
    return [{"type": "text", "text": given}] if isinstance(given, str) else given
