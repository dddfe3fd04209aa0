"""Answers that conform to a JSON schema, of a model with random weights: nothing else makes them JSON."""

from __future__ import annotations

import json
import sys

import httpx2
import pytest
from tests.serve.run.server.served_api import CHAT, COMPLETION, FakeEngine, call_api

from trainyard.serve.run.model_tokenizer import ModelTokenizer

_CAR = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["box", "tank", "flat"]},
        "axles": {"enum": [2, 4, 6]},
        "loaded": {"type": "boolean"},
    },
    "required": ["kind", "axles", "loaded"],
    "additionalProperties": False,
}
_FORMAT = {
    "response_format": {"type": "json_schema", "json_schema": {"name": "car", "schema": _CAR, "strict": True}}
}


def is_car(text):
    car = json.loads(text)
    return (
        car.keys() == set(_CAR["properties"])
        and car["kind"] in ("box", "tank", "flat")
        and car["axles"] in (2, 4, 6)
        and isinstance(car["loaded"], bool)
    )


def test_all_answers_conform_and_then_end(url):
    body = CHAT | _FORMAT | {"n": 6, "seed": 2, "temperature": 1.5, "max_tokens": 400}
    answers = httpx2.post(f"{url}/v1/chat/completions", json=body, timeout=600).json()["choices"]
    assert [answer["finish_reason"] for answer in answers] == ["stop"] * 6
    texts = [answer["message"]["content"] for answer in answers]
    assert all(map(is_car, texts))
    assert len({json.dumps(json.loads(text)) for text in texts}) > 1


def test_answers_beside_them_are_free(url):
    body = COMPLETION | {"max_tokens": 30, "temperature": 0, "n": 2, "prompt": ["a", "b"]}
    free = httpx2.post(f"{url}/v1/completions", json=body, timeout=600).json()["choices"]
    bound = httpx2.post(
        f"{url}/v1/completions", json=body | _FORMAT | {"max_tokens": 400}, timeout=600
    ).json()["choices"]
    assert not any(answer["text"].startswith("{") for answer in free)
    assert [is_car(answer["text"]) for answer in bound] == [True] * 4


def test_an_object_begins_as_one(url):
    body = COMPLETION | {"response_format": {"type": "json_object"}, "max_tokens": 5, "seed": 1}
    text = httpx2.post(f"{url}/v1/completions", json=body, timeout=600).json()["choices"][0]["text"]
    assert text.lstrip().startswith("{")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"type": "json_schema"}, "go together"),
        ({"type": "json_object", "json_schema": {"name": "x", "schema": {}}}, "go together"),
        ({"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nonsense"}}}, "nonsense"),
        ({"type": "json_schema", "json_schema": {"name": "x"}}, "schema"),
        ({"type": "xml"}, "'json_object'"),
    ],
    ids=str,
)
def test_formats_that_cannot_be_are_refused(tokenizer, given, says):
    found = call_api(
        tokenizer,
        FakeEngine([70]),
        lambda client, api: client.post("/v1/completions", json=COMPLETION | {"response_format": given}),
    )
    assert found.status_code == 400
    assert says in found.json()["error"]["message"]
    assert found.json()["error"]["param"].startswith("response_format")


_DEFS = {"$defs": {"a": {"$ref": "#/$defs/a"}}}
_CIRCLE = {"$ref": "#/$defs/a"} | _DEFS
_CIRCLE_IN_IT = {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "required": ["a"]} | _DEFS
_TOO_MUCH = {"type": "string", "pattern": f"^{'(a|b|c|d)?' * 3000}$"}


@pytest.mark.parametrize("schema", [_CIRCLE, _CIRCLE_IN_IT, _TOO_MUCH])
@pytest.mark.parametrize("streams", [False, True])
def test_an_answer_that_cannot_conform_is_an_error(url, schema, streams):
    """No one sees before whether it can: where nothing may follow, half an answer would look like a whole one."""
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    body = COMPLETION | {"response_format": form, "max_tokens": 40, "stream": streams, "n": 2}
    beside = COMPLETION | {"max_tokens": 40, "ignore_eos": True}
    found = httpx2.post(f"{url}/v1/completions", json=body, timeout=600)
    assert "no answer can be made that conforms" in found.text
    assert '"finish_reason":"stop"' not in found.text
    assert found.status_code == 400 or (streams and found.status_code == 200)
    assert httpx2.post(f"{url}/v1/completions", json=beside, timeout=600).status_code == 200


def test_without_llguidance_it_is_said_what_to_install(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance.hf", None)
    fresh = ModelTokenizer(folder)
    found = call_api(
        fresh, FakeEngine([70]), lambda client, api: client.post("/v1/completions", json=COMPLETION | _FORMAT)
    )
    assert found.status_code == 400
    assert "llguidance" in found.json()["error"]["message"]
