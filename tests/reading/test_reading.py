"""The one reader of text that others wrote: what it takes, and the limits at which it stops."""

from __future__ import annotations

import json
import math
import pickle
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from trainyard.divisors import divisors
from trainyard.reading import ReadingError, Section, parse_json, parse_yaml, read_text
from trainyard.reading.limits import MOST_BYTES, MOST_DEPTH, MOST_DIGITS

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
)
TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["C"]), max_size=12)
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS | TEXTS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4)
)


@settings(max_examples=100, deadline=None)
@given(VALUES)
def test_what_is_written_is_read(value: Any) -> None:
    assert parse_yaml(yaml.safe_dump(value, allow_unicode=True), "it") == value
    assert parse_json(json.dumps(value), "it") == value


@pytest.mark.parametrize(
    "text",
    [
        "a: &x {b: 1}\nc: *x\nd: [*x, *x]",
        "base: &x {a: 1, b: 2}\nhere: {<<: *x, b: 3}\nthere:\n  <<: [{b: 4}, *x]\n  c: 5",
        "[yes, off, ~, 0x1f, 010, 1_000, 1.5e+3, '1', !!str 2, !!int '3', 1:30]",
        "text: |\n  two\n  lines\nfolded: >\n  one\n  line",
        "{}",
        "",
        "a: 2017-10-09 x",
    ],
)
def test_yaml_as_pyyaml_reads_it(text: str) -> None:
    assert parse_yaml(text, "it") == yaml.safe_load(text)


def test_a_date_is_text_and_texts_stay_texts() -> None:
    assert parse_yaml("[2017-10-09, 1e9]", "it") == ["2017-10-09", "1e9"]
    assert parse_yaml("[007, no, ~, 'null', 1e3, .inf]", "it", texts=True) == [
        "007",
        "no",
        "",
        "null",
        "1e3",
        ".inf",
    ]
    assert parse_yaml("a: .inf", "it", finite=False) == {"a": math.inf}


def test_values_are_counted() -> None:
    assert parse_yaml("a: [1, 2]", "FILE", most_values=5) == {"a": [1, 2]}
    with pytest.raises(ReadingError, match=r"^FILE, line 2: more than 5 values"):
        parse_yaml("a: [1,\n 2, 3]", "FILE", most_values=5)


def test_a_mapping_knows_where_it_stands() -> None:
    root = parse_yaml("a: 1\nb:\n- c: 2\n\n- d: 3\n", "FILE")
    assert root.lines == {"a": 1, "b": 2}
    assert root["b"].lines == [3, 5]
    assert root["b"][1].place("d") == "FILE, line 5, field 'd'"
    assert pickle.loads(pickle.dumps(root)) == {"a": 1, "b": [{"c": 2}, {"d": 3}]}


DEEP = MOST_DEPTH + 1
WRONG_YAML = {
    "deep list": ("\n" + "[" * DEEP + "]" * DEEP, "line 2: lists or mappings too deep in each other"),
    "deep, unclosed": ("[" * 100_000, "too deep in each other"),
    "deep blocks": ("".join(" " * i + "a:\n" for i in range(DEEP + 1)), "line 65: lists or mappings too deep"),
    "deep by aliases": (
        "\n".join(["a0: &a0 [1]"] + [f"a{i}: &a{i} [*a{i - 1}]" for i in range(1, 99)]), "alias *a62: aliases stand for"
    ),
    "aliases of aliases": (
        "\n".join(["a0: &a0 [1]"] + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9)]),
        "line 6: alias *a4: aliases stand for",
    ),
    "merges of merges": (
        "a0: &a0 {b: 1}\n" + "\n".join(f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}" for i in range(1, 9)),
        "alias *a4: aliases stand for",
    ),
    "an alias within itself": ("a: &x [*x]", "line 1: alias *x contains itself"),
    "an alias of nothing": ("a: *x", "line 1: alias *x stands for nothing"),
    "a key twice": ("a:\n  b: 1\n  c: 2\n  'b': 3\n", "line 4: key 'b' stands twice, first on line 2"),
    "a key that is a number": ("a:\n  1: 2\n", "line 2: key 1 is not text; write it in quotes"),
    "a key that is a list": ("a:\n  ? [b]\n  : 2\n", "line 2: a list is no key"),
    "digits": ("a: " + "9" * 5000, "line 1: a number of 5,000 digits"),
    "digits of a fraction": ("a: 0." + "9" * MOST_DIGITS, f"allowed are {MOST_DIGITS}"),
    "infinite": ("a: 1\nb: -.inf", "line 2: field 'b': got -.inf, allowed is a finite number"),
    "no number": ("[.nan]", "got .nan"),
    "a number too large": ("a: 1.0e+999", "allowed is a finite number"),
    "no number at all": ("a: !!int x", "line 1: 'x' is no int"),
    "an empty number": ("a: !!int ''", "line 1: '' is no int"),
    "code": ("a: !!python/object/apply:os.system [exit]", "line 1: not YAML without code: tag"),
    "code in a text": ("a: !!python/name:os.system ''", "not YAML without code: tag"),
    "a second document": ("a: 1\n---\nb: 2\n", "line 2: a second document"),
    "NUL": ("a: 1\nb: \0", "line 2: character 0x00 is no text"),
    "NUL, escaped": ('a: 1\nb: "x\\0"', "line 2: character 0x00 is no text"),
    "half a pair": ("a: \ud800", "character 0xd800 is no text"),
    "not YAML": ("a: [1", "not YAML"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_YAML)
