"""Calls of tools in text: found wherever the text is cut into pieces, and what is none of a call is never lost."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trainyard.serve.run.server.chat_messages import Tool
from trainyard.serve.run.server.tools.forced_calls import (
    ForcedCallParser,
    RequiredCallsParser,
    schema_of_calls,
)
from trainyard.serve.run.server.tools.hermes_parser import HermesParser
from trainyard.serve.run.server.tools.tool_call_parser import SingleCallParser

_BEGIN, _END = "<tool_call>", "</tool_call>"


def parsed(parser, pieces):
    """Content and pairs of name and arguments, whose parts are joined; the order of parts is checked."""
    content, calls, ids = "", [], []
    for content_part, deltas in [*map(parser.take, pieces), parser.rest()]:
        content += content_part
        for delta in deltas:
            if delta.call_id:
                assert delta.index == len(calls)
                assert delta.name
                calls.append([delta.name, ""])
                ids.append(delta.call_id)
            assert (delta.index, bool(delta.name)) == (len(calls) - 1, bool(delta.call_id))
            calls[-1][1] += delta.arguments
    assert len(set(ids)) == len(ids)
    return content, [tuple(call) for call in calls]


def cut(text, places):
    bounds = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[start:stop] for start, stop in pairwise(bounds)]


_CUTS = st.lists(st.integers(0, 10**6), max_size=12)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.sampled_from('a"\\{}[]<>/ \né')),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
_CALLS = st.tuples(
    st.text(st.sampled_from('ab_"\\é'), min_size=1, max_size=5),
    st.dictionaries(st.text(max_size=3), _VALUES | st.just(f"{_END}{_BEGIN}"), max_size=3),
)
_WORDS = st.text(st.sampled_from("ab <>"), max_size=6).filter(str.strip).map(str.strip)


def written(call, way):
    name, arguments = json.dumps(call[0]), json.dumps(call[1], ensure_ascii=way % 2 > 0)
    members = [f'"name": {name}', f'"arguments":{arguments}', '"more" : [1, "}"]'][: 2 + (way & 4 > 0)]
    return "\n{" + ", ".join(members[:: 1 - (way & 2)]) + " }\n", arguments


@given(_WORDS, st.lists(st.tuples(_CALLS, st.integers(0, 7)), min_size=1, max_size=3), _WORDS, _CUTS)
def test_calls_are_found_wherever_the_text_is_cut(before, calls, after, cuts):
    texts = [written(*each) for each in calls]
    whole = before + "\n".join(f"{_BEGIN}{text}{_END}" for text, _ in texts) + "\n" + after
    content, found = parsed(HermesParser(), cut(whole, cuts))
    assert content == before + after
    assert found == [(call[0], arguments) for (call, _), (_, arguments) in zip(calls, texts, strict=True)]
    assert parsed(SingleCallParser(HermesParser()), cut(whole, cuts)) == (content, found[:1])


_PARTS = st.sampled_from(
    [
        _BEGIN, _END, "<tool_", "call>", "</", '{"name": "f"', '"name"', '"arguments": ', "{", "}", ",", ":", '"', "\\",
        '{"a": 1}', '{"name": "f", "arguments": {}}', " ", "\n", "text", "1", "null",
        '<tool_call>{"name": "f", "arguments": {"a": 1}', '<tool_call>{"arguments": {"a": 1}, "name": "f"',
    ]
)  # fmt: skip


@given(st.lists(_PARTS, max_size=12).map("".join), _CUTS)
@example('<tool_call>{"name": "f", "arguments": {}, "arguments": {"b": 1}}', [])
@example('<tool_call>{"name": "f", "arguments": {}} text</tool_call>', [])
@example('<tool_call>{"name": "\\ud800", "arguments": {}}', [])
def test_any_text_is_read_as_if_it_came_at_once(text, cuts):
    at_once = parsed(HermesParser(), [text])
    assert parsed(HermesParser(), cut(text, cuts)) == parsed(HermesParser(), text) == at_once
    if not at_once[1]:
        assert at_once[0] == text


@given(st.text(st.sampled_from(_BEGIN + "x"), max_size=30))
def test_only_what_may_begin_a_tag_is_held_back(text):
    parser, given_back = HermesParser(), ""
    for num, char in enumerate(text, 1):
        given_back += parser.take(char).content
        if _BEGIN in text[:num]:
            return
        held = text[:num].removeprefix(given_back)
        assert not held or _BEGIN.startswith(held)


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ('<tool_call>{"name": "f", "arguments": {"a": 1}}', "", [("f", '{"a": 1}')]),
        ('<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call> ', "", [("f", '{"a": 1}')]),
        ('<tool_call>{"name": "f"}</tool_call>', "", [("f", "{}")]),
        ('<tool_call>{"name": "f", "arguments": {"a": "</tool_call>', "", [("f", '{"a": "</tool_call>')]),
        ('a <tool_call>{"name": "f", "arg', 'a <tool_call>{"name": "f", "arg', []),
        ('<tool_call>{"name": 1, "arguments": {}}', '<tool_call>{"name": 1, "arguments": {}}', []),
        ('<tool_call>{"arguments": {}}</tool_call>', '<tool_call>{"arguments": {}}</tool_call>', []),
        ('<tool_call>{"name": "f", "arguments": []}', '<tool_call>{"name": "f", "arguments": []}', []),
        ('<tool_call>no <tool_call>{"name": "f"}', "<tool_call>no ", [("f", "{}")]),
        ('<tool_call>{"name": "f", "arguments": {}, "arguments"', ': {"b": 1}}', [("f", "{}")]),
    ],
    ids=str,
)
def test_calls_that_are_not_whole(text, content, calls):
    if content.startswith(":"):  # what comes after a call that is wrong is content
        text += content
    assert parsed(HermesParser(), [text]) == (content, calls)


@given(st.lists(_CALLS, min_size=1, max_size=3), _CUTS)
def test_required_calls_are_a_list(calls, cuts):
    whole = json.dumps([{"name": name, "arguments": arguments} for name, arguments in calls])
    expected = [(name, json.dumps(arguments)) for name, arguments in calls]
    assert parsed(RequiredCallsParser(), cut(whole, cuts)) == ("", expected)
    assert parsed(SingleCallParser(RequiredCallsParser()), cut(whole, cuts)) == ("", expected[:1])


def test_a_list_that_is_cut_has_the_calls_whose_arguments_began():
    begun = '[{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {"b'
    assert parsed(RequiredCallsParser(), [begun]) == ("", [("f", '{"a": 1}'), ("g", '{"b')])
    assert parsed(RequiredCallsParser(), [begun[:50]]) == ("", [("f", '{"a": 1}')])
    assert parsed(RequiredCallsParser(), ["no list", " at all"]) == ("no list at all", [])


def test_a_named_call_is_its_arguments():
    assert parsed(ForcedCallParser("f"), ["", '{"a"', ": 1}"]) == ("", [("f", '{"a": 1}')])
    assert parsed(ForcedCallParser("f"), [""]) == ("", [])


def test_only_references_to_the_root_of_parameters_are_moved():
    """Not values that look like one, a property that is called so, an anchor, and a schema that has an id of its own."""
    properties = {
        "const": {"const": {"$ref": "#/x"}},
        "$ref": {"enum": [{"$ref": "#"}]},
        "own": {"$id": "https://a.example/b", "$ref": "#/$defs/c", "$defs": {"c": {"enum": [7]}}},
        "named": {"$ref": "#d"},
    }
    moved = {"const": {"$ref": "#/$defs/e"}, "self": {"$ref": "#"}}
    parameters = {"type": "object", "properties": properties | {"in": {"properties": moved}}}
    tool = Tool.model_validate({"type": "function", "function": {"name": "refer", "parameters": parameters}})
    (call,) = schema_of_calls([tool], is_parallel=False)["items"]["anyOf"]
    place = "#/items/anyOf/0/properties/arguments"
    expected = {"const": {"$ref": f"{place}/$defs/e"}, "self": {"$ref": place}}
    assert call["properties"]["arguments"]["properties"] == properties | {"in": {"properties": expected}}
