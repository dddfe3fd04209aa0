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

__all__ = ["TranslatedRequest", "function_call"]


class TranslatedRequest(RequestBody, ABC):
    """A request that is served as a chat."""

    own_names: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Names that fields of chats have in this API, for errors."""

    _chat: ChatRequest = PrivateAttr()

    @property
    def chat(self) -> ChatRequest:
        """The chat that asks for the same, once the fields are checked."""
        return self._chat

    @abstractmethod
    def chat_fields(self) -> Mapping[str, Any]:
        """Fields of a chat that asks for the same; None stands for a field that is not given.

        Raises
        ------
        ApiError
            If no chat does.
        """

    def check_fields(self) -> None:
        """Translate the request, where its body is read: of a large one, this is not done in the event loop."""
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
        """Within it, errors of the chat name the fields of this API."""
        try:
            yield
        except ApiError as error:
            raise error.renamed(self.own_names) from error


def function_call(call_id: str, name: str, arguments: str | Mapping[str, Any]) -> dict[str, Any]:
    """A call that the model made, as messages of chats have it.

    Parameters
    ----------
    arguments : as an object, or its text.
    """
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}
