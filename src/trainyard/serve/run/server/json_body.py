"""JSON that clients send, within bounds that hold before a value is made of it."""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic_core import from_json

from trainyard.serve.run.server.api_error import ApiError

__all__ = ["INLINE_BYTES", "check_num_values", "parse_json"]

INLINE_BYTES = 64 * 2**10
"""What is parsed and validated within milliseconds. It has fewer values than are allowed, whatever it says."""

_MOST_VALUES = 2**20 + 2**14  # a prompt of a million tokens, and more beside it
_MOST_STRINGS = 2**18  # a conversation of 10,000 messages with calls of tools has fewer
_MOST_CONTAINERS = 2**16


def parse_json(content: bytes | bytearray, name: str, *, param: str = "") -> Any:
    """The value of a JSON text.

    Parameters
    ----------
    content : in UTF-8.
    name : what errors call it.
    param : field of the request that has it; "" for the body itself.

    Raises
    ------
    ApiError
        If it is not JSON, has more than 200 objects and lists within each other, or more values than are allowed.
    """
    check_num_values(content, name)
    try:
        return from_json(content, allow_inf_nan=False, cache_strings="keys")
    except ValueError as error:
        said = str(error).replace(
            "recursion limit exceeded", "more than 200 objects and lists within each other"
        )
        told = f"{name} is no JSON: {said}; allowed is the text of a JSON object, in UTF-8"
        raise ApiError(400, told, param=param) from None


def check_num_values(content: bytes | bytearray, name: str) -> None:
    """Refuse JSON that would become more values than are allowed, by a look at its bytes.

    Parameters
    ----------
    name : what errors call it.

    Raises
    ------
    ApiError
        Says how many there are, and how many may be.
    """
    if len(content) <= INLINE_BYTES:
        return
    # Strings begin at a quote that no backslash precedes, and may end at one. So there are half as many or more.
    num_strings = (content.count(b'"') - content.count(b'\\"') + 1) // 2
    num_commas, num_containers = _count_outside_strings(content)
    for what, num, most in (
        ("strings", num_strings, _MOST_STRINGS),
        ("objects and lists", num_containers, _MOST_CONTAINERS),
        ("values", num_commas + num_containers, _MOST_VALUES),
    ):
        if num > most:
            told = f"{name} has more than {most} {what}, which is the most; send several smaller requests"
            raise ApiError(413, told)


def _count_outside_strings(content: bytes | bytearray) -> tuple[int, int]:
    """How many commas, and how many beginnings of objects and lists there are."""
    if b"\\" in content:  # left are quotes that begin and end strings
        content = content.replace(b"\\\\", b"  ").replace(b'\\"', b"  ")
    found = np.frombuffer(content, np.uint8)
    is_outside = ~np.logical_xor.accumulate(found == ord('"'))
    num_commas, *nums = (np.count_nonzero(is_outside & (found == ord(char))) for char in ",[{")
    return int(num_commas), int(sum(nums))