def test_yaml_that_is_refused(name: str) -> None:
    text, said = WRONG_YAML[name]
    with pytest.raises(ReadingError) as error:
        parse_yaml(text, "FILE")
    assert str(error.value).startswith("FILE, line ")
    assert said in str(error.value)
    assert len(str(error.value)) < 400


WRONG_JSON = {
    "deep": ("[" * 100_000, "line 1: lists or objects too deep"),
    "deep objects": ('\n{"a":' * DEEP, f"line {DEEP + 1}: lists or objects too deep"),
    "a key twice": ('{"a": {"b": 1,\n"c": [],\n"b": 2}}', "line 3: key 'b' stands twice, first on line 1"),
    "a key twice, escaped": ('{"a": 1,\n"\\u0061": 2}', "line 2: key 'a' stands twice"),
    "digits": ("[1,\n" + "9" * 5000 + "]", "line 2: a number of 5,000 digits"),
    "infinite": ("[1,\nInfinity]", "line 2: got Infinity"),
    "no number": ('{"a": NaN}', "got NaN"),
    "a number too large": ("[1e999]", "got 1e999, allowed is a finite number"),
    "NUL, escaped": ('[1,\n"x\\u0000"]', "line 2: character 0x00 is no text"),
    "half a pair, escaped": ('["\\ud800"]', "character 0xd800 is no text"),
    "cut off": ('{"a": [1,\n2', "line 2: not JSON"),
    "a text without an end": ('{"a": "b', "not JSON"),
    "a wrong escape": ('{"\\u00": 1}', "not JSON"),
}


@pytest.mark.parametrize("name", WRONG_JSON)
def test_json_that_is_refused(name: str) -> None:
    text, said = WRONG_JSON[name]
    with pytest.raises(ReadingError) as error:
        parse_json(text, "FILE")
    assert str(error.value).startswith("FILE, line ")
    assert said in str(error.value)


def test_json_in_which_nothing_is_twice() -> None:
    assert parse_json('{"a": "b", "b": ["a", "a"], "c": {"a": true}, "e": 1e3}', "it")["e"] == 1000


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "a file"
    with pytest.raises(ReadingError, match=f"cannot read {path}: No such file"):
        read_text(path)
    path.write_bytes(b"\xef\xbb\xbfone\ntw\xf6\n")
    with pytest.raises(ReadingError, match="line 2: byte 0xf6 is not UTF-8"):
        read_text(path)
    path.write_bytes(b"\xef\xbb\xbfone\n")
    assert read_text(path) == "one\n"
    with path.open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    with pytest.raises(ReadingError, match="more than 16,777,216 bytes"):
        read_text(path)


@pytest.mark.parametrize(
    ("value", "taken"),
    [(3, 3), ("1e3", 1000), (2.0, 2), (2.5, None), (True, None), (None, None), ("x", None), (math.inf, None),
     (math.nan, None), (10**400, None), (0, None), ([], None)],
)  # fmt: skip
def test_whole_numbers(value: Any, taken: int | None) -> None:
    section = Section("FILE", 1, {"n": value})
    if taken is not None:
        assert section.whole("n", 1, 1000) == section.number("n", 1, 1000) == taken
        return
    with pytest.raises(
        ReadingError, match=r"^FILE, line 1, field 'n': got .*, allowed is a whole number from 1 to 1,000"
    ):
        section.whole("n", 1, 1000)


def test_kinds_of_values() -> None:
    section = Section("FILE", 3, {"t": "x", "n": 0.0, "l": ["a"], "m": {"k": 1}, "s": [{"k": 1}]})
    assert section.text("t") == "x"
    assert section.texts("l") == ("a",)
    assert section.section("m").whole("k", 0, 1) == section.sections("s")[0].whole("k", 0, 1) == 1
    assert (section.text("u", "y"), section.number("u", default=2.0), section.whole("u", 0, 1, 1)) == (
        "y",
        2.0,
        1,
    )
    for wrong in (
        lambda: section.text("n"), lambda: section.texts("s"), lambda: section.sections("l"),
        lambda: section.section("l"), lambda: section.positive("n"), lambda: section.items_of("m"),
        lambda: section.text("u"), lambda: section.refuse_unknown(("t", "n")),
    ):  # fmt: skip
        with pytest.raises(ReadingError, match=r"^FILE, line 3, field '\w'"):
            wrong()


def test_divisors() -> None:
    for number in (1, 2, 12, 36, 97, 100):
        assert divisors(number) == [n for n in range(1, number + 1) if number % n == 0]
    assert len(divisors(10**8)) == 81
