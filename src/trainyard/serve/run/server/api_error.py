"""Errors in the forms of the APIs of OpenAI and Anthropic."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse

from trainyard.serve.errors import ModelFaultError, ServeError
from trainyard.serve.run.engine_adapters import AdapterUnloadedError
from trainyard.serve.run.engine_client import EngineLostError
from trainyard.serve.run.limited_tokenizer import TokenizerBusyError
from trainyard.serve.run.model_tokenizer import TooManyTokensError

__all__ = ["ApiError"]

_MOST_CHARS = 2000
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_ANTHROPIC_PATH = "/v1/messages"


class ApiError(Exception):
    """An error as the response to a request.

    Parameters
    ----------
    status : of HTTP.
    message : what was given, what is allowed, and what to do; its middle is left out where it is long.
    param : field of the request that is wrong; "" if it is none.
    code : what is wrong, for programs; "" for nothing.
    retry_after_s : after how many seconds the same may be done; 0 says nothing of that.
    """

    def __init__(
        self, status: int, message: str, *, param: str = "", code: str = "", retry_after_s: int = 0
    ) -> None:
        if len(message) > _MOST_CHARS:
            message = f"{message[: _MOST_CHARS // 2]} ... {message[-_MOST_CHARS // 2 :]}"
        super().__init__(message)
        self.status, self.message, self.param, self.code, self.retry_after_s = (
            status,
            message,
            param,
            code,
            retry_after_s,
        )

    @classmethod
    def of_server(cls) -> ApiError:
        """Make the error that a client gets for a defect of the server."""
        return cls(500, "something went wrong in the server; its log says what")

    @classmethod
    def of_engine(cls, error: ServeError, param: str) -> ApiError:
        """Why an engine did not serve a request whose text is in a field."""
        if isinstance(error, EngineLostError):
            return cls(503, str(error), code="engine_lost", retry_after_s=1)
        if isinstance(error, AdapterUnloadedError):
            return cls(404, str(error), param="model", code="model_not_found")
        if isinstance(error, ModelFaultError):
            return cls(500, str(error), code="model_fault")
        return cls(400, str(error), param=param)

    @classmethod
    def of_tokenizer(cls, error: ServeError, param: str) -> ApiError:
        """Why the text of a field has no tokens."""
        if isinstance(error, TokenizerBusyError):
            return cls(503, str(error), code="tokenizer_busy", retry_after_s=1)
        if isinstance(error, TooManyTokensError):
            text = "the prompt" if param == "messages" else f"the {param}"
            return cls(400, f"{text} {error}", param=param, code="context_length_exceeded")
        return cls(400, str(error), param=param)

    @classmethod
    def of_deadline(cls, deadline_s: float) -> ApiError:
        """Error of a request that takes too long."""
        told = f"the answer is not complete after {deadline_s:g} s, the deadline of this server; ask for less"
        return cls(504, told, code="deadline")

    def renamed(self, names: Mapping[str, str]) -> ApiError:
        """Return this error with other names of fields in ``param`` and at the beginning of its message.

        Parameters
        ----------
        names : by those that are replaced; what comes behind a dot stays.
        """
        param, message = self.param, self.message
        for name, own in names.items():
            param = re.sub(rf"(^|\.){name}\b", rf"\g<1>{own}", param)
            message = re.sub(rf"(^\S*?){name}\b", rf"\g<1>{own}", message)
        return ApiError(self.status, message, param=param, code=self.code, retry_after_s=self.retry_after_s)

    def document(self) -> dict[str, Any]:
        """Return the error as OpenAI's API has it in JSON."""
        kind = _TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {
            "error": {
                "message": self.message,
                "type": kind,
                "param": self.param or None,
                "code": self.code or None,
            }
        }

    def anthropic_document(self) -> dict[str, Any]:
        """Return the error as Anthropic's API has it in JSON."""
        kind = _ANTHROPIC_TYPES.get(
            self.status, "api_error" if self.status >= 500 else "invalid_request_error"
        )
        return {"type": "error", "error": {"type": kind, "message": self.message}}

    def response(self, path: str = "") -> JSONResponse:
        """Return the error as an HTTP response.

        Parameters
        ----------
        path : that was asked for, by which the form of the error is chosen.
        """
        headers = {"WWW-Authenticate": "Bearer"} if self.status == 401 else {}
        if self.retry_after_s:
            headers["Retry-After"] = str(self.retry_after_s)
        is_anthropic = path == _ANTHROPIC_PATH or path.startswith(f"{_ANTHROPIC_PATH}/")
        document = self.anthropic_document() if is_anthropic else self.document()
        return JSONResponse(document, self.status, headers)
