"""Answers in the form of a regular expression, of one of some texts or of a grammar, by a model with random weights."""

from __future__ import annotations

import json
import re
from itertools import product

import httpx2
import pytest
from tests.serve.run.server.served_api import CHAT, COMPLETION, FakeEngine, call_api

_ASKED = {"n": 6, "seed": 3, "temperature": 1.5, "max_tokens": 60}
_CHOICES = ["box", "tank car", 'a "flat" one\n', "Güter 🚂", "[a-z]+ | \\/ (#)"]
_MANY = [f"car {number}." for number in range(10_000)]
_GBNF = 'root ::= "(" root ")" | "x"'
_LARK = 'start: "(" start ")" | "x"'


def is_nested(text):
    return re.fullmatch(r"\(*x\)*", text) is not None and text.count("(") == text.count(")")


def is_object(text):
    return isinstance(json.loads(text), dict)


@pytest.mark.parametrize(
    ("form", "conforms"),
    [
        ({"structured_outputs": {"regex": r"[ab]{2}/\d"}}, lambda text: re.fullmatch(r"[ab]{2}/\d", text)),
        ({"guided_regex": r"^(x|yy){1,3}$"}, lambda text: re.fullmatch(r"(x|yy){1,3}", text)),
        (
            {"structured_outputs": {"choice": _CHOICES, "regex": None, "json_object": None}},
            lambda text: text in _CHOICES,
        ),
        ({"guided_choice": _CHOICES}, lambda text: text in _CHOICES),
        ({"guided_choice": _MANY}, lambda text: text in _MANY),
        ({"structured_outputs": {"grammar": _LARK}, "logit_bias": {"40": -9}}, is_nested),
        ({"guided_grammar": _GBNF}, is_nested),
        ({"structured_outputs": {"json": '{"enum": [1, 22]}'}}, lambda text: json.loads(text) in (1, 22)),
        ({"guided_json": {"enum": [1, 22]}}, lambda text: json.loads(text) in (1, 22)),
        ({"structured_outputs": {"json_object": True}, "logit_bias": {"92": 30}}, is_object),
    ],
    ids=lambda value: "" if callable(value) else str(value)[:60],
)
@pytest.mark.parametrize("path", ["chat/completions", "completions"])
def test_answers_have_the_form_and_then_end(url, path, form, conforms):
    body = (CHAT if path.startswith("chat") else COMPLETION) | _ASKED | form
    found = httpx2.post(f"{url}/v1/{path}", json=body, timeout=600)
    assert found.status_code == 200, found.text
    ended = [each for each in found.json()["choices"] if each["finish_reason"] == "stop"]
    texts = [each["message"]["content"] if "message" in each else each["text"] for each in ended]
    assert texts
    assert all(map(conforms, texts)), texts


@pytest.mark.parametrize(
    ("form", "param", "says"),
    [
        ({"regex": "(a"}, "structured_outputs", "regex parse error"),
        ({"regex": r"(a)\1"}, "structured_outputs", "backreferences"),
        ({"grammar": "nonsense"}, "structured_outputs", "Expected ::="),
        ({"grammar": "start: other"}, "structured_outputs", "other"),
        ({"grammar": "root ::= " + "(" * 5000}, "structured_outputs", "recursion depth exceeded"),
        (
            {"choice": ["a" * 200_000, "b" * 200_000]},
            "structured_outputs.choice",
            "400000 characters; allowed are 262144",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_forms_that_cannot_be_are_refused_and_others_go_on(url, form, param, says):
    body = COMPLETION | {"max_tokens": 20, "structured_outputs": form}
    found = httpx2.post(f"{url}/v1/completions", json=body, timeout=600)
    assert found.status_code == 400
    assert says in found.json()["error"]["message"]
    assert found.json()["error"]["param"] == param
    good = COMPLETION | {"structured_outputs": {"choice": ["yes", "no"]}}
    (choice,) = httpx2.post(f"{url}/v1/completions", json=good, timeout=600).json()["choices"]
    assert choice["text"] in ("yes", "no")


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"structured_outputs": {}}, "structured_outputs", "json, json_object, regex, choice, grammar"),
        (
            {"structured_outputs": {"regex": "a", "choice": ["b"]}},
            "structured_outputs",
            "leave out all but one",
        ),
        (
            {"guided_regex": "a", "response_format": {"type": "json_object"}},
            "guided_regex",
            "leave out all but one",
        ),
        (
            {"structured_outputs": {"whitespace_pattern": " "}},
            "structured_outputs.whitespace_pattern",
            "leave it out",
        ),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", "at least 1"),
        ({"guided_json": "[]"}, "guided_json", "valid dictionary"),
        ({"guided_json": "{"}, "guided_json", "no JSON"),
    ],
    ids=str,
)
def test_there_is_one_form(tokenizer, fields, param, says):
    work = lambda client, _: client.post("/v1/completions", json=COMPLETION | fields)  # noqa: E731
    found = call_api(tokenizer, FakeEngine([70]), work)
    assert found.status_code == 400
    error = found.json()["error"]
    assert (error["param"], says in error["message"]) == (param, True), error


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_tools_go_with_json_only(tokenizer, choice):
    tool = {"type": "function", "function": {"name": "f"}}
    body = CHAT | {"tools": [tool], "tool_choice": choice, "structured_outputs": {"regex": "a"}}
    found = call_api(
        tokenizer,
        FakeEngine([70]),
        lambda client, _: client.post("/v1/chat/completions", json=body),
        tool_call_parser="hermes",
    )
    assert found.status_code == 400
    assert found.json()["error"]["param"] == "structured_outputs"


def test_bad_words_and_allowed_tokens_hold_in_answers(url, tokenizer):
    first, second = next(
        pair for pair in product("abcqxz", repeat=2) if len(tokenizer.encode("".join(pair))) == 2
    )
    letters = {first, second, "0"}
    allowed = [tokenizer.encode(letter)[0] for letter in letters]
    body = COMPLETION | {
        "n": 8,
        "seed": 5,
        "max_tokens": 40,
        "allowed_token_ids": allowed,
        "temperature": 2.0,
    }
    free = httpx2.post(f"{url}/v1/completions", json=body, timeout=600).json()["choices"]
    assert all(len(each["text"]) == 40 and set(each["text"]) <= letters for each in free)
    assert any(first + second in each["text"] for each in free)
    words = [first + second, " 0"]
    bound = httpx2.post(f"{url}/v1/completions", json=body | {"bad_words": words}, timeout=600).json()[
        "choices"
    ]
    assert all(len(each["text"]) == 40 and set(each["text"]) <= {first, second} for each in bound)
    assert not any(first + second in each["text"] for each in bound)
    none = httpx2.post(f"{url}/v1/completions", json=body | {"bad_words": list(letters)}, timeout=600)
    assert none.status_code == 400
    assert "no token may come next" in none.json()["error"]["message"]


def test_bad_words_are_forbidden_behind_a_space_too(url):
    body = COMPLETION | {"max_tokens": 1, "temperature": 0}
    words = []
    for _ in range(4):  # each time, what was said is forbidden
        (choice,) = httpx2.post(
            f"{url}/v1/completions", json=body | {"bad_words": words}, timeout=600
        ).json()["choices"]
        assert choice["text"].strip() not in words
        words.append(choice["text"].strip())
    assert len(set(words)) == 4
