"""Parse JSON that clients send; a text with too many values is refused before it is parsed."""

from __future__ import annotations

import re
from math import isinf
from typing import Any

import numpy as np
from pydantic_core import from_json

from trainyard.serve.run.server.api_error import ApiError

__all__ = ["INLINE_BYTES", "check_num_values", "parse_json"]

INLINE_BYTES = 64 * 2**10
"""Longest text that is parsed in the event loop, within milliseconds. So short a text never has too many values."""

_MOST_VALUES = 2**20 + 2**14  # a prompt of a million tokens, and more beside it
_MOST_STRINGS = 2**18  # a conversation of 10,000 messages with calls of tools has fewer
_MOST_CONTAINERS = 2**16
_MAY_BE_INFINITE = re.compile(rb"\d[eE]\+?\d|\d{309}")


def parse_json(content: bytes | bytearray, name: str, *, param: str = "") -> Any:
    """Return the value of a JSON text.

    Parameters
    ----------
    content : the text, in UTF-8.
    name : name of the text in errors.
    param : field of the request that has the text; "" for the body itself.

    Raises
    ------
    ApiError
        If the text is not JSON, is nested more than 200 levels deep, or has more values than are allowed or a number that
        is too large.
    """
    check_num_values(content, name)
    try:
        found = from_json(content, allow_inf_nan=False, cache_strings="keys")
        if _MAY_BE_INFINITE.search(content) and _has_infinity(found):
            raise ValueError("a number is above 1.8e308")
        return found
    except ValueError as error:
        said = str(error).replace(
            "recursion limit exceeded", "more than 200 objects and lists within each other"
        )
        told = f"{name} is no JSON: {said}; allowed is the text of a JSON object, in UTF-8"
        raise ApiError(400, told, param=param) from None


def check_num_values(content: bytes | bytearray, name: str) -> None:
    """Refuse JSON with more values than are allowed, by counts of its bytes.

    Parameters
    ----------
    name : name of the text in errors.

    Raises
    ------
    ApiError
        If there are too many; the message says how many are allowed.
    """
    if len(content) <= INLINE_BYTES:
        return
    # A string begins at a quote without a backslash before it, and may end at a quote with one. The count is at least
    # half of the strings.
    num_strings = (content.count(b'"') - content.count(b'\\"') + 1) // 2
    num_commas, num_containers = _count_outside_strings(content)
    for what, num, most in (
        ("strings", num_strings, _MOST_STRINGS),
        ("objects and lists", num_containers, _MOST_CONTAINERS),
        ("values", num_commas + num_containers, _MOST_VALUES),
    ):
        if num > most:
            told = f"{name} has more than {most} {what}; send several smaller requests"
            raise ApiError(413, told)


def _has_infinity(value: Any) -> bool:
    """Whether a value has a number that was read as infinity, which JSON cannot have."""
    level = [value]
    while level:
        if any(type(each) is float and isinf(each) for each in level):
            return True
        containers = [each for each in level if isinstance(each, dict | list)]
        level = [
            value for each in containers for value in (each.values() if isinstance(each, dict) else each)
        ]
    return False


def _count_outside_strings(content: bytes | bytearray) -> tuple[int, int]:
    """Count the commas, and the opening brackets of objects and lists, outside strings."""
    if b"\\" in content:  # keep only the quotes that begin and end strings
        content = content.replace(b"\\\\", b"  ").replace(b'\\"', b"  ")
    found = np.frombuffer(content, np.uint8)
    is_outside = ~np.logical_xor.accumulate(found == ord('"'))
    num_commas, *nums = (np.count_nonzero(is_outside & (found == ord(char))) for char in ",[{")
    return int(num_commas), int(sum(nums))
