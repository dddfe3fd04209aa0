"""Forms that a request asks of its answers: JSON, a regular expression, one of some texts, or a grammar."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, FailFast, Field, StringConstraints

from trainyard.serve.run.sampling import OutputForm
from trainyard.serve.run.server.api_error import ApiError
from trainyard.serve.run.server.json_body import parse_json
from trainyard.serve.run.server.request_body import Name, NullTolerantBody, RequestBody

__all__ = ["Choices", "FormText", "JsonSchema", "ResponseFormat", "StructuredOutputs", "one_form"]

_MOST_CHOICES, _MOST_FORM_CHARS = 10_000, 2**18


def _schema(given: Any) -> Any:
    """Read a JSON schema that is given as its text."""
    if not isinstance(given, str):
        return given
    try:
        return parse_json(given.encode(), "the JSON schema")
    except ApiError as error:
        raise ValueError(error.message) from None


def _short_together(texts: list[str]) -> list[str]:
    num_chars = sum(map(len, texts))
    if num_chars > _MOST_FORM_CHARS:
        raise ValueError(f"the texts have {num_chars} characters; allowed are {_MOST_FORM_CHARS} together")
    return texts


JsonSchema = Annotated[dict[str, Any], BeforeValidator(_schema)]
"""A JSON schema, as an object or as its text."""
FormText = Annotated[str, StringConstraints(min_length=1, max_length=_MOST_FORM_CHARS)]
"""A regular expression or a grammar."""
Choices = Annotated[
    list[Annotated[str, StringConstraints(min_length=1)]],
    FailFast(),
    Field(min_length=1, max_length=_MOST_CHOICES),
    AfterValidator(_short_together),
]
"""Texts of which an answer is one."""


class StructuredOutputs(NullTolerantBody):
    """The form of answers in a field of vLLM: exactly one of its own fields is given."""

    json_: JsonSchema | None = Field(None, alias="json")
    json_object: bool = False
    regex: FormText | None = None
    choice: Choices = Field(default_factory=list)
    grammar: FormText | None = None
    disable_any_whitespace: Literal[False] = False
    disable_additional_properties: Literal[False] = False


class _NamedSchema(RequestBody):
    name: Name = ""
    strict: bool | None = None  # answers conform in either case
    schema_: dict[str, Any] = Field(alias="schema")


class ResponseFormat(RequestBody):
    """The form of answers in a field of OpenAI."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: _NamedSchema | None = None

    @property
    def schema_of_answers(self) -> dict[str, Any] | None:
        """The JSON schema to which answers conform; None for any text."""
        if self.type == "text":
            return None
        return {"type": "object"} if self.json_schema is None else self.json_schema.schema_


def one_form(
    response_format: ResponseFormat | None,
    structured_outputs: StructuredOutputs | None,
    guided: Mapping[str, Any],
) -> tuple[str, OutputForm]:
    """Return the field that gives answers a form, and the form; "" and no form if no field does.

    Parameters
    ----------
    response_format, structured_outputs : fields of the request.
    guided : older fields of vLLM for the same, such as guided_json, by their names; None where one is not given.

    Raises
    ------
    ApiError
        If more than one form is given, or none where there should be one.
    """
    found = list[tuple[str, OutputForm]]()
    if response_format is not None and (schema := response_format.schema_of_answers) is not None:
        found.append(("response_format", _FORMS["json"](schema)))
    if structured_outputs is not None:
        given = {name.rstrip("_"): value for name, value in structured_outputs if name.rstrip("_") in _FORMS}
        forms = [_FORMS[kind](value) for kind, value in given.items() if _is_given(value)]
        if not forms:
            told = f"structured_outputs has no form; give one of {', '.join(_FORMS)}"
            raise ApiError(400, told, param="structured_outputs")
        found += [("structured_outputs", form) for form in forms]
    found += [
        (name, _FORMS[name.removeprefix("guided_")](value))
        for name, value in guided.items()
        if _is_given(value)
    ]
    if len(found) > 1:
        fields = " and ".join(dict.fromkeys(name for name, _ in found))
        told = f"answers have one form, and {fields} give {len(found)}; leave out all but one"
        raise ApiError(400, told, param=found[-1][0])
    return found[0] if found else ("", OutputForm())


def _is_given(value: Any) -> bool:
    return not (value is None or value is False or value == [])


_FORMS: Mapping[str, Callable[[Any], OutputForm]] = MappingProxyType(
    {
        "json": lambda schema: OutputForm(json_schema=json.dumps(schema)),
        "json_object": lambda _: OutputForm(json_schema='{"type": "object"}'),
        "regex": lambda text: OutputForm(regex=text),
        "choice": lambda texts: OutputForm(choices=tuple(texts)),
        "grammar": lambda text: OutputForm(grammar=text),
    }
)
